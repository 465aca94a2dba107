//! Weights of PyTorch's nets, loaded through weight maps into the same nets built here: the outputs
//! agree.

use std::path::Path;
use std::process::Command;
use tensorpack::graph::VariableSpec;
use tensorpack::io::{SaverRestore, SessionInit, WeightMap, export_variables, pytorch, safetensors};
use tensorpack::nn::Activation;
use tensorpack::ops::{Padding, PoolOptions};
use tensorpack::prelude::*;
use tensorpack_testing::{assert_mentions, opted_in};

/// The padding that PyTorch calls `padding=n`.
fn pad(n: usize) -> Padding {
    Padding::Explicit([[n, n]; 2])
}

fn conv(channels: usize, kernel: usize, stride: usize) -> Conv2d {
    Conv2d::new(channels, kernel).stride(stride).padding(pad(kernel / 2)).no_bias()
}

/// torchvision's `BasicBlock`.
fn basic_block(t: &TowerContext, name: &str, x: &Tensor, channels: usize, stride: usize) -> Tensor {
    t.scope(name, |t| {
        let y = BatchNorm::new().relu().apply(t, "bn1", &conv(channels, 3, stride).apply(t, "conv1", x));
        let y = BatchNorm::new().apply(t, "bn2", &conv(channels, 3, 1).apply(t, "conv2", &y));
        let shortcut = match stride {
            1 => x.clone(),
            _ => t.scope("downsample", |t| {
                BatchNorm::new().apply(t, "bn", &conv(channels, 1, stride).apply(t, "conv", x))
            }),
        };
        (y + shortcut).relu()
    })
}

fn resnet18(t: &TowerContext, x: &Tensor) -> Tensor {
    let x = BatchNorm::new().relu().apply(t, "bn1", &conv(64, 7, 2).apply(t, "conv1", x));
    let pool = PoolOptions { stride: [2; 2], padding: pad(1), ..PoolOptions::square(3) };
    let mut x = x.max_pool_with(pool);
    for (g, channels) in [(1, 64), (2, 128), (3, 256), (4, 512)] {
        let stride = if g == 1 { 1 } else { 2 };
        x = basic_block(t, &format!("layer{g}/0"), &x, channels, stride);
        x = basic_block(t, &format!("layer{g}/1"), &x, channels, 1);
    }
    Linear::new(1000).apply(t, "fc", &x.global_average_pool())
}

/// torchvision's `Conv2dNormActivation`: `name/0` is the convolution and `name/1` its normalization.
fn conv_norm_relu6(t: &TowerContext, name: &str, apply: impl FnOnce(&TowerContext) -> Tensor) -> Tensor {
    t.scope(name, |t| BatchNorm::new().activation(Activation::Relu6).apply(t, "1", &apply(t)))
}

/// torchvision's `InvertedResidual`.
fn inverted_residual(
    t: &TowerContext,
    x: &Tensor,
    [inputs, channels]: [usize; 2],
    expansion: usize,
    stride: usize,
) -> Tensor {
    let (mut y, mut layer) = (x.clone(), 0);
    if expansion != 1 {
        y = conv_norm_relu6(t, "0", |t| conv(inputs * expansion, 1, 1).apply(t, "0", &y));
        layer = 1;
    }
    let depthwise = DepthwiseConv2d::new(3).stride(stride).padding(pad(1)).no_bias();
    y = conv_norm_relu6(t, &layer.to_string(), |t| depthwise.apply(t, "0", &y));
    y = conv(channels, 1, 1).apply(t, &(layer + 1).to_string(), &y);
    y = BatchNorm::new().apply(t, &(layer + 2).to_string(), &y);
    if stride == 1 && inputs == channels { x + y } else { y }
}

fn mobilenet_v2(t: &TowerContext, x: &Tensor) -> Tensor {
    let mut x = conv_norm_relu6(t, "features/0", |t| conv(32, 3, 2).apply(t, "0", x));
    let (mut inputs, mut index) = (32, 1);
    let stages = [
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ];
    for (expansion, channels, count, stride) in stages {
        for i in 0..count {
            let stride = if i == 0 { stride } else { 1 };
            x = t.scope(&format!("features/{index}/conv"), |t| {
                inverted_residual(t, &x, [inputs, channels], expansion, stride)
            });
            (inputs, index) = (channels, index + 1);
        }
    }
    let x = conv_norm_relu6(t, "features/18", |t| conv(1280, 1, 1).apply(t, "0", &x));
    t.scope("classifier", |t| Linear::new(1000).apply(t, "1", &x.global_average_pool()))
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

fn timm_vit(t: &TowerContext, x: &Tensor) -> Tensor {
    let norm = LayerNorm::new().last_axis().epsilon(1e-6);
    let patches = Conv2d::new(16, 8).stride(8).padding(Padding::Valid).apply(t, "patch_embed/proj", x);
    let patches = patches.reshape(&[-1, 16, 16]);
    let class = t.variable(VariableSpec::new("cls_token", [1, 1, 16])).broadcast_to(&[2, 1, 16]);
    let position = t.variable(VariableSpec::new("pos_embed", [1, 17, 16]));
    let mut x = x.graph().concat(&[class, patches], 1) + position.value();
    for i in 0..2 {
        x = t.scope(&format!("blocks/{i}"), |t| {
            let x = &x + MultiHeadAttention::new(2).apply(t, "attn", &norm.apply(t, "norm1", &x));
            let hidden = Linear::new(64).last_axis().activation(Activation::Gelu);
            let y = hidden.apply(t, "mlp/fc1", &norm.apply(t, "norm2", &x));
            &x + Linear::new(16).last_axis().apply(t, "mlp/fc2", &y)
        });
    }
    let class =
        norm.apply(t, "norm", &x).strided_slice(&[0, 0, 0], &[None, Some(1), None], &[1, 1, 1]).squeeze(1);
    Linear::new(5).apply(t, "head", &class)
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

type Net = fn(&TowerContext, &Tensor) -> Tensor;

fn session(net: Net, sizes: &[usize]) -> (Session, Tensor) {
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
fn python(script: &str, arguments: &[&Path]) -> bool {
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
        ("resnet18", resnet18, WeightMap::torchvision_resnet()),
        ("mobilenet_v2", mobilenet_v2, WeightMap::torchvision_mobilenet_v2()),
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
    ];
    for (name, net, map) in nets {
        let values = pytorch::read(dir.path().join(format!("{name}-values.pt"))).unwrap();
        let value = |name: &str| &values.iter().find(|(n, _)| n == name).unwrap().1;
        let (session, y) = session(net, value("x").sizes());
        let weights = dir.path().join(format!("{name}.pth"));
        SaverRestore::new(&weights).map(map.clone()).init(&session).unwrap();
        let error = largest_error(&run(&session, &y, value("x")), value("y"));
        println!("{name}: largest error relative to the largest output {error:.1e}");
        assert!(error < 1e-4, "{name}: {error}");
        // Exported weights are imported as the same variables.
        let exported = dir.path().join(format!("{name}.safetensors"));
        export_variables(&session, &map, &exported).unwrap();
        for (name, tensor) in map.import(safetensors::read(&exported).unwrap()).unwrap() {
            assert_eq!(tensor, session.read(&name).unwrap(), "{name}");
        }
    }
    // PyTorch loads them, strictly, and computes the same.
    let values = dir.path().join("resnet18-values.pt");
    assert!(python("read_exported.py", &[&dir.path().join("resnet18.safetensors"), &values]));
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
fn tensors_that_are_mapped_to_one_variable_are_errors() {
    let theirs = ["a.weight", "b.weight"]
        .map(|name| (name.to_string(), HostTensor::zeros(DType::F32, [2, 3]).unwrap()));
    let map = WeightMap::new().linear("a", "fc").linear("b", "fc");
    assert_mentions(map.import(theirs.into()).unwrap_err().to_string(), &["b.weight", "fc/W"]);
}
