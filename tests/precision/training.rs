//! Training in every precision.

use crate::layers::narrow::most_layers;
use tensorpack::ErrorKind;
use tensorpack::prelude::*;

fn cost(t: &TowerContext, image: &Tensor, label: &Tensor) -> Tensor {
    most_layers(t, image).sparse_softmax_cross_entropy(label).mean()
}

/// Returns the costs of 30 steps on the same images.
fn costs(precision: Precision, options: SessionOptions) -> Vec<f64> {
    let graph = Graph::new();
    graph.set_precision(precision);
    let image = graph.placeholder(&TensorSpec::f32("image", [None, Some(8), Some(8), Some(3)]));
    let label = graph.placeholder(&TensorSpec::i32("label", [None]));
    let cost = TowerContext::training(&graph).build(|t| cost(t, &image, &label));
    assert_eq!(cost.dtype(), DType::F32);
    let train = minimize(&cost, &Adam::new(3e-3)).unwrap();
    let session = Session::with(graph.freeze().unwrap(), options).unwrap();
    for v in session.graph().variables() {
        assert!(!v.dtype.is_narrow_float(), "{}", v.name);
    }
    let images = (0..24 * 192).map(|i| (i as f32 * 0.37).sin() + (i / 192 % 3) as f32).collect();
    let images = HostTensor::new([24, 8, 8, 3], images).unwrap();
    let labels = HostTensor::new([24], (0..24).map(|i| i % 3).collect::<Vec<i32>>()).unwrap();
    let step = || session.run(&[&cost, &train], &[("image", &images), ("label", &labels)]);
    let mut costs = Vec::new();
    // In f16 the first steps may overflow, until the loss scale is small enough.
    let mut overflows = 0;
    while costs.len() < 30 {
        match step() {
            Err(e) if e.kind() == ErrorKind::Overflow && overflows < 8 => overflows += 1,
            values => costs.push(values.unwrap()[0].to_scalar().unwrap()),
        }
    }
    assert_eq!(overflows > 0, precision == Precision::F16);
    costs
}

/// The relative error of a bf16 product is at most 2^-8, and that of f16 2^-11. With a cost of about
/// 1, the costs of two runs therefore stay within a few hundredths or thousandths of each other.
fn check(device: Device) {
    let options = || SessionOptions { device, ..SessionOptions::default() };
    let wide = costs(Precision::F32, options());
    assert!(wide[29] < 0.5 * wide[0], "{wide:?}");
    assert_eq!(costs(Precision::Tf32, options()), wide);
    for (precision, tolerance) in [(Precision::Bf16, 0.05), (Precision::F16, 0.01)] {
        let narrow = costs(precision, options());
        for (i, (n, w)) in narrow.iter().zip(&wide).enumerate() {
            assert!((n - w).abs() < tolerance, "step {i}: {n} in {precision}, {w} in f32");
        }
        assert_ne!(narrow, wide);
    }
}

#[test]
fn every_precision_reaches_nearly_the_cost_of_f32() {
    check(Device::Cpu(0));
}

#[test]
fn every_precision_reaches_nearly_the_cost_of_f32_on_xla() {
    if tensorpack_testing::plugin_for_tests("cpu").is_some() {
        check("xla:cpu:0".parse().unwrap());
    }
}
