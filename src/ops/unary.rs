//! Elementwise functions of one tensor.

use crate::graph::{Autocast, GradCx, OpDef, Spec, Tensor};
use crate::kir::{self, LowerCx, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx, Scalar};
use serde::{Deserialize, Serialize};
use tensorpack_tensor::{DType, Error, ErrorKind, Result};

/// An elementwise function.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Unary(kir::Unary);
crate::exported!(Unary, 1..=1);

impl OpDef for Unary {
    fn name(&self) -> &str {
        use kir::Unary::*;
        match self.0 {
            Neg => "Neg",
            Abs => "Abs",
            Sign => "Sign",
            Exp => "Exp",
            Expm1 => "Expm1",
            Log => "Log",
            Log1p => "Log1p",
            Sqrt => "Sqrt",
            Rsqrt => "Rsqrt",
            Recip => "Reciprocal",
            Square => "Square",
            Tanh => "Tanh",
            Sigmoid => "Sigmoid",
            Erf => "Erf",
            Sin => "Sin",
            Cos => "Cos",
            Floor => "Floor",
            Round => "Round",
            Relu => "Relu",
            Not => "Not",
            IsFinite => "IsFinite",
        }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        use kir::Unary::*;
        let x = &inputs[0];
        match (self.0, x.dtype) {
            (Not, DType::Bool) => Ok(vec![x.clone()]),
            (Not, d) => Err(Error::dtype(format!("expected bool elements, got {d}"))),
            (_, DType::Bool) => Err(Error::dtype("bool elements are not supported; cast them first")),
            (IsFinite, _) => Ok(vec![Spec::new(DType::Bool, x.shape.clone())]),
            (Neg | Abs | Sign | Square | Relu, _) => Ok(vec![x.clone()]),
            _ => super::float_input(x).map(|()| vec![x.clone()]),
        }
    }

    fn autocast(&self, _i: usize) -> Autocast {
        use kir::Unary::*;
        match self.0 {
            Exp | Expm1 | Log | Log1p | Sqrt | Rsqrt | Recip | Square => Autocast::Wide,
            _ => Autocast::Widest,
        }
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        use kir::Unary::*;
        let (x, y, dy) = (cx.input(0), cx.output(0), cx.dy());
        let dx = match self.0 {
            Neg => -dy,
            Abs => dy * x.sign(),
            Exp => dy * y,
            // Not y + 1, which loses all precision where x is far below zero.
            Expm1 => dy * x.exp(),
            Log => dy / x,
            Log1p => dy / (x + 1.0),
            Sqrt => dy * 0.5 / y,
            Rsqrt => dy * -0.5 * y * y * y,
            Recip => -(dy * y * y),
            Square => dy * 2.0 * x,
            Tanh => dy * (1.0 - y.square()),
            Sigmoid => dy * y * (1.0 - y),
            Erf => dy * (-x.square()).exp() * std::f64::consts::FRAC_2_SQRT_PI,
            Sin => dy * x.cos(),
            Cos => -(dy * x.sin()),
            // The result is positive exactly where the input is, and is usually kept for the next
            // operation anyway.
            Relu => y.greater(0.0).select(dy, &dy.zero()),
            Sign | Floor | Round => return Ok(vec![None]),
            Not | IsFinite => {
                return Err(Error::new(ErrorKind::Gradient, "a boolean result has no gradient"));
            }
        };
        Ok(vec![Some(dx)])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let x = cx.input(0);
        Ok(vec![cx.map(&[&x], |e, r| e.unary(self.0, r[0]))])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        use Scalar::{Float, Int};
        use kir::Unary::*;
        Ok(vec![cx.input(0).map(cx.output_dtype(0), |v| match (self.0, v) {
            (Neg, Int(v)) => Int(v.wrapping_neg()),
            (Abs, Int(v)) => Int(v.wrapping_abs()),
            (Sign, Int(v)) => Int(v.signum()),
            (Square, Int(v)) => Int(v.wrapping_mul(v)),
            (Relu, Int(v)) => Int(v.max(0)),
            (Not, v) => Int(i64::from(v.as_i64() == 0)),
            (IsFinite, v) => Int(i64::from(v.as_f64().is_finite())),
            (op, v) => {
                let x = v.as_f64();
                Float(match op {
                    Neg => -x,
                    Abs => x.abs(),
                    // The sign of zero is zero, and of NaN is NaN.
                    Sign if x == 0.0 || x.is_nan() => x,
                    Sign => x.signum(),
                    Exp => x.exp(),
                    Expm1 => x.exp_m1(),
                    Log => x.ln(),
                    Log1p => x.ln_1p(),
                    Sqrt => x.sqrt(),
                    Rsqrt => 1.0 / x.sqrt(),
                    Recip => 1.0 / x,
                    Square => x * x,
                    Tanh => x.tanh(),
                    Sigmoid => 1.0 / (1.0 + (-x).exp()),
                    Erf => erf(x),
                    Sin => x.sin(),
                    Cos => x.cos(),
                    Floor => x.floor(),
                    Round => x.round_ties_even(),
                    // NaN is not below zero, so it is passed through.
                    Relu => {
                        if x < 0.0 {
                            0.0
                        } else {
                            x
                        }
                    }
                    Not | IsFinite => unreachable!("boolean results are handled above"),
                })
            }
        })])
    }

    fn nan_hint(&self) -> Option<String> {
        use kir::Unary::*;
        match self.0 {
            Log | Log1p | Sqrt | Rsqrt => Some("an input is negative or zero; clip it from below".into()),
            Recip => Some("an input is zero".into()),
            Exp | Expm1 => Some("an input is too large; subtract the maximum first".into()),
            _ => None,
        }
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        use kir::Unary::*;
        let x = cx.input(0);
        let dtype = x.dtype();
        let mut map = |op_type: &str, x: &Value| cx.elementwise(op_type, &[x], &[], dtype);
        let y = match self.0 {
            Neg => map("Neg", &x)?,
            Abs => map("Abs", &x)?,
            Sign => map("Sign", &x)?,
            Exp => map("Exp", &x)?,
            Log => map("Log", &x)?,
            Sqrt => map("Sqrt", &x)?,
            Recip => map("Reciprocal", &x)?,
            Tanh => map("Tanh", &x)?,
            Sigmoid => map("Sigmoid", &x)?,
            Erf => map("Erf", &x)?,
            Sin => map("Sin", &x)?,
            Cos => map("Cos", &x)?,
            Floor => map("Floor", &x)?,
            Round => map("Round", &x)?,
            Not => map("Not", &x)?,
            Rsqrt => {
                let root = map("Sqrt", &x)?;
                map("Reciprocal", &root)?
            }
            Relu if dtype.is_float() => map("Relu", &x)?,
            Relu => {
                let zero = cx.scalar(0.0, dtype)?;
                cx.elementwise("Max", &[&x, &zero], &[], dtype)?
            }
            Square => cx.elementwise("Mul", &[&x, &x], &[], dtype)?,
            Expm1 => {
                let power = map("Exp", &x)?;
                let one = cx.scalar(1.0, dtype)?;
                cx.elementwise("Sub", &[&power, &one], &[], dtype)?
            }
            Log1p => {
                let one = cx.scalar(1.0, dtype)?;
                let sum = cx.elementwise("Add", &[&x, &one], &[], dtype)?;
                cx.elementwise("Log", &[&sum], &[], dtype)?
            }
            // Zero times a finite number is zero.
            IsFinite => {
                let zero = cx.scalar(0.0, dtype)?;
                let product = cx.elementwise("Mul", &[&x, &zero], &[], dtype)?;
                cx.elementwise("Equal", &[&product, &zero], &[], DType::Bool)?
            }
        };
        Ok(vec![y])
    }
}

/// Computes the error function by its series of positive terms
/// `2 / sqrt(pi) exp(-x^2) sum 2^n x^(2n + 1) / (2n + 1)!!`, which is free of cancellation. From 6
/// on it is 1 in f64.
fn erf(x: f64) -> f64 {
    if x.is_nan() || x.abs() > 6.0 {
        return if x.is_nan() { x } else { x.signum() };
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > sum.abs() * 1e-18 {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

macro_rules! methods {
    ($($(#[$doc:meta])* $method:ident => $op:ident),* $(,)?) => {
        impl Tensor {
            $($(#[$doc])* #[track_caller] pub fn $method(&self) -> Tensor {
                Tensor::apply_one(Unary(kir::Unary::$op), &[self])
            })*
        }
    };
}

methods! {
    /// The absolute value.
    abs => Abs,
    /// -1, 0 or 1.
    sign => Sign,
    /// e to the power of x.
    exp => Exp,
    /// e to the power of x, minus 1; accurate for small x.
    expm1 => Expm1,
    /// The natural logarithm.
    log => Log,
    /// The natural logarithm of 1 + x; accurate for small x.
    log1p => Log1p,
    /// The square root.
    sqrt => Sqrt,
    /// The reciprocal of the square root.
    rsqrt => Rsqrt,
    /// The reciprocal.
    reciprocal => Recip,
    /// The square.
    square => Square,
    /// The hyperbolic tangent.
    tanh => Tanh,
    /// The logistic function 1 / (1 + exp(-x)).
    sigmoid => Sigmoid,
    /// The error function.
    erf => Erf,
    /// The sine.
    sin => Sin,
    /// The cosine.
    cos => Cos,
    /// The largest integer not greater than x.
    floor => Floor,
    /// The nearest integer, with halves rounded to even.
    round => Round,
    /// max(x, 0).
    relu => Relu,
    /// Logical not.
    logical_not => Not,
    /// Whether x is neither NaN nor infinite.
    is_finite => IsFinite,
}

impl std::ops::Neg for &Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        Tensor::apply_one(Unary(kir::Unary::Neg), &[self])
    }
}

impl std::ops::Neg for Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        -&self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;

    const COMPARISON: Gradient = Never("boolean result");
    const STEPS: Gradient = Never("piecewise constant: no gradient on purpose");

    cases![
        unary("Neg", Twice, Any, |x| -x),
        unary("Abs", Twice, AwayFromZero, Tensor::abs),
        unary("Sign", STEPS, Halves, Tensor::sign),
        unary("Exp", Twice, Any, Tensor::exp),
        unary("Expm1", Twice, Any, Tensor::expm1),
        unary("Log", Twice, Positive, Tensor::log),
        unary("Log1p", Twice, Positive, Tensor::log1p),
        unary("Sqrt", Twice, Positive, Tensor::sqrt),
        unary("Rsqrt", Twice, Positive, Tensor::rsqrt),
        unary("Reciprocal", Twice, AwayFromZero, Tensor::reciprocal),
        unary("Square", Twice, Any, Tensor::square),
        unary("Tanh", Twice, Any, Tensor::tanh),
        unary("Sigmoid", Twice, Any, Tensor::sigmoid),
        unary("Erf", Twice, Any, Tensor::erf),
        unary("Sin", Twice, Any, Tensor::sin),
        unary("Cos", Twice, Any, Tensor::cos),
        unary("Floor", STEPS, Halves, Tensor::floor),
        unary("Round", STEPS, Halves, Tensor::round),
        unary("Relu", Twice, AwayFromZero, Tensor::relu),
        unary("IsFinite", COMPARISON, Any, |x| (x / (x - x.floor())).is_finite()),
        case("Not", COMPARISON, |draw| {
            let rank = draw.below(4);
            let sizes = draw.sizes(rank);
            Trial::new(vec![Input::new(draw, sizes, Elements::Bools)], |x| vec![x[0].logical_not()])
        })
        .empty("x.logical_not()", "bool[0, 3]", "empty [0, 3]", |x| x[0].logical_not()),
    ];
}
