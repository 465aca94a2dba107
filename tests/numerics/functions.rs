//! Functions over their whole range, and long running sums. `math.rs` of the kernels has the dense
//! tests.

use super::{derivatives, engines, session};
use tensorpack::graph::{Graph, Tensor, TensorSpec};
use tensorpack::runtime::Device;
use tensorpack::{DType, HostTensor};

fn ulps(found: f64, wanted: f64) -> f64 {
    let w = (wanted as f32).abs().max(f32::MIN_POSITIVE);
    (found - wanted).abs() / (f64::from(f32::from_bits(w.to_bits() + 1)) - f64::from(w))
}

/// XLA has its own implementations; its CPU plugin is tested with twice the bound.
#[test]
fn sine_and_cosine_of_large_arguments() {
    let x = [1e30f32, -1e22, 3.4e38, 1e12, 2e12, 1e5, 0.5].map(f64::from);
    for device in engines() {
        let limit = if device == Device::Cpu(0) { 2.0 } else { 4.0 };
        for (name, f, exact) in [
            ("sin", Tensor::sin as fn(&Tensor) -> Tensor, f64::sin as fn(f64) -> f64),
            ("cos", Tensor::cos, f64::cos),
        ] {
            let [y, ..] = derivatives(device, DType::F32, &[x.len()], &x, f);
            for (x, y) in x.iter().zip(&y) {
                let off = ulps(*y, exact(*x));
                assert!(off <= limit, "{device}: {name}({x:e}) = {y}, should be {}: {off} ulps", exact(*x));
            }
        }
    }
}

/// Published values of the error function.
#[test]
fn the_error_function_to_two_ulps() {
    let known = [
        (0.5, 0.520_499_877_813_046_5),
        (0.875, 0.784_075_061_059_859_8),
        (1.0, 0.842_700_792_949_714_9),
        (1.5, 0.966_105_146_475_310_7),
        (2.0, 0.995_322_265_018_952_7),
        (3.0, 0.999_977_909_503_001_4),
        (5.0, 1.0),
    ];
    for device in engines() {
        let x = known.map(|(x, _)| x);
        let [y, ..] = derivatives(device, DType::F32, &[x.len()], &x, Tensor::erf);
        for ((x, wanted), y) in known.iter().zip(&y) {
            assert!(ulps(*y, *wanted) <= 2.0, "{device}: erf({x}) = {y}, should be {wanted}");
        }
    }
}

#[test]
fn a_long_running_sum_keeps_its_digits() {
    let n = 10_000_000;
    let tenths = HostTensor::new([n], vec![0.1f32; n]).unwrap();
    for device in engines() {
        let graph = Graph::new();
        let x = graph.placeholder(&TensorSpec::f32("x", [Some(n)]));
        let last = x.cumsum(0).slice_axis(0, n - 1, None);
        let session = super::session(graph, device).unwrap();
        let found = session.run(&[&last], &[("x", &tenths)]).unwrap().remove(0).to_f64_vec()[0];
        // Ten million times the f32 nearest to 0.1, to three units in the last place.
        assert!((found - 1_000_000.015).abs() <= 0.19, "{device}: {found}");
    }
}

/// A maximum that dropped NaN would hide it from the check of costs.
#[test]
fn maxima_and_minima_keep_nan() {
    for device in engines() {
        let graph = Graph::new();
        let x = graph.placeholder(&TensorSpec::f32("x", [None]));
        // The logarithm of -1 is NaN.
        let n = x.log();
        let nan = n.full_like(f64::NAN);
        let all = [
            n.max_axes(&[0]),
            n.min_axes(&[0]),
            x.maximum(&n),
            n.minimum(&x),
            x.maximum(f64::NAN),
            x.minimum(&nan),
        ];
        let all = all.map(|y| y.sum());
        let session = session(graph, device).unwrap();
        let x = HostTensor::new([4], vec![1.0f32, 2.0, -1.0, 3.0]).unwrap();
        for (i, y) in all.iter().enumerate() {
            let found = session.run(&[y], &[("x", &x)]).unwrap().remove(0).to_scalar().unwrap();
            assert!(found.is_nan(), "{device}, {i}: {found}");
        }
    }
}
