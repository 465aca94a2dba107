//! Models with batch normalization folded into the weights before it: the same function, with less
//! arithmetic.

use serde_json::Value;
use std::path::Path;
use tensorpack::io::safetensors;
use tensorpack::predict::{Module, OnnxOptions};
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;
use tensorpack::tower::TowerFunc;

/// Returns a predictor of the named tensors of a net on images, with random values in all variables.
fn predictor(
    outputs: &[&str],
    build: impl Fn(&TowerContext, &Tensor) -> Tensor + 'static,
) -> OfflinePredictor {
    let image = TensorSpec::f32("image", [None, Some(8), Some(8), Some(3)]);
    let tower = TowerFunc::new(vec![image], move |t, x| vec![build(t, &x[0]).named("y")]).unwrap();
    let predictor = OfflinePredictor::new(PredictConfig::from_tower(tower, outputs.iter().copied())).unwrap();
    let session = predictor.session();
    for v in session.graph().variables() {
        let rng = CounterRng::new(7, &v.name);
        let n: usize = v.sizes.iter().product();
        // Variances are positive.
        let value = |i: u64| match v.name.contains("variance") {
            true => 0.1 + rng.normal(0, i).abs(),
            false => 0.5 * rng.normal(0, i),
        };
        let values: Vec<f64> = (0..n as u64).map(value).collect();
        session.write(&v.name, &HostTensor::from_f64(v.dtype, v.sizes.clone(), &values).unwrap()).unwrap();
    }
    predictor
}

fn images(n: usize) -> HostTensor {
    let rng = CounterRng::new(1, "image");
    HostTensor::new([n, 8, 8, 3], (0..n as u64 * 192).map(|i| rng.normal(0, i) as f32).collect()).unwrap()
}

/// Checks that the folded model computes the same, and returns it.
#[track_caller]
fn check(predictor: &OfflinePredictor) -> ExportedModel {
    let folded = predictor.folded().unwrap();
    for n in [1, 3] {
        let x = images(n);
        let (right, found) = (predictor.predict(&[&x]).unwrap(), folded.predict(&[&x]).unwrap());
        assert_eq!(right.len(), found.len());
        for (right, found) in right.iter().zip(&found) {
            assert_eq!((right.dtype(), right.sizes()), (found.dtype(), found.sizes()));
            let (right, found) = (right.to_f64_vec(), found.to_f64_vec());
            let largest = right.iter().fold(1e-6, |m: f64, v| m.max(v.abs()));
            let error = right.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(error <= 2e-5 * largest, "{error} of {largest}");
        }
    }
    folded
}

/// Returns the operations and the variables of an exported file.
fn contents(path: &Path) -> (Vec<String>, Vec<String>) {
    let (_, metadata) = safetensors::read_with_metadata(path).unwrap();
    let graph: Value = serde_json::from_str(&metadata["tensorpack.model"]).unwrap();
    let op = |o: &Value| match (o["op"].as_str().unwrap(), o["attributes"].as_str()) {
        ("Binary" | "Unary", Some(kind)) => kind.to_string(),
        (op, _) => op.to_string(),
    };
    let names = graph["variables"].as_array().unwrap().iter().map(|v| v.as_str().unwrap().to_string());
    (graph["operations"].as_array().unwrap().iter().map(op).collect(), names.collect())
}

fn exported(model: &ExportedModel) -> (Vec<String>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("net.safetensors");
    model.export(&path).unwrap();
    contents(&path)
}

fn count(operations: &[String], op: &str) -> usize {
    operations.iter().filter(|o| *o == op).count()
}

#[test]
fn batch_norm_after_all_kinds_of_layers_becomes_a_bias() {
    let predictor = predictor(&["y", "pooled"], |t, x| {
        let x = Conv2d::new(4, 3).no_bias().apply(t, "conv0", x);
        let x = BatchNorm::new().relu().apply(t, "bn0", &x);
        let y = Conv2d::new(4, 3).apply(t, "conv1", &x);
        let y = BatchNorm::new().no_center().relu().apply(t, "bn1", &y);
        let y = DepthwiseConv2d::new(3).apply(t, "conv2", &y);
        let y = BatchNorm::new().no_scale().apply(t, "bn2", &y);
        let pooled = (x + y).relu().global_average_pool().named("pooled");
        BatchNorm::new().apply(t, "bn3", &Linear::new(5).apply(t, "fc", &pooled))
    });
    let model = check(&predictor);
    let (operations, variables) = exported(&model);
    // Four biases and the sum of the residual block.
    assert_eq!([count(&operations, "Add"), count(&operations, "Sub"), count(&operations, "Mul")], [5, 0, 0]);
    assert_eq!(
        [count(&operations, "Conv2d"), count(&operations, "Depthwise"), count(&operations, "MatMul")],
        [2, 1, 1]
    );
    assert!(operations.iter().all(|o| !o.contains("sqrt")), "{operations:?}");
    let mut variables = variables;
    variables.sort();
    let names = ["conv0/W", "conv0/b", "conv1/W", "conv1/b", "conv2/W", "conv2/b", "fc/W", "fc/b"];
    assert_eq!(variables, names);
    // Folding again changes nothing.
    assert_eq!(exported(&model.folded().unwrap()).0, operations);
}

#[test]
fn folded_models_go_into_files_of_all_kinds() {
    let predictor = predictor(&["y"], |t, x| {
        let x = Conv2d::new(4, 3).no_bias().apply(t, "conv0", x);
        BatchNorm::new().relu().apply(t, "bn0", &x)
    });
    let model = check(&predictor.with_metadata("license", "MIT").unwrap());
    assert_eq!(model.metadata()["license"], "MIT");
    let dir = tempfile::tempdir().unwrap();
    let [path, onnx] = ["net.safetensors", "net.onnx"].map(|name| dir.path().join(name));
    let x = images(2);
    let right = model.predict(&[&x]).unwrap();
    model.export(&path).unwrap();
    assert_eq!(ExportedModel::load(&path).unwrap().predict(&[&x]).unwrap(), right);
    model.export_onnx(&onnx, &OnnxOptions::default()).unwrap();
    let bytes = std::fs::read(&onnx).unwrap();
    assert!(!bytes.windows(18).any(|w| w == b"BatchNormalization"));
    let again = ExportedModel::load(&onnx).unwrap().predict(&[&x]).unwrap();
    let close = |(a, b): (f64, f64)| (a - b).abs() < 1e-4;
    assert!(again[0].to_f64_vec().into_iter().zip(right[0].to_f64_vec()).all(close));
    // Weights that were trainable are trained as a part of another model; so is the new bias.
    let module = Module::load(&path).unwrap();
    let graph = Graph::new();
    let image = graph.placeholder(&TensorSpec::f32("image", [None, Some(8), Some(8), Some(3)]));
    let t = TowerContext::training(&graph);
    let cost = module.apply(&t, "features", &image).square().mean();
    let step = minimize(&cost, &Sgd::new(0.1)).unwrap();
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let read = || ["features/conv0/W", "features/conv0/b"].map(|name| session.read(name).unwrap());
    let before = read();
    session.run(&[&step], &[("image", &x)]).unwrap();
    assert!(read().iter().zip(&before).all(|(now, before)| now != before));
}

#[test]
fn nothing_is_folded_over_tensors_that_others_read() {
    // The sum of the outputs of a layer and of its batch norm.
    let residual = predictor(&["y"], |t, x| {
        let x = Conv2d::new(4, 3).no_bias().apply(t, "conv0", x);
        &BatchNorm::new().apply(t, "bn0", &x) + &x
    });
    assert_eq!(count(&exported(&check(&residual)).0, "Mul"), 2); // the scale, and its use
    // The output of the layer is wanted itself.
    let fetched = predictor(&["y", "before"], |t, x| {
        let x = Conv2d::new(4, 3).no_bias().apply(t, "conv0", x).named("before");
        BatchNorm::new().apply(t, "bn0", &x)
    });
    assert_eq!(count(&exported(&check(&fetched)).0, "Mul"), 2);
    // A tensor in the middle of batch norm is wanted: everything up to it is folded.
    let middle = predictor(&["y", "middle"], |t, x| {
        let x = Linear::new(4).apply(t, "fc", &x.global_average_pool());
        ((x * 3.0).named("middle") + 1.0) * 2.0
    });
    let (operations, _) = exported(&check(&middle));
    assert_eq!([count(&operations, "Mul"), count(&operations, "Add")], [1, 2]);
    // A square reads its input twice.
    let square = predictor(&["y"], |t, x| {
        let x = Conv2d::new(4, 3).no_bias().apply(t, "conv0", x);
        &x * &x
    });
    assert_eq!(count(&exported(&check(&square)).0, "Mul"), 1);
}

#[test]
fn nothing_else_than_scales_and_shifts_of_channels_is_folded() {
    let net = predictor(&["y"], |t, x| {
        // A map of positions, a division by the layer, a random shift, and a wider constant.
        let positions = HostTensor::new([8, 8, 1], (0..64).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
        let a = Conv2d::new(4, 3).no_bias().apply(t, "a", x) * t.graph().constant(positions);
        let b = 1.0 / Conv2d::new(4, 3).no_bias().apply(t, "b", x).square();
        let c = Conv2d::new(4, 3).no_bias().apply(t, "c", x);
        let batch = HostTensor::new([1, 1, 1, 1, 4], vec![2.0f32; 4]).unwrap();
        let d = Conv2d::new(4, 3).no_bias().apply(t, "d", x).reshape(&[1, -1, 8, 8, 4])
            * t.graph().constant(batch);
        (a + b * 0.001 + c.maximum(&(x.mean_axes(&[3]).expand_dims(3) * 2.0))) + d.reshape(&[-1, 8, 8, 4])
    });
    let mut before = contents_of(&net);
    let mut after = exported(&check(&net)).0;
    before.sort();
    after.sort();
    assert_eq!(after, before);
}

/// Returns the operations of a predictor.
fn contents_of(predictor: &OfflinePredictor) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("net.safetensors");
    predictor.export(&path).unwrap();
    contents(&path).0
}

#[test]
fn weights_that_layers_share_are_folded_for_each() {
    let net = predictor(&["y"], |t, x| {
        let w = t.variable(VariableSpec::new("W", [3, 3, 3, 4]).init(Init::zeros()));
        let one = x.conv2d(w.value(), Conv2dOptions::default());
        let two = (x * 0.5 + 0.1).conv2d(w.value(), Conv2dOptions::default());
        let [one, two] = [("bn0", one), ("bn1", two)].map(|(name, y)| BatchNorm::new().apply(t, name, &y));
        one * two
    });
    let (operations, variables) = exported(&check(&net));
    assert_eq!(count(&operations, "Conv2d"), 2);
    assert_eq!(variables.len(), 4, "{variables:?}");
}

#[test]
fn inputs_that_no_output_needs_stay() {
    let inputs = ["a", "b"].map(|name| TensorSpec::f32(name, [None, Some(3)]));
    let tower = TowerFunc::new(inputs.into(), |t, x| {
        vec![(Linear::new(2).apply(t, "fc", &x[1]) * 2.0).named("y"), (&x[0] * 2.0).named("z")]
    });
    let predictor = OfflinePredictor::new(PredictConfig::from_tower(tower.unwrap(), ["y"])).unwrap();
    let folded = predictor.folded().unwrap();
    assert_eq!(folded.inputs().iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    let x = HostTensor::new([1, 3], vec![1.0f32, -2.0, 0.5]).unwrap();
    let [right, found] = [predictor.predict(&[&x, &x]), folded.predict(&[&x, &x])].map(Result::unwrap);
    assert_eq!(found, right); // a factor of 2 is exact
}

/// Random chains of scales and shifts, with single values and with one per channel.
#[test]
fn random_chains_are_one_scale_and_one_shift() {
    for seed in 0..20u64 {
        let net = predictor(&["y"], move |t, x| {
            let rng = CounterRng::new(seed, "chain");
            let mut y = match seed % 3 {
                0 => Conv2d::new(4, 3).apply(t, "conv", x),
                1 => DepthwiseConv2d::new(3).apply(t, "conv", x),
                _ => Linear::new(4).last_axis().apply(t, "fc", x),
            };
            let channels = y.shape()[3].known().unwrap();
            for i in 0..2 + rng.word(0, 99) as u64 % 6 {
                let size = if rng.word(1, i).is_multiple_of(2) { 1 } else { channels };
                let values: Vec<f32> =
                    (0..size as u64).map(|k| 0.5 + (rng.normal(2 + i, k) as f32).abs()).collect();
                let sizes = [vec![], vec![size], vec![1, 1, 1, size]][rng.word(3, i) as usize % 3].clone();
                let values = if sizes.is_empty() { values[..1].to_vec() } else { values };
                let k = t.graph().constant(HostTensor::new(sizes, values).unwrap());
                y = match rng.word(4, i) % 7 {
                    0 => y + k,
                    1 => k + y,
                    2 => y - k,
                    3 => k - y,
                    4 => y * k,
                    5 => k * y,
                    _ => y / k,
                };
            }
            y.tanh()
        });
        let (operations, _) = exported(&check(&net));
        let arithmetic: usize = ["Add", "Sub", "Mul", "Div"].iter().map(|op| count(&operations, op)).sum();
        assert!(arithmetic <= 1, "seed {seed}: {operations:?}");
    }
}
