//! Derivatives where a function has a kink, and where a formula for the derivative divides by zero.

use super::{FLOATS, assert_close, derivatives, engines};
use tensorpack::graph::Tensor;
use tensorpack::{DType, HostTensor};

/// Function, argument, and the value and derivatives there.
type Point = (&'static str, fn(&Tensor) -> Tensor, f64, [f64; 3]);

fn labels(x: &Tensor, value: f64) -> Tensor {
    x.graph().constant(HostTensor::from_f64(x.dtype(), [], &[value]).unwrap())
}

const POINTS: [Point; 19] = [
    ("elu", Tensor::elu, 0.0, [0.0, 1.0, 1.0]),
    ("elu", Tensor::elu, 2.0, [2.0, 1.0, 0.0]),
    ("elu", Tensor::elu, 200.0, [200.0, 1.0, 0.0]),
    ("clip", |x| x.clip(-1.0, 2.0), 2.0, [2.0, 1.0, 0.0]),
    ("clip", |x| x.clip(-1.0, 2.0), -1.0, [-1.0, 1.0, 0.0]),
    ("clip", |x| x.clip(-1.0, 2.0), 2.5, [2.0, 0.0, 0.0]),
    ("clip", |x| x.clip(-1.0, 2.0), -1.5, [-1.0, 0.0, 0.0]),
    ("clip", |x| x.clip(2.0, -1.0), 0.5, [-1.0, 0.0, 0.0]),
    ("relu6", Tensor::relu6, 6.0, [6.0, 0.0, 0.0]),
    ("relu6", Tensor::relu6, 0.0, [0.0, 0.0, 0.0]),
    ("relu6", Tensor::relu6, 3.0, [3.0, 1.0, 0.0]),
    ("softplus", Tensor::softplus, 0.0, [std::f64::consts::LN_2, 0.5, 0.25]),
    (
        "sigmoid cross entropy",
        |x| x.sigmoid_cross_entropy(&labels(x, 0.25)),
        0.0,
        [std::f64::consts::LN_2, 0.25, 0.25],
    ),
    ("Huber", |x| x.huber_loss(&labels(x, 0.0), 1.5), 0.0, [0.0, 0.0, 1.0]),
    ("Huber", |x| x.huber_loss(&labels(x, 0.0), 1.5), -4.0, [4.875, -1.5, 0.0]),
    ("x^0", |x| x.pow(&labels(x, 0.0)), 0.0, [1.0, 0.0, 0.0]),
    ("x^1", |x| x.pow(&labels(x, 1.0)), 0.0, [0.0, 1.0, 0.0]),
    ("x^2", |x| x.pow(&labels(x, 2.0)), 0.0, [0.0, 0.0, 2.0]),
    ("x^3", |x| x.pow(&labels(x, 3.0)), -2.0, [-8.0, 12.0, -12.0]),
];

/// All points are in one graph, because compiling takes longer than running.
#[test]
fn derivatives_at_kinks_are_those_of_pytorch() {
    for device in engines() {
        for dtype in FLOATS {
            let arguments = POINTS.map(|(_, _, at, _)| at);
            let found = derivatives(device, dtype, &[POINTS.len()], &arguments, |x| {
                let parts = x.split_equal(POINTS.len(), 0);
                let values: Vec<Tensor> = POINTS.iter().zip(&parts).map(|((_, f, ..), x)| f(x)).collect();
                x.graph().concat(&values, 0)
            });
            for (i, (name, _, at, wanted)) in POINTS.iter().enumerate() {
                for order in 0..3 {
                    let what = format!("{device}: derivative {order} of {name} at {at}");
                    assert_close(&found[order][i..=i], &wanted[order..=order], dtype, &what);
                }
            }
        }
    }
}

/// `exp(x) - 1` would lose most digits near zero.
#[test]
fn elu_keeps_its_digits_near_zero() {
    for device in engines() {
        for dtype in FLOATS {
            // Powers of two, so that f32 has the same arguments.
            let x = [-2f64.powi(-20), -2f64.powi(-12), -0.5, -30.0];
            let [y, dx, _] = derivatives(device, dtype, &[4], &x, Tensor::elu);
            assert_close(&y, &x.map(f64::exp_m1), dtype, "elu");
            assert_close(&dx, &x.map(f64::exp), dtype, "its gradient");
            let [y, dx, ddx] = derivatives(device, dtype, &[4], &x, Tensor::expm1);
            assert_close(&y, &x.map(f64::exp_m1), dtype, "expm1");
            assert_close(&dx, &x.map(f64::exp), dtype, "its gradient");
            assert_close(&ddx, &x.map(f64::exp), dtype, "its second derivative");
        }
    }
}

#[test]
fn softplus_is_smooth_on_both_sides_and_does_not_overflow() {
    for device in engines() {
        for dtype in FLOATS {
            let x = [-3.0, 3.0, -80.0, 200.0];
            let s = |x: f64| 1.0 / (1.0 + (-x).exp());
            let [y, dx, ddx] = derivatives(device, dtype, &[4], &x, Tensor::softplus);
            assert_close(&y, &x.map(|x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p()), dtype, "softplus");
            assert_close(&dx[..2], &[s(-3.0), s(3.0)], dtype, "its gradient");
            assert_close(&dx[3..], &[1.0], dtype, "its gradient");
            assert!((ddx[1] / (s(3.0) * s(-3.0)) - 1.0).abs() <= 1e-5, "{ddx:?}");
        }
    }
}

#[test]
fn the_standard_deviation_of_equal_values_has_gradient_zero() {
    for device in engines() {
        for dtype in FLOATS {
            let [y, dx, ddx] =
                derivatives(device, dtype, &[2, 3], &[2.0, 2.0, 2.0, 1.0, 2.0, 3.0], |x| x.std_axes(&[1]));
            let deviation = (2f64 / 3.0).sqrt();
            assert_close(&y, &[0.0, deviation], dtype, "the deviation");
            assert_close(&dx[..3], &[0.0; 3], dtype, "the gradient of equal values");
            assert!((dx[3] + 1.0 / (3.0 * deviation)).abs() <= 1e-6, "{dx:?}");
            assert!(ddx.iter().all(|v| v.is_finite()), "{ddx:?}");
        }
    }
}

/// Clipping does not hide a NaN.
#[test]
fn clipping_propagates_nan() {
    for device in engines() {
        let [y, ..] = derivatives(device, DType::F32, &[1], &[-1.0], |x| {
            let nan = x.log();
            let whole = [nan.log_sum_exp(), nan.std_axes(&[0])].map(|y| y.reshape(&[1]));
            let each = [nan.clip(0.0, 1.0), nan.relu6(), nan.elu(), nan.softplus(), nan.softmax()];
            let all: Vec<Tensor> = each.into_iter().chain(whole).collect();
            x.graph().concat(&all, 0)
        });
        assert!(y.iter().all(|v| v.is_nan()), "{device}: {y:?}");
    }
}
