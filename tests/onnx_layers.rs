//! Every layer as an ONNX file: read back, folded and run by onnxruntime, it computes the same.

use super::onnx_models::{python, relative_error};
use std::collections::BTreeSet;
use std::path::Path;
use tensorpack::io::write_tensors;
use tensorpack::predict::OnnxOptions;
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;
use tensorpack::tower::TowerFunc;
use tensorpack_testing::opted_in;

/// The sizes of one example.
const FEATURES: &[usize] = &[6];
const SEQUENCE: &[usize] = &[5, 4];
const IMAGE: &[usize] = &[9, 8, 4];
const CHANNELS_FIRST: &[usize] = &[4, 9, 8];
const VOLUME: &[usize] = &[4, 6, 5, 4];

type Apply = fn(&TowerContext, &Tensor) -> Tensor;

/// Names that begin with that of the layer, the sizes of an example, and the layers.
const LAYERS: &[(&str, &[usize], Apply)] = &[
    ("Linear", FEATURES, |t, x| Linear::new(3).apply(t, "layer", x)),
    ("Linear of an image", IMAGE, |t, x| Linear::new(3).no_bias().apply(t, "layer", x)),
    ("Linear of the last axis", SEQUENCE, |t, x| {
        Linear::new(3).last_axis().activation(Activation::Silu).apply(t, "layer", x)
    }),
    ("Conv2d", IMAGE, |t, x| Conv2d::new(3, 3).apply(t, "layer", x)),
    ("Conv2d of stride 2", IMAGE, |t, x| Conv2d::new(3, 3).stride(2).relu().apply(t, "layer", x)),
    ("Conv2d with explicit padding", IMAGE, |t, x| {
        Conv2d::new(3, 3)
            .stride(2)
            .padding(Padding::Explicit([[1, 0], [2, 1]]))
            .no_bias()
            .apply(t, "layer", x)
    }),
    ("Conv2d with groups", IMAGE, |t, x| {
        Conv2d::new(6, 3).groups(2).dilation(2).padding(Padding::Valid).apply(t, "layer", x)
    }),
    ("Conv2d with channels first", CHANNELS_FIRST, |t, x| {
        let x = Conv2d::new(8, 3).kernel(3, 2).layout(Layout::Nchw).no_bias().apply(t, "layer", x);
        BatchNorm::new().layout(Layout::Nchw).relu().apply(t, "norm", &x)
    }),
    // As many channels as columns: a shift of channels must not become one of columns.
    ("Conv2d with as many channels as columns", CHANNELS_FIRST, |t, x| {
        let x = Conv2d::new(8, 3).layout(Layout::Nchw).no_bias().apply(t, "layer", x);
        let columns = t.variable(VariableSpec::new("columns", [8]));
        x * columns.value()
    }),
    ("DepthwiseConv2d", IMAGE, |t, x| DepthwiseConv2d::new(3).apply(t, "layer", x)),
    ("DepthwiseConv2d with a multiplier", IMAGE, |t, x| {
        let x = DepthwiseConv2d::new(3).multiplier(2).stride(2).no_bias().apply(t, "layer", x);
        BatchNorm::new().apply(t, "norm", &x)
    }),
    ("Conv2dTranspose", IMAGE, |t, x| Conv2dTranspose::new(3, 4).stride(2).apply(t, "layer", x)),
    ("Conv2dTranspose without padding", IMAGE, |t, x| {
        let x = Conv2dTranspose::new(3, 3).stride(2).padding(Padding::Valid).no_bias().apply(t, "layer", x);
        BatchNorm::new().relu().apply(t, "norm", &x)
    }),
    ("Conv1d", SEQUENCE, |t, x| Conv1d::new(3, 3).stride(2).apply(t, "layer", x)),
    ("Conv1d that is causal", SEQUENCE, |t, x| {
        let x = Conv1d::new(4, 2).dilation(2).causal().groups(2).apply(t, "layer", x);
        BatchNorm::new().apply(t, "norm", &x)
    }),
    ("Conv3d", VOLUME, |t, x| Conv3d::new(3, 3).stride(2).apply(t, "layer", x)),
    ("BatchNorm", FEATURES, |t, x| BatchNorm::new().apply(t, "layer", x)),
    ("BatchNorm of an image", IMAGE, |t, x| {
        BatchNorm::new().epsilon(1e-3).no_scale().relu().apply(t, "layer", x)
    }),
    ("BatchNorm after a concatenation", IMAGE, |t, x| {
        let [a, b] = ["a", "b"].map(|name| Conv2d::new(3, 3).no_bias().apply(t, name, x));
        BatchNorm::new().relu().apply(t, "layer", &t.graph().concat(&[a, b], 3))
    }),
    ("BatchNorm of a layer that is used twice", IMAGE, |t, x| {
        let conv = Conv2d::new(4, 3).no_bias();
        let first = BatchNorm::new().apply(t, "layer", &conv.apply(t, "conv", x));
        let second = t.reuse(|t| conv.apply(t, "conv", &first));
        BatchNorm::new().apply(t, "norm1", &second) + first
    }),
    ("BatchRenorm", IMAGE, |t, x| BatchRenorm::new(2.0, 1.0).apply(t, "layer", x)),
    ("LayerNorm", IMAGE, |t, x| LayerNorm::new().apply(t, "layer", x)),
    ("LayerNorm of the last axis", SEQUENCE, |t, x| {
        LayerNorm::new().last_axis().no_center().apply(t, "layer", x)
    }),
    ("InstanceNorm", IMAGE, |t, x| InstanceNorm::new().apply(t, "layer", x)),
    ("InstanceNorm with channels first", CHANNELS_FIRST, |t, x| {
        InstanceNorm::new().layout(Layout::Nchw).apply(t, "layer", x)
    }),
    ("GroupNorm", IMAGE, |t, x| GroupNorm::new(2).apply(t, "layer", x)),
    ("Dropout", FEATURES, |t, x| Dropout::new(0.5).apply(t, "layer", &x.relu())),
    ("Embedding", FEATURES, |t, x| {
        Embedding::new(5, 3).apply(t, "layer", &x.abs().clip(0.0, 4.0).cast(DType::I32))
    }),
    ("Lstm", SEQUENCE, |t, x| Lstm::new(3).apply(t, "layer", x, None).0),
    ("LstmCell", FEATURES, |t, x| LstmCell::new(3).step(t, "layer", x, None).h),
    ("Gru", SEQUENCE, |t, x| Gru::new(3).apply(t, "layer", x, None).0),
    ("Gru that runs backwards", SEQUENCE, |t, x| {
        let lengths = x.sum_axes(&[1, 2]).abs().clip(0.0, 5.0).cast(DType::I32);
        let options = RecurrentOptions::default().lengths(&lengths).reverse();
        Gru::new(3).apply_with(t, "layer", x, None, &options).0
    }),
    ("GruCell", FEATURES, |t, x| GruCell::new(3).step(t, "layer", x, None)),
    ("MultiHeadAttention", SEQUENCE, |t, x| MultiHeadAttention::new(2).causal().apply(t, "layer", x)),
    ("MultiHeadAttention with rotation", SEQUENCE, |t, x| {
        MultiHeadAttention::new(2).kv_heads(1).rotary(100.0).apply(t, "layer", x)
    }),
    ("PRelu", IMAGE, |t, x| PRelu::new().apply(t, "layer", x)),
    ("Maxout", IMAGE, |t, x| Maxout::new(2).apply(t, "layer", x)),
    ("max_pool", IMAGE, |_, x| x.max_pool(2)),
    ("average_pool with padding", IMAGE, |_, x| {
        let (window, stride, padding, layout) = ([3, 3], [2, 2], Padding::Same, Layout::Nhwc);
        let window = PoolOptions { window, stride, padding, layout };
        x.average_pool_with(window) + x.max_pool_with(window)
    }),
    ("unpool_zeros", IMAGE, |_, x| x.unpool_zeros(2)),
];

/// Returns a predictor of a layer for batches of any size, with random values in all variables.
fn predictor(sizes: &[usize], apply: Apply) -> OfflinePredictor {
    let dims: Vec<Option<usize>> = std::iter::once(None).chain(sizes.iter().map(|&n| Some(n))).collect();
    let x = TensorSpec::f32("x", dims);
    let tower = TowerFunc::new(vec![x], move |t, x| vec![apply(t, &x[0]).named("y")]).unwrap();
    let predictor = OfflinePredictor::new(PredictConfig::from_tower(tower, ["y"])).unwrap();
    for v in predictor.session().graph().variables() {
        let rng = CounterRng::new(7, &v.name);
        // Variances are positive.
        let value = |i: u64| match v.name.contains("variance") {
            true => 0.1 + rng.normal(0, i).abs(),
            false => 0.5 * rng.normal(0, i),
        };
        let values: Vec<f64> = (0..v.sizes.iter().product::<usize>() as u64).map(value).collect();
        let value = HostTensor::from_f64(v.dtype, v.sizes.clone(), &values).unwrap();
        predictor.session().write(&v.name, &value).unwrap();
    }
    predictor
}

fn batch(n: usize, sizes: &[usize]) -> HostTensor {
    let (rng, sizes) = (CounterRng::new(1, "x"), [&[n], sizes].concat());
    let values = (0..sizes.iter().product::<usize>() as u64).map(|i| 2.0 * rng.normal(0, i) as f32);
    HostTensor::new(sizes, values.collect::<Vec<f32>>()).unwrap()
}

fn compare(what: &str, found: &HostTensor, wanted: &HostTensor) {
    assert_eq!((found.dtype(), found.sizes()), (wanted.dtype(), wanted.sizes()), "{what}");
    let error = relative_error(found, wanted);
    assert!(error < 1e-5, "{what}: {error:.1e}");
}

#[test]
fn every_layer_survives_a_round_trip() {
    let dir = tempfile::tempdir().unwrap();
    for (i, &(name, sizes, apply)) in LAYERS.iter().enumerate() {
        let original = predictor(sizes, apply);
        let path = dir.path().join(format!("{i}.onnx"));
        original.export_onnx(&path, &OnnxOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let read = ExportedModel::load(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
        for n in [3, 1] {
            let x = batch(n, sizes);
            let wanted = original.predict(&[&x]).unwrap().remove(0);
            compare(name, &read.predict(&[&x]).unwrap()[0], &wanted);
            compare(
                &format!("{name}, folded"),
                &original.folded().unwrap().predict(&[&x]).unwrap()[0],
                &wanted,
            );
            compare(
                &format!("{name}, read and folded"),
                &read.folded().unwrap().predict(&[&x]).unwrap()[0],
                &wanted,
            );
        }
        let x = batch(2, sizes);
        let y = original.predict(&[&x]).unwrap().remove(0);
        let values = [("in:x".to_string(), x), ("out:y".to_string(), y)];
        write_tensors(path.with_extension("npz"), &values).unwrap();
    }
    if opted_in("TENSORPACK_ONNXRUNTIME") {
        python("TENSORPACK_ONNXRUNTIME", "check_models.py", &[dir.path()]);
    }
}

/// The layers of the library, from the table in its docs.
#[test]
fn all_layers_are_tested() {
    let docs = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/layers.md")).unwrap();
    let table = docs.split("## Available layers").nth(1).unwrap().split("\n\nLayers without").next().unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let names: BTreeSet<&str> =
        rows.map(|row| row.trim_start_matches("| `").split("::new").next().unwrap()).collect();
    assert!(names.len() > 15, "{names:?}");
    let is_tested = |name: &&str| LAYERS.iter().any(|(tested, ..)| tested.split(' ').next() == Some(name));
    assert_eq!(names.iter().filter(|name| !is_tested(name)).collect::<Vec<_>>(), Vec::<&&str>::new());
}

/// In 16 bits a mask must not become the lowest f32, which is minus infinity there.
#[test]
fn attention_in_16_bits_is_zero_where_all_keys_are_masked() {
    let dir = tempfile::tempdir().unwrap();
    let (x, lengths) = (batch(3, SEQUENCE), HostTensor::new([3], vec![0i32, 2, 5]).unwrap());
    for precision in [Precision::Bf16, Precision::F16] {
        let specs = vec![TensorSpec::f32("x", [None, Some(5), Some(4)]), TensorSpec::i32("lengths", [None])];
        let tower = TowerFunc::new(specs, |_, inputs| {
            let x = inputs[0].expand_dims(2);
            let options = AttentionOptions::default().lengths(&inputs[1]);
            vec![x.attention(&x, &x, &options).cast(DType::F32).named("y")]
        });
        let config = PredictConfig::from_tower(tower.unwrap(), ["y"]).precision(precision);
        let original = OfflinePredictor::new(config).unwrap();
        let path = dir.path().join(format!("{precision}.onnx"));
        original.export_onnx(&path, &OnnxOptions::default()).unwrap();
        let read = ExportedModel::load(&path).unwrap().predict(&[&x, &lengths]).unwrap().remove(0);
        let wanted = original.predict(&[&x, &lengths]).unwrap().remove(0);
        assert!(read.to_f64_vec()[..20].iter().all(|y| *y == 0.0), "{precision}: {read:?}");
        let error = relative_error(&read, &wanted);
        assert!(error < 0.02, "{precision}: {error:.1e}");
    }
}
