//! Models whose large layers multiply 8-bit integers.

use tensorpack::ErrorKind;
use tensorpack::dataflow::FromList;
use tensorpack::io::safetensors;
use tensorpack::predict::OnnxOptions;
use tensorpack::prelude::*;
use tensorpack::runtime::SessionOptions;
use tensorpack::runtime::cpu::Isa;
use tensorpack::tensor::CounterRng;
use tensorpack::tower::TowerFunc;
use tensorpack_testing::assert_mentions;

/// Returns a predictor of a net on images, with random values in all variables.
fn predictor(
    options: SessionOptions,
    build: impl Fn(&TowerContext, &Tensor) -> Tensor + 'static,
) -> OfflinePredictor {
    let image = TensorSpec::f32("x", [None, Some(8), Some(8), Some(8)]);
    let tower = TowerFunc::new(vec![image], move |t, x| vec![build(t, &x[0]).named("y")]).unwrap();
    let predictor = OfflinePredictor::new(PredictConfig::from_tower(tower, ["y"]).session(options)).unwrap();
    let session = predictor.session();
    for v in session.graph().variables() {
        let rng = CounterRng::new(7, &v.name);
        let value =
            |i| if v.name.ends_with("variance/EMA") { 0.5 + rng.uniform(0, i) } else { rng.normal(0, i) };
        let values: Vec<f64> = (0..v.sizes.iter().product::<usize>() as u64).map(value).collect();
        session.write(&v.name, &HostTensor::from_f64(v.dtype, v.sizes.clone(), &values).unwrap()).unwrap();
    }
    predictor
}

fn images(n: usize) -> HostTensor {
    let rng = CounterRng::new(1, "image");
    // The images have different scales, and so do their channels.
    let value = |i: u64| rng.normal(0, i) * 10f64.powi((i / 512) as i32 % 5 - 2) * (1 + i % 8) as f64;
    HostTensor::new([n, 8, 8, 8], (0..n as u64 * 512).map(|i| value(i) as f32).collect()).unwrap()
}

/// Every output is within the stated bound: terms times largest weight of the channel times largest
/// activation of the row or image, over 126.
#[test]
fn layers_are_within_the_stated_bound() {
    type Layer = fn(&TowerContext, &Tensor) -> Tensor;
    let layers: [(Layer, usize); 3] = [
        (|t, x| Conv2d::new(24, 3).no_bias().apply(t, "layer", x), 72),
        (|t, x| Conv2d::new(32, 2).stride(2).no_bias().apply(t, "layer", x), 32),
        (|t, x| Linear::new(40).no_bias().apply(t, "layer", x), 512),
    ];
    for (layer, terms) in layers {
        let predictor = predictor(SessionOptions::default(), layer);
        let model = predictor.int8().unwrap();
        let x = images(5);
        let (right, found) = (predictor.predict(&[&x]).unwrap(), model.predict(&[&x]).unwrap());
        assert_eq!((right[0].dtype(), right[0].sizes()), (found[0].dtype(), found[0].sizes()));
        let channels = *right[0].sizes().last().unwrap();
        let weights = predictor.session().read("layer/W").unwrap().to_f64_vec();
        let mut largest = vec![0.0f64; channels];
        weights
            .iter()
            .enumerate()
            .for_each(|(i, w)| largest[i % channels] = largest[i % channels].max(w.abs()));
        let (x, right, found) = (x.to_f64_vec(), right[0].to_f64_vec(), found[0].to_f64_vec());
        let each = right.len() / 5;
        let mut used = 0.0f64;
        for (i, (right, found)) in right.iter().zip(&found).enumerate() {
            let image = &x[i / each * 512..][..512];
            let activation = image.iter().fold(0.0f64, |m, v| m.max(v.abs()));
            let bound = terms as f64 * largest[i % channels] * activation / 126.0;
            used = used.max((right - found).abs() / bound);
        }
        assert!(used > 1e-4 && used <= 1.0, "{terms} terms: an error of {used} of the bound");
        // Errors cancel out.
        assert!(used < 0.25, "{terms} terms: an error of {used} of the bound");
    }
}

/// A net of all kinds of layers: those named `f32` stay as they are.
fn net(t: &TowerContext, x: &Tensor) -> Tensor {
    let y = Conv2d::new(16, 3).relu().apply(t, "conv", x);
    let y = Conv2d::new(32, 1).no_bias().apply(t, "conv_bn", &y);
    let y = BatchNorm::new().relu().apply(t, "bn", &y).max_pool(2);
    let y = Conv2d::new(32, 3).groups(32).apply(t, "f32_depthwise", &y);
    let y = Linear::new(66).relu().apply(t, "fc", &y);
    let y = Linear::new(48).relu().apply(t, "f32_groups", &y);
    Linear::new(10).apply(t, "f32_few", &y)
}

#[test]
fn every_instruction_set_and_number_of_threads_gives_the_same_bits() {
    let layers = |t: &TowerContext, x: &Tensor| {
        let y = Conv2d::new(32, 3).relu().apply(t, "conv", x);
        Linear::new(64).relu().apply(t, "fc", &Conv2d::new(20, 3).stride(2).apply(t, "conv1", &y))
    };
    let mut all = Vec::new();
    for isa in Isa::available() {
        for threads in [1, 2] {
            let options =
                SessionOptions { isa: Some(isa), threads: Some(threads), ..SessionOptions::default() };
            let model = predictor(options, layers).int8().unwrap();
            all.push((isa, threads, model.predict(&[&images(3)]).unwrap()));
        }
    }
    for (isa, threads, found) in &all {
        assert_eq!(found, &all[0].2, "{isa} with {threads} threads");
    }
}

#[test]
fn large_layers_are_replaced_and_the_model_can_be_exported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("net.safetensors");
    let model = predictor(SessionOptions::default(), net).folded().unwrap().int8().unwrap();
    model.export(&path).unwrap();
    let tensors = safetensors::read(&path).unwrap();
    let bytes: Vec<&str> =
        tensors.iter().filter(|(_, t)| t.dtype() == DType::U8).map(|(name, _)| name.as_str()).collect();
    let mut sorted = bytes.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, ["conv/W", "fc/W"], "the sums of conv_bn have 16 terms");
    let x = images(2);
    let right = model.predict(&[&x]).unwrap();
    assert_eq!(ExportedModel::load(&path).unwrap().predict(&[&x]).unwrap(), right);
    let e = model.export_onnx(dir.path().join("net.onnx"), &OnnxOptions::default()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert_mentions(&e, &["Int8Conv2d", "Int8MatMul", "without int8()"]);
    // Nothing is left to replace.
    assert_eq!(model.int8().unwrap().predict(&[&x]).unwrap(), right);
}

#[test]
fn zeros_and_no_rows() {
    let model = predictor(SessionOptions::default(), |t, x| Linear::new(32).no_bias().apply(t, "fc", x))
        .int8()
        .unwrap();
    let zeros = HostTensor::zeros(DType::F32, [1, 8, 8, 8]).unwrap();
    assert!(model.predict(&[&zeros]).unwrap()[0].to_f64_vec().iter().all(|v| *v == 0.0));
    let none = HostTensor::zeros(DType::F32, [0, 8, 8, 8]).unwrap();
    assert_eq!(model.predict(&[&none]).unwrap()[0].sizes(), [0, 32]);
}

/// Noisy patterns of ten classes.
#[derive(Clone, Copy)]
struct Patterns;

impl ModelDesc for Patterns {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("image", [None, Some(8), Some(8), Some(4)]), TensorSpec::i32("label", [None])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let x = Conv2d::new(32, 3).relu().apply(t, "conv0", &inputs[0]).max_pool(2);
        let x = Conv2d::new(32, 3).relu().apply(t, "conv1", &x).max_pool(2);
        let x = Linear::new(64).relu().apply(t, "fc0", &x);
        let logits = Linear::new(10).apply(t, "fc1", &x).named("logits");
        logits.sparse_softmax_cross_entropy(&inputs[1]).mean()
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(2e-3).boxed()
    }
}

/// Returns images and labels.
fn examples(n: u64, stream: &str) -> Vec<HostTensor> {
    let (pattern, noise) = (CounterRng::new(3, "pattern"), CounterRng::new(3, stream));
    let label = |i: u64| (noise.uniform(1, i) * 10.0) as u64;
    let pixel = |i: u64| pattern.normal(0, label(i / 256) * 256 + i % 256) * 0.4 + noise.normal(0, i);
    let images: Vec<f32> = (0..n * 256).map(|i| pixel(i) as f32).collect();
    let labels: Vec<i32> = (0..n).map(|i| label(i) as i32).collect();
    vec![
        HostTensor::new([n as usize, 8, 8, 4], images).unwrap(),
        HostTensor::new([n as usize], labels).unwrap(),
    ]
}

/// The error rate of a trained net changes by less than half a percentage point.
#[test]
fn a_trained_net_stays_as_good() {
    let batches = (0..60).map(|i| examples(64, &format!("train{i}"))).collect();
    let dir = tempfile::tempdir().unwrap();
    let config = TrainConfig::new(Patterns, FromList::new(batches)).logdir(dir.path()).max_epoch(2);
    let trained = launch_train_with_config(config, SimpleTrainer::new()).unwrap();
    let predictor = trained.get_predictor(&["image"], &["logits"]).unwrap();
    let model = predictor.int8().unwrap();
    let test = examples(8000, "test");
    let labels = test[1].to_f64_vec();
    let classes = |logits: Vec<HostTensor>| -> Vec<usize> {
        let values = logits[0].to_f64_vec();
        let best = |row: &[f64]| (0..10).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
        values.chunks(10).map(best).collect()
    };
    let wrong = |classes: &[usize]| classes.iter().zip(&labels).filter(|(c, l)| **c as f64 != **l).count();
    let right = classes(predictor.predict(&[&test[0]]).unwrap());
    let found = classes(model.predict(&[&test[0]]).unwrap());
    let differ = right.iter().zip(&found).filter(|(a, b)| a != b).count();
    let (before, after) = (wrong(&right), wrong(&found));
    assert!((80..2400).contains(&before), "{before} of 8000 are wrong: too easy or too hard to see a change");
    assert!(before.abs_diff(after) < 40, "{before} of 8000 are wrong in f32, {after} in int8");
    assert!(differ < 160, "{differ} of 8000 predictions differ");
}
