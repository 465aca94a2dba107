//! Contractions of bf16 on the CPU: by bf16 instructions where the CPU has them, in f32 elsewhere.

use tensorpack::graph::Fetch;
use tensorpack::ops::Conv2dOptions;
use tensorpack::prelude::*;
use tensorpack::runtime::IntoFetch;
use tensorpack::runtime::cpu::{Bf16Isa, Isa};

/// Values that bf16 holds exactly, between -1 and 1.
fn values(sizes: &[usize], seed: usize) -> HostTensor {
    let len: usize = sizes.iter().product();
    let value = |i: usize| ((i * 7919 + seed * 104_729) % 257) as f32 / 128.0 - 1.0;
    HostTensor::new(sizes.to_vec(), (0..len).map(value).collect()).unwrap()
}

/// Runs a bf16 net of products and convolutions; returns output, gradients and the plan.
fn net(isa: Option<Isa>, threads: usize) -> (Vec<HostTensor>, String) {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [Some(5), Some(9), Some(9), Some(4)]));
    let w = [
        graph.constant(values(&[3, 3, 4, 20], 1)),
        graph.constant(values(&[3, 3, 20, 18], 2)),
        graph.constant(values(&[1, 1, 18, 7], 3)),
        graph.constant(values(&[5 * 5 * 7, 33], 4)),
    ];
    let narrow = |t: &Tensor| t.cast(DType::Bf16);
    let weights: Vec<Tensor> = w.iter().map(narrow).collect();
    let y = narrow(&x).conv2d(&weights[0], Conv2dOptions::default()).relu();
    let y = y.conv2d(&weights[1], Conv2dOptions { stride: [2, 2], ..Conv2dOptions::default() });
    let y = y.conv2d(&weights[2], Conv2dOptions::default()).reshape(&[5, 5 * 5 * 7]);
    let y = y.matmul(&weights[3]);
    let cost = y.cast(DType::F32).square().mean();
    let mut fetches = vec![y];
    fetches.extend(weights.iter().map(|w| cost.gradient(w)));
    fetches.push(cost.gradient(&x));
    let options = SessionOptions { isa, threads: Some(threads), ..SessionOptions::default() };
    let session = Session::with(graph.freeze().unwrap(), options).unwrap();
    let fetches: Vec<Fetch> = fetches.iter().map(Fetch::from).collect();
    let fetches: Vec<&dyn IntoFetch> = fetches.iter().map(|f| f as &dyn IntoFetch).collect();
    let x = values(&[5, 9, 9, 4], 5);
    let found = session.run(&fetches, &[("x", &x)]).unwrap();
    (found, session.plan_text(&fetches, &[("x", &x)]).unwrap())
}

#[test]
fn bf16_instructions_agree_with_f32_on_rounded_operands() {
    let (found, plan) = net(None, 2);
    let (wide, _) = net(Some(Isa::Avx2), 2);
    if Bf16Isa::detect().is_some() {
        let count = |part: &str| plan.lines().filter(|line| line.contains(part)).count();
        // All contractions read bf16, and round their sums while these are in cache. Only the
        // gradient with respect to the input is converted back.
        let narrow = plan.lines().filter(|l| l.contains("bf16[") && l.contains("with epilogue")).count();
        assert_eq!(narrow, count("= conv2d") + count("= matmul"), "{plan}");
        assert_eq!(count(" f32["), 1, "{plan}");
    }
    for (i, (a, b)) in found.iter().zip(&wide).enumerate() {
        let (a, b) = (a.to_f64_vec(), b.to_f64_vec());
        let size = b.iter().fold(0.0f64, |m, x| m.max(x.abs()));
        // Sums that differ in their last bits of f32 may round to neighbors in bf16, in each of the
        // four layers.
        for (x, y) in a.iter().zip(&b) {
            assert!((x - y).abs() <= 4.0 * size / 256.0, "fetch {i}: {x} and {y}, of at most {size}");
        }
    }
    assert_eq!(net(None, 1).0, found, "the bits depend on the number of threads");
}

/// Runs a recurrent bf16 net on this many rows. Returns the first rows of its output, and the plan.
fn recurrence(rows: usize, constant: bool) -> (Vec<f64>, String) {
    const UNITS: usize = 264;
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(UNITS)]));
    let w = values(&[UNITS, UNITS], 1);
    let w = match constant {
        true => graph.constant(w),
        false => graph.placeholder(&TensorSpec::f32("w", [Some(UNITS), Some(UNITS)])),
    };
    let narrow = w.cast(DType::Bf16);
    let y = (0..7).fold(x.cast(DType::Bf16), |h, _| (h.matmul(&narrow) * 0.01).tanh());
    let y = Fetch::from(&y);
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let (x, w) = (values(&[rows, UNITS], 2), values(&[UNITS, UNITS], 1));
    let mut feeds = vec![("x", &x)];
    feeds.extend((!constant).then_some(("w", &w)));
    let found = session.run(&[&y], &feeds).unwrap();
    (found[0].to_f64_vec()[..3 * UNITS].to_vec(), session.plan_text(&[&y], &feeds).unwrap())
}

#[test]
fn bf16_weights_of_many_small_products_are_packed_once() {
    let (many, _) = recurrence(100, false);
    let (few, plan) = recurrence(3, false);
    assert_eq!(plan.lines().filter(|line| line.contains("in panels")).count(), 1, "{plan}");
    assert_eq!(few, many);
    let (constant, plan) = recurrence(3, true);
    assert!(!plan.contains("in panels"), "constant weights are packed when compiling:\n{plan}");
    assert_eq!(constant, many);
}

/// Two outputs for each channel: their gradients are added up in f32, and rounded once.
#[test]
fn gradients_of_depthwise_convolutions_are_rounded_once() {
    let gradient = |dtype: DType| {
        let graph = Graph::new();
        let x = graph.constant(values(&[1, 6, 6, 16], 1)).cast(dtype);
        let w = graph.constant(values(&[3, 3, 1, 48], 2)).cast(dtype);
        let weights = graph.constant(values(&[1, 6, 6, 48], 3));
        let y = x.conv2d(&w, Conv2dOptions { groups: 16, ..Conv2dOptions::default() });
        assert_eq!(y.dtype(), dtype);
        let dx = (y.cast(DType::F64) * weights.cast(DType::F64)).sum().gradient(&x).cast(DType::F64);
        let session = Session::new(graph.freeze().unwrap()).unwrap();
        session.run(&[&dx], &[]).unwrap().remove(0).to_f64_vec()
    };
    let exact = gradient(DType::F64);
    for (dtype, ulp) in [(DType::Bf16, 2f64.powi(-8)), (DType::F16, 2f64.powi(-11))] {
        for (found, exact) in gradient(dtype).into_iter().zip(&exact) {
            assert!((found - exact).abs() <= 1.01 * ulp * exact.abs() + 1e-6, "{dtype}: {found}, {exact}");
        }
    }
}
