//! Results that compare a tensor with a value computed from it: XLA must not recompute the tensor
//! with other rounding for the comparison than for the value.

use crate::device;
use tensorpack::prelude::*;
use tensorpack::runtime::IntoFetch;
use tensorpack_tensor::CounterRng;

const SIZES: [usize; 4] = [2, 15, 13, 4];

fn batch(dtype: DType, step: u64) -> HostTensor {
    let rng = CounterRng::new(step, "x");
    let uniform = |i: u32| f64::from(rng.word(0, i.into()) >> 8) / f64::from(1u32 << 23) - 1.0;
    let values: Vec<f64> = (0..1560).map(uniform).collect();
    HostTensor::from_f64(dtype, SIZES, &values).unwrap()
}

/// A float variable of a model.
fn normal(t: &TowerContext, name: &str, sizes: &[usize], dtype: DType) -> Tensor {
    let spec = VariableSpec::new(name, sizes.to_vec()).dtype(dtype).init(Init::Normal(0.0, 0.5));
    t.variable(spec).value().clone()
}

/// `[2, 15, 13, 1]` from the batch, normalized and then multiplied by one weight per output: a
/// product that compilers fuse into whatever reads it.
fn fused_product(t: &TowerContext, x: &Tensor) -> Tensor {
    let y = InstanceNorm::new().no_scale().apply(t, "in", &x.slice_axis(3, 0, Some(1)));
    let y = LayerNorm::new().last_axis().epsilon(0.1).layout(Layout::Nchw).apply(t, "ln", &y);
    y.matmul(&normal(t, "w", &[1, 16], x.dtype()))
}

fn affine(t: &TowerContext, x: &Tensor) -> Tensor {
    let b = normal(t, "b", &[15, 1, 1], x.dtype());
    (x.slice_axis(3, 0, Some(1)) * 1.3 + b) * normal(t, "w", &[1, 16], x.dtype())
}

type Head = fn(&TowerContext, &Tensor) -> Tensor;

/// Trains on XLA, and compares the gradient that each step used with the CPU engine's at the same
/// weights.
fn gradients_agree(what: &str, dtype: DType, head: Head) {
    let Some(device) = device() else { return };
    let build = |device: Device| {
        let g = Graph::new();
        let t = &TowerContext::training(&g);
        let x = g.placeholder(&TensorSpec::new("x", dtype, SIZES.map(Some)));
        let cost = head(t, &x).square().mean();
        let gradients = compute_gradients(&cost).unwrap();
        let values: Vec<Tensor> = gradients.iter().map(|g| g.value.clone()).collect();
        let names: Vec<String> = gradients.iter().map(|g| g.variable.name().to_string()).collect();
        // With a decay of 0, the momentum is the gradient that the step used.
        let train = apply_gradients(&Momentum::new(0.02, 0.0), &g, &gradients).unwrap();
        let options = SessionOptions { device, full_precision: true, ..SessionOptions::default() };
        (Session::with(g.freeze().unwrap(), options).unwrap(), names, values, train)
    };
    let (cpu, names, gradients, _) = build(Device::Cpu(0));
    let (xla, _, _, train) = build(device);
    let fetches: Vec<&dyn IntoFetch> = gradients.iter().map(|g| g as _).collect();
    for step in 0..60 {
        let x = batch(dtype, step);
        for name in &names {
            cpu.write(name, &xla.read(name).unwrap()).unwrap();
        }
        let right = cpu.run(&fetches, &[("x", &x)]).unwrap();
        xla.run(&[&train], &[("x", &x)]).unwrap_or_else(|e| panic!("{what} {dtype} step {step}: {e}"));
        for (name, right) in names.iter().zip(&right) {
            let (used, right) =
                (xla.read(&format!("{name}/momentum")).unwrap().to_f64_vec(), right.to_f64_vec());
            let scale = right.iter().fold(1e-3f64, |a, b| a.max(b.abs()));
            for (i, (used, right)) in used.iter().zip(&right).enumerate() {
                assert!(
                    (used - right).abs() < 1e-2 * scale,
                    "{what} {dtype} step {step}: {name}[{i}] used {used}, not {right}"
                );
            }
        }
    }
}

#[test]
fn the_gradient_of_a_maximum_goes_to_the_elements_that_attain_it() {
    for dtype in [DType::F32, DType::F64] {
        gradients_agree("max pool", dtype, |t, x| fused_product(t, x).global_max_pool());
        gradients_agree("max", dtype, |t, x| affine(t, x).max_axes(&[1, 2]));
        gradients_agree("min", dtype, |t, x| fused_product(t, x).min_axes(&[1, 2]));
        gradients_agree("maxout", dtype, |t, x| Maxout::new(4).apply(t, "mo", &affine(t, x)));
    }
}

/// `a` and `b` are equal, so each gets half of every gradient.
#[test]
fn a_maximum_of_equal_operands_splits_its_gradient() {
    for dtype in [DType::F32, DType::F64] {
        gradients_agree("maximum of equals", dtype, |t, x| {
            let y = affine(t, x);
            let halves = &y * 0.5;
            y.maximum(&(&halves + &halves)).mean_axes(&[1, 2])
        });
    }
}

/// A tensor that is compared with a value computed from it is computed once.
#[test]
fn compared_tensors_are_materialized() {
    let Some(device) = device() else { return };
    let materialized = |what: &str, expected: usize, head: Head| {
        let g = Graph::new();
        let t = &TowerContext::training(&g);
        let x = g.placeholder(&TensorSpec::new("x", DType::F32, SIZES.map(Some)));
        let y = head(t, &affine(t, &x));
        let fetch = match y.dtype().is_float() {
            true => compute_gradients(&y.sum()).unwrap()[0].value.clone(),
            false => y,
        };
        let options = SessionOptions { device, ..SessionOptions::default() };
        let session = Session::with(g.freeze().unwrap(), options).unwrap();
        let text = session.plan_text(&[&fetch], &[("x", &batch(DType::F32, 0))]).unwrap();
        let count = |name: &str| text.matches(&format!("\"stablehlo.{name}\"")).count();
        assert_eq!(count("case") + count("optimization_barrier"), expected, "{what}\n{text}");
    };
    materialized("max", 1, |_, y| y.max_axes(&[1]));
    materialized("maximum", 2, |_, y| y.maximum(&(y.reverse(&[1]) * 2.0)));
    materialized("relu", 0, |_, y| y.relu());
    materialized("product", 1, |_, y| y.prod_axes(&[1]));
    materialized("in_top_k", 1, |_, y| y.in_top_k(&y.argmax(-1), 1));
}
