//! Attention in 16 bits on XLA, against f32 on the CPU engine. On NVIDIA GPUs most of these cases are
//! cuDNN's fused kernels.

use crate::device;
use tensorpack::graph::{Fetch, Graph};
use tensorpack::prelude::*;
use tensorpack::runtime::{Device, IntoFetch, Platform};
use tensorpack_tensor::CounterRng;
use tensorpack_testing::{Requirement, skip};

#[derive(Clone, Copy, Debug)]
struct Case {
    batch: usize,
    queries: usize,
    keys: usize,
    heads: usize,
    kv_heads: usize,
    width: usize,
    causal: bool,
    /// The numbers of keys are `keys`, `keys - 3`, .. and 0 for the last example.
    lengths: bool,
    bias: bool,
}

const PLAIN: Case = Case {
    batch: 2,
    queries: 64,
    keys: 64,
    heads: 2,
    kv_heads: 2,
    width: 64,
    causal: false,
    lengths: false,
    bias: false,
};

/// Numbers of about normal distribution that are exact in bf16.
fn numbers(name: &str, sizes: &[usize]) -> Vec<f64> {
    let rng = CounterRng::new(1, name);
    let uniform = |i: u64| f64::from(rng.word(0, i) >> 28) / 8.0 - 1.0;
    (0..sizes.iter().product::<usize>() as u64).map(uniform).collect()
}

/// Returns the result and the gradients of queries, keys and values, and the program's text.
fn run(case: &Case, dtype: DType, device: Device) -> (Vec<Vec<f64>>, String) {
    let graph = Graph::new();
    let c = case;
    let sizes = [
        ("q", vec![c.batch, c.queries, c.heads, c.width]),
        ("k", vec![c.batch, c.keys, c.kv_heads, c.width]),
        ("v", vec![c.batch, c.keys, c.kv_heads, c.width]),
    ];
    let feeds: Vec<HostTensor> = sizes
        .iter()
        .map(|(name, sizes)| HostTensor::from_f64(dtype, &sizes[..], &numbers(name, sizes)).unwrap())
        .collect();
    let x = sizes.each_ref().map(|(name, sizes)| {
        graph.placeholder(&TensorSpec::new(*name, dtype, sizes.iter().map(|&n| Some(n)).collect::<Vec<_>>()))
    });
    let constant = |name: &str, sizes: &[usize], dtype: DType| {
        graph.constant(HostTensor::from_f64(dtype, sizes, &numbers(name, sizes)).unwrap())
    };
    let mut options = AttentionOptions::default();
    if c.causal {
        options = options.causal();
    }
    if c.lengths {
        let left = |i: usize| if i + 1 == c.batch { 0 } else { c.keys.saturating_sub(3 * i) as i32 };
        let lengths = HostTensor::new([c.batch], (0..c.batch).map(left).collect::<Vec<_>>()).unwrap();
        options = options.lengths(&graph.constant(lengths));
    }
    if c.bias {
        let mut values = numbers("bias", &[c.heads, c.queries, c.keys]);
        values.iter_mut().step_by(5).for_each(|v| *v = f64::NEG_INFINITY);
        // The first query has no keys.
        values[..c.keys].fill(f64::NEG_INFINITY);
        let bias = HostTensor::from_f64(dtype, [c.heads, c.queries, c.keys], &values).unwrap();
        options = options.bias(&graph.constant(bias));
    }
    let y = x[0].attention(&x[1], &x[2], &options);
    let slope = constant("slope", &[c.batch, c.queries, c.heads, c.width], dtype);
    let cost = (&y * slope).cast(DType::F32).sum();
    let found = gradients(&cost, &x.each_ref()).unwrap();
    let fetches: Vec<Fetch> = std::iter::once(&y).chain(found.iter().flatten()).map(Fetch::from).collect();
    let fetches: Vec<&dyn IntoFetch> = fetches.iter().map(|f| f as _).collect();
    let session =
        Session::with(graph.freeze().unwrap(), SessionOptions { device, ..SessionOptions::default() })
            .unwrap();
    let fed: Vec<(&str, &HostTensor)> = sizes.iter().map(|(name, _)| *name).zip(&feeds).collect();
    let values = session.run(&fetches, &fed).unwrap();
    assert_eq!(values.len(), 4);
    (values.iter().map(HostTensor::to_f64_vec).collect(), session.plan_text(&fetches, &fed).unwrap())
}

/// Compares a case in `dtype` on the device with f32 on the CPU engine. `fused`: whether cuDNN has a
/// kernel for it.
fn agrees(case: &Case, dtype: DType, fused: bool) {
    let Some(device) = device() else { return };
    let (right, _) = run(case, DType::F32, Device::Cpu(0));
    let (found, plan) = run(case, dtype, device);
    for (name, (found, right)) in ["y", "dq", "dk", "dv"].iter().zip(found.iter().zip(&right)) {
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
        let scale = norm(&mut right.iter().copied());
        let error = norm(&mut found.iter().zip(right).map(|(a, b)| a - b));
        let limit = if dtype == DType::Bf16 { 1e-2 } else { 2e-3 };
        assert!(error <= limit * scale, "{case:?} in {dtype}: {name} has an error of {}", error / scale);
        // Without keys there is neither a result nor a gradient.
        for (i, (found, right)) in found.iter().zip(right).enumerate() {
            assert!(
                *right != 0.0 || found.abs() < 1e-2,
                "{case:?} in {dtype}: {name}[{i}] is {found}, not 0"
            );
        }
    }
    if matches!(device, Device::Xla { platform: Platform::Cuda, .. }) {
        let names = plan.matches("__cudnn$fmha").count();
        assert_eq!(names >= 2, fused, "{case:?} in {dtype} has {names} calls of cuDNN");
    }
}

#[test]
fn lengths_and_widths() {
    for (queries, keys, width) in
        [(2, 2, 128), (100, 6, 64), (64, 64, 8), (334, 258, 64), (7, 5, 64), (129, 64, 32), (64, 257, 128)]
    {
        let case = Case { queries, keys, width, ..PLAIN };
        agrees(&case, DType::Bf16, true);
        agrees(&Case { causal: true, heads: 4, ..case }, DType::Bf16, true);
    }
}

#[test]
fn f16_and_shared_heads() {
    agrees(&PLAIN, DType::F16, true);
    agrees(&Case { causal: true, kv_heads: 1, heads: 4, ..PLAIN }, DType::F16, true);
    agrees(&Case { kv_heads: 3, heads: 6, keys: 50, ..PLAIN }, DType::Bf16, true);
}

#[test]
fn masks_and_biases() {
    let masked = Case { batch: 3, lengths: true, ..PLAIN };
    agrees(&masked, DType::Bf16, true);
    agrees(&Case { causal: true, ..masked }, DType::Bf16, true);
    agrees(&Case { bias: true, ..PLAIN }, DType::Bf16, true);
    agrees(&Case { bias: true, causal: true, ..masked }, DType::Bf16, true);
    agrees(&Case { kv_heads: 1, ..masked }, DType::Bf16, true);
}

#[test]
fn a_mask_does_not_hide_nan() {
    let Some(device) = device() else { return };
    let graph = Graph::new();
    let sizes = [2, 4, 1, 8];
    let x = graph.placeholder(&TensorSpec::new("x", DType::Bf16, sizes.map(Some)));
    let lengths = graph.constant(HostTensor::new([2], vec![3i32, 0]).unwrap());
    let root = x.sqrt();
    let y = root.attention(&root, &root, &AttentionOptions::default().lengths(&lengths));
    let options = SessionOptions { device, ..SessionOptions::default() };
    let session = Session::with(graph.freeze().unwrap(), options).unwrap();
    let mut values: Vec<f64> = numbers("nan", &sizes).iter().map(|v| v.abs()).collect();
    values[0] = -1.0;
    let fed = HostTensor::from_f64(DType::Bf16, sizes, &values).unwrap();
    let found = session.run(&[&y], &[("x", &fed)]).unwrap()[0].to_f64_vec();
    // Every query of the first example sees the key that is NaN; the second example has no keys.
    let (first, second) = found.split_at(32);
    assert!(first.iter().all(|v| v.is_nan()), "{first:?}");
    assert!(second.iter().all(|v| *v == 0.0), "{second:?}");
}

#[test]
fn what_cudnn_does_not_have() {
    agrees(&Case { width: 12, ..PLAIN }, DType::Bf16, false);
    agrees(&Case { width: 136, ..PLAIN }, DType::Bf16, false);
    agrees(&Case { queries: 7, keys: 5, bias: true, ..PLAIN }, DType::Bf16, false);
    agrees(&Case { queries: 1, keys: 1, causal: true, ..PLAIN }, DType::Bf16, false);
    agrees(&Case { batch: 3, lengths: true, keys: 33, ..PLAIN }, DType::Bf16, false);
    agrees(&Case { batch: 3, lengths: true, ..PLAIN }, DType::F16, false);
}

/// Where cuDNN has a kernel, a training step of one layer stores no scores.
#[test]
fn fused_attention_takes_linear_memory() {
    let Some(device) = device() else { return };
    let Device::Xla { platform: Platform::Cuda, .. } = device else {
        return skip(Requirement::Devices, "only CUDA has these kernels");
    };
    let bytes = |time: usize| {
        let graph = Graph::new();
        let x = graph.placeholder(&TensorSpec::new("x", DType::Bf16, [Some(1), Some(time), Some(128)]));
        let cost = TowerContext::training(&graph).build(|t| {
            let y = MultiHeadAttention::new(2).causal().apply(t, "attention", &x);
            y.cast(DType::F32).square().mean()
        });
        let train = minimize(&cost, &Sgd::new(0.1)).unwrap();
        let options = SessionOptions { device, ..SessionOptions::default() };
        let session = Session::with(graph.freeze().unwrap(), options).unwrap();
        session.planned_bytes(&[&cost, &train], &[("x", DType::Bf16, &[1, time, 128])]).unwrap()
    };
    let [short, long] = [4096, 16384].map(bytes);
    assert!(long < 5 * short, "4,096 tokens take {short} bytes, 16,384 take {long}");
}
