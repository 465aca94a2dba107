//! Weights of PyTorch's nets, loaded through weight maps into the same nets built here: the outputs
//! agree.

#[path = "../examples/imagenet/nets/mod.rs"]
mod nets;
#[path = "../examples/vit/net.rs"]
mod vit_net;

use nets::Variant;
use std::path::Path;
use std::process::Command;
use tensorpack::graph::VariableSpec;
use tensorpack::io::{SaverRestore, SessionInit, WeightMap, export_variables, pytorch, safetensors};
use tensorpack::nn::Activation;
use tensorpack::ops::Padding;
use tensorpack::prelude::*;
use tensorpack_testing::{assert_mentions, opted_in};
use vit_net::Vit;

/// The padding that PyTorch calls `padding=n`.
fn pad(n: usize) -> Padding {
    Padding::Explicit([[n, n]; 2])
}

/// A convolution padded by half its size, without a bias.
fn conv(channels: usize, kernel: usize, stride: usize) -> Conv2d {
    Conv2d::new(channels, kernel).stride(stride).padding(pad(kernel / 2)).no_bias()
}

fn flattened(t: &TowerContext, x: &Tensor) -> Tensor {
    let x = t.scope("features", |t| {
        let x = Conv2d::new(6, 3).padding(pad(1)).apply(t, "0", x);
        BatchNorm::new().relu().apply(t, "1", &x).max_pool(2)
    });
    t.scope("classifier", |t| Linear::new(3).apply(t, "2", &Linear::new(7).relu().apply(t, "0", &x)))
}

fn attention(t: &TowerContext, x: &Tensor) -> Tensor {
    MultiHeadAttention::new(2).apply(t, "attention", &LayerNorm::new().last_axis().apply(t, "norm", x))
}

fn lstm(t: &TowerContext, x: &Tensor) -> Tensor {
    let layer = |name: &str, x: &Tensor| Lstm::new(4).forget_bias(0.0).apply(t, name, x, None).0;
    layer("lstm1", &layer("lstm0", x))
}

fn gru(t: &TowerContext, x: &Tensor) -> Tensor {
    let layer = |name: &str, x: &Tensor| Gru::new(4).apply(t, name, x, None).0;
    layer("gru1", &layer("gru0", x))
}

/// The net of the example `vit`, small.
fn timm_vit(t: &TowerContext, x: &Tensor) -> Tensor {
    Vit { side: 32, patch: 8, features: 16, heads: 2, blocks: 2, classes: 5, dropout: 0.1 }.logits(t, x)
}

fn hf_bert(t: &TowerContext, x: &Tensor) -> Tensor {
    let norm = LayerNorm::new().last_axis().epsilon(1e-12);
    let ids = x.cast(DType::I32);
    let position = ids.iota_like(1, DType::I32);
    let first = (x * 0.0).cast(DType::I32);
    let embedding = Embedding::new(20, 8).apply(t, "embeddings/word", &ids)
        + Embedding::new(6, 8).apply(t, "embeddings/position", &position)
        + Embedding::new(2, 8).apply(t, "embeddings/token_type", &first);
    let mut x = norm.apply(t, "embeddings/LayerNorm", &embedding);
    for i in 0..2 {
        x = t.scope(&format!("encoder/layer/{i}"), |t| {
            let attended = MultiHeadAttention::new(2).apply(t, "attention", &x);
            let x = norm.apply(t, "attention/output/LayerNorm", &(&x + attended));
            let hidden = Linear::new(16).last_axis().activation(Activation::Gelu);
            let y = hidden.apply(t, "intermediate/dense", &x);
            let y = Linear::new(8).last_axis().apply(t, "output/dense", &y);
            norm.apply(t, "output/LayerNorm", &(x + y))
        });
    }
    x
}

/// GPT-2's activation: the approximation of GELU with a hyperbolic tangent.
fn gelu_new(x: &Tensor) -> Tensor {
    let inner = (x + x * x * x * 0.044715) * (2.0 / std::f64::consts::PI).sqrt();
    x * 0.5 * (inner.tanh() + 1.0)
}

fn hf_gpt2(t: &TowerContext, x: &Tensor) -> Tensor {
    let norm = LayerNorm::new().last_axis();
    let ids = x.cast(DType::I32);
    let position = ids.iota_like(1, DType::I32);
    let mut x = Embedding::new(20, 8).apply(t, "wte", &ids) + Embedding::new(7, 8).apply(t, "wpe", &position);
    for i in 0..2 {
        x = t.scope(&format!("h/{i}"), |t| {
            let attention = MultiHeadAttention::new(2).causal();
            let x = &x + attention.apply(t, "attn", &norm.apply(t, "ln_1", &x));
            let hidden = Linear::new(32).last_axis().apply(t, "mlp/c_fc", &norm.apply(t, "ln_2", &x));
            &x + Linear::new(8).last_axis().apply(t, "mlp/c_proj", &gelu_new(&hidden))
        });
    }
    norm.apply(t, "ln_f", &x)
}

fn hf_vit(t: &TowerContext, x: &Tensor) -> Tensor {
    let norm = LayerNorm::new().last_axis().epsilon(1e-12);
    let class = t.scope("vit", |t| {
        let patches = Conv2d::new(8, 8).stride(8).padding(Padding::Valid);
        let patches = patches.apply(t, "embeddings/patch_embeddings/projection", x).reshape(&[-1, 4, 8]);
        let class = t.variable(VariableSpec::new("embeddings/cls_token", [1, 1, 8])).broadcast_to(&[2, 1, 8]);
        let position = t.variable(VariableSpec::new("embeddings/position_embeddings", [1, 5, 8]));
        let mut x = x.graph().concat(&[class, patches], 1) + position.value();
        for i in 0..2 {
            x = t.scope(&format!("encoder/layer/{i}"), |t| {
                let attended = norm.apply(t, "layernorm_before", &x);
                let x = &x + MultiHeadAttention::new(2).apply(t, "attention", &attended);
                let hidden = Linear::new(16).last_axis().activation(Activation::Gelu);
                let y = hidden.apply(t, "intermediate/dense", &norm.apply(t, "layernorm_after", &x));
                &x + Linear::new(8).last_axis().apply(t, "output/dense", &y)
            });
        }
        let x = norm.apply(t, "layernorm", &x);
        x.strided_slice(&[0, 0, 0], &[None, Some(1), None], &[1, 1, 1]).squeeze(1)
    });
    Linear::new(5).apply(t, "classifier", &class)
}

type Net = fn(&TowerContext, &Tensor) -> Tensor;

fn session(net: impl Fn(&TowerContext, &Tensor) -> Tensor, sizes: &[usize]) -> (Session, Tensor) {
    let graph = Graph::new();
    let t = TowerContext::inference(&graph);
    let dims: Vec<_> = sizes.iter().map(|&n| Some(n)).collect();
    let x = graph.placeholder(&TensorSpec::f32("x", dims));
    let y = net(&t, &x);
    (Session::new(graph.freeze().unwrap()).unwrap(), y)
}

fn run(session: &Session, y: &Tensor, x: &HostTensor) -> HostTensor {
    session.run(&[y], &[("x", x)]).unwrap().swap_remove(0)
}

/// Runs a script of `tests/torch` with the Python that `TENSORPACK_TORCH` names, or with `python3` if
/// it is 1. It needs torch, torchvision, safetensors, timm and transformers. Returns `false` after
/// reporting the test as skipped if the variable is not set: CI has no PyTorch.
pub(crate) fn python(script: &str, arguments: &[&Path]) -> bool {
    if !opted_in("TENSORPACK_TORCH") {
        return false;
    }
    let python = std::env::var_os("TENSORPACK_TORCH").filter(|python| python != "1");
    let python = python.unwrap_or_else(|| "python3".into());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torch").join(script);
    let output = Command::new(python).arg(script).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    true
}

fn largest_error(a: &HostTensor, b: &HostTensor) -> f64 {
    assert_eq!(a.sizes(), b.sizes());
    let (a, b) = (a.to_f64_vec(), b.to_f64_vec());
    assert!(a.iter().chain(&b).all(|v| v.is_finite()));
    let scale = b.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
    a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max) / scale
}

#[test]
fn outputs_agree_with_pytorch() {
    let dir = tempfile::tempdir().unwrap();
    if !python("make_nets.py", &[dir.path()]) {
        return;
    }
    let nets: [(&str, Net, WeightMap); 8] = [
        (
            "flattened",
            flattened,
            WeightMap::new().linear_after_flatten("classifier.0", "classifier/0", [6, 4, 5]).same_names(),
        ),
        (
            "attention",
            attention,
            WeightMap::new().attention("attention", "attention").layer_norm("norm", "norm"),
        ),
        ("lstm", lstm, WeightMap::new().lstm("rnn", "lstm0").lstm_layer(1, "rnn", "lstm1")),
        ("gru", gru, WeightMap::new().gru("rnn", "gru0").gru_layer(1, "rnn", "gru1")),
        ("timm_vit", timm_vit, WeightMap::timm_vit()),
        ("hf_bert", hf_bert, WeightMap::hf_bert().strip_prefix("bert.").except(["pooler/.*"])),
        ("hf_gpt2", hf_gpt2, WeightMap::hf_gpt2().strip_prefix("transformer.")),
        ("hf_vit", hf_vit, WeightMap::hf_vit()),
    ];
    for (name, net, map) in nets {
        check(dir.path(), name, net, map);
    }
    // The nets of the example `imagenet`.
    let resnet = WeightMap::torchvision_resnet;
    let nets = [
        ("resnet18", "resnet18", resnet()),
        ("timm_resnet18", "resnet18", resnet()),
        ("resnet50", "resnet50", resnet()),
        ("resnext50_32x4d", "resnext50_32x4d", resnet()),
        ("timm_seresnet50", "se_resnet50", resnet().same_names()),
        ("timm_resnetv2_18", "preact_resnet18", WeightMap::new().same_names()),
        ("timm_resnetv2_50", "preact_resnet50", WeightMap::new().same_names()),
        ("mobilenet_v2", "mobilenet_v2", WeightMap::torchvision_mobilenet_v2()),
        ("efficientnet_b0", "efficientnet_b0", WeightMap::torchvision_efficientnet()),
        ("shufflenet_v2_x1_0", "shufflenet_v2_x1_0", WeightMap::new().same_names()),
    ];
    for (name, net, map) in nets {
        let net = nets::find(net).unwrap();
        check(dir.path(), name, |t, x| net(t, x, &Variant::IMAGENET), map);
    }
    let narrow = Variant { width: 0.125, ..Variant::IMAGENET };
    let map = WeightMap::new().linear_after_flatten("classifier.0", "classifier/0", [64, 7, 7]).same_names();
    check(dir.path(), "vgg16", |t, x| nets::find("vgg16").unwrap()(t, x, &narrow), map);
    // PyTorch loads exported weights, strictly, and computes the same.
    let values = dir.path().join("resnet18-values.pt");
    assert!(python("read_exported.py", &[&dir.path().join("resnet18.safetensors"), &values]));
}

/// Loads the weights of a net in `dir` and compares its outputs with PyTorch's.
pub(crate) fn check(dir: &Path, name: &str, net: impl Fn(&TowerContext, &Tensor) -> Tensor, map: WeightMap) {
    let values = pytorch::read(dir.join(format!("{name}-values.pt"))).unwrap();
    let value = |name: &str| &values.iter().find(|(n, _)| n == name).unwrap().1;
    let (session, y) = session(net, value("x").sizes());
    let weights = dir.join(format!("{name}.pth"));
    SaverRestore::new(&weights).map(map.clone()).init(&session).unwrap();
    let error = largest_error(&run(&session, &y, value("x")), value("y"));
    println!("{name}: largest error relative to the largest output {error:.1e}");
    assert!(error < 1e-4, "{name}: {error}");
    // Exported weights are imported as the same variables.
    let exported = dir.join(format!("{name}.safetensors"));
    export_variables(&session, &map, &exported).unwrap();
    for (name, tensor) in map.import(safetensors::read(&exported).unwrap()).unwrap() {
        assert_eq!(tensor, session.read(&name).unwrap(), "{name}");
    }
}

/// The number of parameters of each net, as torchvision and timm state them.
#[test]
fn the_nets_of_imagenet_have_their_papers_number_of_parameters() {
    let expected = [
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("resnet152", 60_192_808),
        ("resnext50_32x4d", 25_028_904),
        ("se_resnet50", 28_088_024),
        ("preact_resnet18", 11_687_720),
        ("preact_resnet34", 21_795_880),
        ("preact_resnet50", 25_549_352),
        ("preact_resnet101", 44_541_480),
        ("vgg16", 138_357_544),
        ("mobilenet_v2", 3_504_872),
        ("efficientnet_b0", 5_288_548),
        ("shufflenet_v2_x1_0", 2_278_604),
    ];
    let counts = nets::NETS.map(|(name, net)| {
        let graph = Graph::new();
        let t = TowerContext::training(&graph);
        let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(224), Some(224), Some(3)]));
        net(&t, &x, &Variant::IMAGENET);
        let graph = graph.freeze().unwrap_or_else(|e| panic!("{name}: {e}"));
        let trained = graph.variables().iter().filter(|v| v.trainable);
        (name, trained.map(|v| v.sizes.iter().product::<usize>()).sum::<usize>())
    });
    assert_eq!(counts, expected);
}

/// On images of 32x32 pixels, with a quarter of the channels.
#[test]
fn the_nets_of_imagenet_fit_small_images() {
    let variant = Variant { classes: 10, width: 0.25, small_images: true };
    for (name, net) in nets::NETS {
        let graph = Graph::new();
        let t = TowerContext::training(&graph);
        let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(32), Some(32), Some(3)]));
        assert_eq!(net(&t, &x, &variant).shape().to_string(), "[?, 10]", "{name}");
        graph.freeze().unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

#[test]
fn same_padding_at_stride_2_loads_but_differs_from_pytorch() {
    let x = HostTensor::new([1, 4, 4, 1], (0..16).map(|i| i as f32).collect()).unwrap();
    let filter = HostTensor::new([1, 1, 3, 3], (1..10).map(|i| i as f32).collect()).unwrap();
    let map = WeightMap::new().conv("conv", "conv");
    let outputs = [Padding::Same, pad(1)].map(|padding| {
        let graph = Graph::new();
        let t = TowerContext::inference(&graph);
        let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(4), Some(4), Some(1)]));
        let y = Conv2d::new(1, 3).stride(2).padding(padding).no_bias().apply(&t, "conv", &x);
        let session = Session::new(graph.freeze().unwrap()).unwrap();
        let theirs = [("conv.weight", filter.clone())];
        tensorpack::io::DictRestore::new(theirs).map(map.clone()).init(&session).unwrap();
        (session, y)
    });
    let [same, explicit] = outputs.each_ref().map(|(session, y)| run(session, y, &x).to_f64_vec());
    // torch.nn.functional.conv2d(x, filter, stride=2, padding=1)
    assert_eq!(explicit, [83.0, 178.0, 330.0, 528.0]);
    assert_ne!(same, explicit);
}

/// A session with `conv/W`, `bn/..` and `head/..`, and tensors for it as PyTorch has them.
fn small() -> (Session, Vec<(String, HostTensor)>) {
    let net: Net = |t, x| {
        let x = BatchNorm::new().apply(t, "bn", &conv(2, 3, 1).apply(t, "conv", x));
        Linear::new(4).apply(t, "head", &x.global_average_pool())
    };
    let tensor = |sizes: &[usize]| {
        let n: usize = sizes.iter().product();
        HostTensor::new(sizes, (0..n).map(|i| i as f32 + 1.0).collect()).unwrap()
    };
    let theirs = [
        ("conv.weight", &[2, 3, 3, 3][..]),
        ("bn.weight", &[2]),
        ("bn.bias", &[2]),
        ("bn.running_mean", &[2]),
        ("bn.running_var", &[2]),
        ("bn.num_batches_tracked", &[]),
        ("head.weight", &[4, 2]),
        ("head.bias", &[4]),
    ];
    let theirs = theirs.iter().map(|(name, sizes)| (name.to_string(), tensor(sizes))).collect();
    (session(net, &[1, 5, 5, 3]).0, theirs)
}

fn small_map() -> WeightMap {
    WeightMap::new().conv("conv", "conv").batch_norm("bn", "bn").linear("head", "head")
}

#[test]
fn every_mismatch_is_listed_at_once() {
    let (session, mut theirs) = small();
    let before = session.read("conv/W").unwrap();
    theirs.retain(|(name, _)| name != "bn.running_var");
    theirs.push(("extra.weight".into(), HostTensor::scalar(1f32)));
    theirs[6].1 = HostTensor::zeros(DType::F32, [9]).unwrap();
    let map = small_map().conv("layer{i}.conv", "layer{i}/conv");
    let line = line!() - 1;
    let e = tensorpack::io::DictRestore::new(theirs).map(map).init(&session).unwrap_err();
    assert_eq!(e.kind(), tensorpack::ErrorKind::Name);
    let site = format!("layer{{i}}.conv at tests/torch_nets.rs:{line}");
    assert_mentions(
        e.to_string(),
        &[
            "tensors without a rule (1)",
            "extra.weight",
            "rules without a tensor (1)",
            &site,
            "bn/variance/EMA",
            "head/b is f32[9] in the source",
            "f32[4] in the graph",
        ],
    );
    assert_eq!(session.read("conv/W").unwrap(), before);
}

#[test]
fn only_and_except_select_variables() {
    for map in [small_map().only(["conv/.*", "bn/.*"]), small_map().except(["head/.*"])] {
        let (session, theirs) = small();
        let head = session.read("head/W").unwrap();
        tensorpack::io::DictRestore::new(theirs.clone()).map(map).init(&session).unwrap();
        assert_eq!(session.read("head/W").unwrap(), head);
        assert_eq!(session.read("bn/variance/EMA").unwrap(), theirs[4].1);
    }
    let (session, theirs) = small();
    let map = small_map().except(["haed/.*"]);
    let e = tensorpack::io::DictRestore::new(theirs).map(map).init(&session).unwrap_err();
    assert_mentions(e.to_string(), &["haed/.*", "matches no", "tests/torch_nets.rs"]);
}

#[test]
fn prefixes_and_dropped_tensors_do_not_reach_the_graph() {
    let (session, theirs) = small();
    let mut theirs: Vec<_> = theirs.into_iter().map(|(name, t)| (format!("module.{name}"), t)).collect();
    theirs.push(("module.anchors.3".into(), HostTensor::scalar(1f32)));
    let map = small_map().drop("anchors.{i}").strip_prefix("module.");
    tensorpack::io::DictRestore::new(theirs.clone()).map(map.clone()).init(&session).unwrap();
    let ours = map.import(theirs.clone()).unwrap();
    let back = map.export(ours).unwrap();
    for (name, tensor) in &back {
        assert!(theirs.contains(&(name.clone(), tensor.clone())), "{name}");
    }
    // All but the number of batches and the dropped tensor.
    assert_eq!(back.len(), theirs.len() - 2);
}

#[test]
fn a_rule_with_a_bad_template_is_an_error_with_its_line() {
    let map = WeightMap::new().linear("fc{i}", "fc");
    let e = map.import(vec![]).unwrap_err();
    assert_mentions(e.to_string(), &["fc{i}", "placeholders", "tests/torch_nets.rs"]);
}

#[test]
fn fused_columns_become_queries_keys_and_values() {
    let numbers = |sizes: &[usize], from: f32| {
        let n: usize = sizes.iter().product();
        HostTensor::new(sizes, (0..n).map(|i| from + i as f32).collect()).unwrap()
    };
    let layer = [
        ("ln_1.weight", numbers(&[2], 0.0)),
        ("attn.c_attn.weight", numbers(&[2, 6], 0.0)),
        ("attn.c_attn.bias", numbers(&[6], 0.0)),
        ("attn.c_proj.weight", numbers(&[2, 2], 0.0)),
        ("attn.c_proj.bias", numbers(&[2], 0.0)),
        ("attn.bias", numbers(&[1, 1, 4, 4], 0.0)),
        ("attn.masked_bias", numbers(&[], 0.0)),
        ("mlp.c_fc.weight", numbers(&[2, 8], 5.0)),
    ];
    let mut theirs: Vec<_> = layer.map(|(name, t)| (format!("h.0.{name}"), t)).into();
    theirs.extend(["wte", "wpe"].map(|name| (format!("{name}.weight"), numbers(&[3, 2], 9.0))));
    let ours = WeightMap::hf_gpt2().import(theirs.clone()).unwrap();
    let value = |name: &str| ours.iter().find(|(n, _)| n == name).unwrap().1.to_f64_vec();
    assert_eq!(value("h/0/attn/query/W"), [0.0, 1.0, 6.0, 7.0]);
    assert_eq!(value("h/0/attn/key/W"), [2.0, 3.0, 8.0, 9.0]);
    assert_eq!(value("h/0/attn/value/W"), [4.0, 5.0, 10.0, 11.0]);
    assert_eq!(value("h/0/attn/value/b"), [4.0, 5.0]);
    assert_eq!(value("h/0/mlp/c_fc/W")[..2], [5.0, 6.0]);
    // Back to the same tensors, but for the masks and the bias of the keys.
    let back = WeightMap::hf_gpt2().export(ours).unwrap();
    assert_eq!(back.len(), theirs.len() - 2);
    for (name, tensor) in back.iter().filter(|(name, _)| name != "h.0.attn.c_attn.bias") {
        assert!(theirs.contains(&(name.clone(), tensor.clone())), "{name}");
    }
}

#[test]
fn tensors_that_are_mapped_to_one_variable_are_errors() {
    let theirs = ["a.weight", "b.weight"]
        .map(|name| (name.to_string(), HostTensor::zeros(DType::F32, [2, 3]).unwrap()));
    let map = WeightMap::new().linear("a", "fc").linear("b", "fc");
    assert_mentions(map.import(theirs.into()).unwrap_err().to_string(), &["b.weight", "fc/W"]);
}
