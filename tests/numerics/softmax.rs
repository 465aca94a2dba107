//! Softmax and the losses based on it, with logits that are large, masked, or all masked.

use super::{FLOATS, assert_close, derivatives, engines};
use tensorpack::graph::Tensor;
use tensorpack::{DType, HostTensor};

/// Ten logits with this scale; the last two are large and close.
fn logits(scale: f64) -> Vec<f64> {
    (0..10).map(|i| if i < 8 { -scale / (i + 1) as f64 } else { scale + (i - 8) as f64 }).collect()
}

/// Softmax in f64 from the textbook formula, with the maximum subtracted.
fn exact(x: &[f64]) -> Vec<f64> {
    let top = x.iter().copied().fold(f64::MIN, f64::max);
    let sum: f64 = x.iter().map(|v| (v - top).exp()).sum();
    x.iter().map(|v| (v - top).exp() / sum).collect()
}

#[test]
fn probabilities_of_large_logits_add_up_to_one() {
    for device in engines() {
        for (dtype, scale) in FLOATS.into_iter().flat_map(|d| [1.0, 1e3, 1e4, 1e5].map(|s| (d, s))) {
            let x = logits(scale);
            let [y, ..] = derivatives(device, dtype, &[1, 10], &x, Tensor::softmax);
            let sum: f64 = y.iter().sum();
            assert!((sum - 1.0).abs() <= 3e-7, "{device} {dtype}: logits of {scale} give a sum of {sum}");
            assert_close(&y, &exact(&x), dtype, "softmax");
        }
    }
}

/// The derivative of one probability, whose terms are written out here.
#[test]
fn the_gradient_of_softmax_is_exact_for_large_logits() {
    for device in engines() {
        for dtype in FLOATS {
            let x = logits(1e4);
            let p = exact(&x);
            let [_, dx, _] = derivatives(device, dtype, &[10], &x, |x| x.softmax().slice_axis(0, 9, None));
            let wanted: Vec<f64> =
                p.iter().enumerate().map(|(i, q)| p[9] * (f64::from(i as u8 == 9) - q)).collect();
            assert_close(&dx, &wanted, dtype, "the gradient");
        }
    }
}

#[test]
fn losses_of_large_logits_keep_their_digits() {
    let loss = 1.0 + (-1f64).exp().ln_1p();
    let p = 1.0 / (1.0 + (-1f64).exp());
    for device in engines() {
        for dtype in FLOATS {
            let x = [20_000.0, 20_001.0];
            let [y, dx, ddx] = derivatives(device, dtype, &[1, 2], &x, |x| {
                let label = x.graph().constant(HostTensor::new([1], vec![0i32]).unwrap());
                x.sparse_softmax_cross_entropy(&label)
            });
            assert_close(&y, &[loss], dtype, "sparse cross entropy");
            assert_close(&dx, &[-p, p], dtype, "its gradient");
            // The gradients of the loss add up to zero, and so do their derivatives.
            assert!(ddx.iter().all(|v| v.abs() <= 1e-6), "{ddx:?}");
            let [y, dx, _] = derivatives(device, dtype, &[1, 2], &x, |x| {
                let hot = HostTensor::from_f64(x.dtype(), [1, 2], &[1.0, 0.0]).unwrap();
                x.softmax_cross_entropy(&x.graph().constant(hot))
            });
            assert_close(&y, &[loss], dtype, "cross entropy");
            assert_close(&dx, &[-p, p], dtype, "its gradient");
            let [y, ..] = derivatives(device, dtype, &[1, 2], &x, Tensor::log_softmax);
            assert_close(&y, &[-loss, 1.0 - loss], dtype, "log softmax");
        }
    }
}

/// A mask of infinities is a constant here; `feeds.rs` feeds one.
fn masked(x: &Tensor, mask: &[f64]) -> Tensor {
    let mask = HostTensor::from_f64(x.dtype(), [1, mask.len()], mask).unwrap();
    x + x.graph().constant(mask)
}

#[test]
fn another_class_at_minus_infinity_leaves_loss_and_gradient_finite() {
    let p = 1.0 / (1.0 + 1f64.exp());
    for device in engines() {
        for dtype in FLOATS {
            let x = [1.0, 5.0, 2.0];
            let [y, dx, _] = derivatives(device, dtype, &[1, 3], &x, |x| {
                let label = x.graph().constant(HostTensor::new([1], vec![0i32]).unwrap());
                masked(x, &[0.0, f64::NEG_INFINITY, 0.0]).sparse_softmax_cross_entropy(&label)
            });
            assert_close(&y, &[1f64.exp().ln_1p()], dtype, "the loss");
            assert_close(&dx, &[p - 1.0, 0.0, 1.0 - p], dtype, "the gradient");
            let [y, dx, _] = derivatives(device, dtype, &[1, 3], &x, |x| {
                masked(x, &[0.0, f64::NEG_INFINITY, 0.0]).softmax().slice_axis(1, 0, Some(1))
            });
            assert_close(&y, &[p], dtype, "the probability");
            assert_close(&dx, &[p * (1.0 - p), 0.0, -p * (1.0 - p)], dtype, "its gradient");
        }
    }
}

#[test]
fn log_sum_exp_of_infinities_alone_is_that_infinity() {
    for device in engines() {
        for (dtype, mask) in
            FLOATS.into_iter().flat_map(|d| [f64::NEG_INFINITY, f64::INFINITY].map(|m| (d, m)))
        {
            let [y, dx, _] =
                derivatives(device, dtype, &[1, 2], &[1.0, 2.0], |x| masked(x, &[mask, mask]).log_sum_exp());
            assert_eq!(y, [mask], "{device} {dtype}");
            if mask < 0.0 {
                assert_eq!(dx, [0.0, 0.0], "{device} {dtype}: no class gets a gradient");
            }
        }
    }
}

/// Ordinary rows must not change, in both dtypes.
#[test]
fn log_sum_exp_of_an_ordinary_row() {
    for device in engines() {
        for dtype in [DType::F32, DType::F64] {
            let x = [0.5, -1.25, 2.0];
            let sum: f64 = x.iter().map(|v: &f64| v.exp()).sum();
            let [y, dx, _] = derivatives(device, dtype, &[3], &x, Tensor::log_sum_exp);
            assert_close(&y, &[sum.ln()], dtype, "log_sum_exp");
            assert_close(&dx, &x.map(|v| v.exp() / sum), dtype, "its gradient");
        }
    }
}
