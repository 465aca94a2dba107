//! Elementwise functions of two tensors, with broadcasting, and Rust's operators for them.

use crate::graph::{Autocast, GradCx, NodeKind, OpDef, OpIdentity, Spec, Tensor};
use crate::kir::{self, LowerCx, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx, Scalar};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use tensorpack_tensor::{DType, Error, Result};

/// An elementwise function of two tensors.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Binary(kir::Binary);
crate::exported!(Binary, 2..=2);

impl Binary {
    fn is_comparison(&self) -> bool {
        use kir::Binary::*;
        matches!(self.0, Eq | Ne | Lt | Le | Gt | Ge)
    }
}

impl OpDef for Binary {
    fn name(&self) -> &str {
        use kir::Binary::*;
        match self.0 {
            Add => "Add",
            Sub => "Sub",
            Mul => "Mul",
            Div => "Div",
            Max => "Maximum",
            Min => "Minimum",
            Pow => "Pow",
            Eq => "Equal",
            Ne => "NotEqual",
            Lt => "Less",
            Le => "LessEqual",
            Gt => "Greater",
            Ge => "GreaterEqual",
            And => "And",
            Or => "Or",
        }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        use kir::Binary::*;
        let (a, b) = (&inputs[0], &inputs[1]);
        if a.dtype != b.dtype {
            return Err(Error::dtype(format!("element types {} and {} differ", a.dtype, b.dtype))
                .note("cast one of them to the other's type"));
        }
        let logical = matches!(self.0, And | Or);
        if (a.dtype == DType::Bool) != logical && !self.is_comparison() {
            return Err(Error::dtype(format!("{} elements are not supported", a.dtype)));
        }
        if self.0 == Pow {
            super::float_input(a)?;
        }
        let dtype = if self.is_comparison() { DType::Bool } else { a.dtype };
        Ok(vec![Spec { dtype, shape: a.shape.broadcast(&b.shape)? }])
    }

    fn autocast(&self, _i: usize) -> Autocast {
        match self.0 {
            kir::Binary::Pow => Autocast::Wide,
            _ => Autocast::Widest,
        }
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        use kir::Binary::*;
        let (a, b, y, dy) = (cx.input(0), cx.input(1), cx.output(0), cx.dy());
        // Where both are equal, they share the gradient of the maximum. If both have a gradient,
        // both comparisons must see the same values.
        let [a_seen, b_seen] = match self.0 {
            Max | Min if cx.needs(0) && cx.needs(1) => [a, b].map(Tensor::optimization_barrier),
            _ => [a, b].map(Tensor::clone),
        };
        let share = |wins: Tensor| {
            let tie = a_seen.equal(&b_seen).cast(dy.dtype()) * 0.5;
            dy * (wins.cast(dy.dtype()) + tie)
        };
        let to_a = || match self.0 {
            Add | Sub => dy.clone(),
            Mul => dy * b,
            Div => dy / b,
            Max => share(a_seen.greater(&b_seen)),
            Min => share(a_seen.less(&b_seen)),
            _ => {
                // b a^(b - 1) is 0 for b = 0, at a = 0 as well, where a^-1 is infinite.
                let less = b.equal(0.0).select(&b.zero(), &(b - 1.0));
                dy * b * a.pow(&less)
            }
        };
        let to_b = || match self.0 {
            Add | Sub => dy.clone(),
            Mul => dy * a,
            Div => -(dy * y / b),
            Max => share(b_seen.greater(&a_seen)),
            Min => share(b_seen.less(&a_seen)),
            _ => {
                // a^b * ln(a) tends to 0 as a does; for a negative base the derivative with respect
                // to b does not exist.
                let positive = a.greater(0.0);
                let log = positive.select(a, &a.one()).log();
                dy * positive.select(&(y * log), &y.zero())
            }
        };
        if self.is_comparison() || matches!(self.0, And | Or) {
            return Ok(vec![None, None]);
        }
        // Negate a difference after summing it, when it has fewer elements.
        let to_b = || if self.0 == Sub { -dy.sum_like(b) } else { to_b().sum_like(b) };
        Ok(vec![cx.needs(0).then(|| to_a().sum_like(a)), cx.needs(1).then(to_b)])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (a, mut b) = (cx.input(0), cx.input(1));
        if self.0 == kir::Binary::Div && !b.dtype.is_float() && cx.constant_of(&b).is_none_or(|v| v == 0.0) {
            b = cx.nonzero(&b);
        }
        Ok(vec![cx.map(&[&a, &b], |e, r| e.binary(self.0, r[0], r[1]))])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        use Scalar::{Float, Int};
        use kir::Binary::*;
        let boolean = |v: bool| Int(i64::from(v));
        if self.0 == Div
            && cx.output_dtype(0).is_int()
            && let Some(at) = cx.input(1).values().position(|v| v.as_i64() == 0)
        {
            return Err(Error::argument(format!("element {at} of the divisor is zero")));
        }
        Ok(cx.output(|i| {
            let (x, y) = (cx.input(0).broadcast_at(i), cx.input(1).broadcast_at(i));
            let (p, q) = (x.as_f64(), y.as_f64());
            let order = match (x, y) {
                (Int(x), Int(y)) => Some(x.cmp(&y)),
                _ => p.partial_cmp(&q),
            };
            match (self.0, x, y) {
                (Eq, ..) => boolean(order.is_some_and(Ordering::is_eq)),
                (Ne, ..) => boolean(order.is_none_or(Ordering::is_ne)),
                (Lt, ..) => boolean(order.is_some_and(Ordering::is_lt)),
                (Le, ..) => boolean(order.is_some_and(Ordering::is_le)),
                (Gt, ..) => boolean(order.is_some_and(Ordering::is_gt)),
                (Ge, ..) => boolean(order.is_some_and(Ordering::is_ge)),
                (And, ..) => boolean(p != 0.0 && q != 0.0),
                (Or, ..) => boolean(p != 0.0 || q != 0.0),
                (Add, Int(x), Int(y)) => Int(x.wrapping_add(y)),
                (Sub, Int(x), Int(y)) => Int(x.wrapping_sub(y)),
                (Mul, Int(x), Int(y)) => Int(x.wrapping_mul(y)),
                (Div, Int(_), Int(0)) => unreachable!("checked above"),
                (Div, Int(x), Int(y)) => Int(x.wrapping_div(y)),
                (Max, Int(x), Int(y)) => Int(x.max(y)),
                (Min, Int(x), Int(y)) => Int(x.min(y)),
                (Add, ..) => Float(p + q),
                (Sub, ..) => Float(p - q),
                (Mul, ..) => Float(p * q),
                (Div, ..) => Float(p / q),
                // NaN on either side gives NaN.
                (Max, ..) => Float(if p > q || p.is_nan() { p } else { q }),
                (Min, ..) => Float(if p < q || p.is_nan() { p } else { q }),
                (Pow, ..) => Float(p.powf(q)),
            }
        }))
    }

    fn nan_hint(&self) -> Option<String> {
        match self.0 {
            kir::Binary::Div => Some("a divisor is zero; add a small epsilon to it".into()),
            kir::Binary::Pow => Some("a base is negative, or zero with a negative exponent".into()),
            _ => None,
        }
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        use kir::Binary::*;
        let [mut a, mut b] = [0, 1].map(|i| cx.input(i));
        // Runtimes have no arithmetic for bytes, and no order for bools.
        let wide = match a.dtype() {
            DType::U8 => DType::I32,
            DType::Bool if matches!(self.0, Lt | Le | Gt | Ge) => DType::I32,
            dtype => dtype,
        };
        [a, b] = [cx.cast(&a, wide)?, cx.cast(&b, wide)?];
        let op_type = match self.0 {
            Add => "Add",
            Sub => "Sub",
            Mul => "Mul",
            Div => "Div",
            Max => "Max",
            Min => "Min",
            Pow => "Pow",
            Eq | Ne => "Equal",
            Lt => "Less",
            Le => "LessOrEqual",
            Gt => "Greater",
            Ge => "GreaterOrEqual",
            And => "And",
            Or => "Or",
        };
        let dtype = if self.is_comparison() { DType::Bool } else { wide };
        let y = cx.elementwise(op_type, &[&a, &b], &[], dtype)?;
        let y = if self.0 == Ne { cx.elementwise("Not", &[&y], &[], DType::Bool)? } else { y };
        Ok(vec![cx.cast(&y, cx.output_dtype(0))?])
    }
}

impl Tensor {
    /// Converts a literal to an operand of `op`. Dividing integers by a literal is an error,
    /// because it is unclear whether the result should be truncated.
    #[track_caller]
    fn scalar_operand(&self, op: kir::Binary, value: f64) -> Tensor {
        if op == kir::Binary::Div && !self.is_poison() && self.dtype().is_int() {
            let why = format!("cannot divide {} elements by the literal {value}", self.dtype());
            let e = Error::dtype(why).note("cast to f32 first; dividing two integer tensors truncates");
            return self.fail("Div", e);
        }
        self.constant_like(value)
    }

    /// Returns the two factors if this tensor is an elementwise product.
    pub(super) fn factors(&self) -> Option<[Tensor; 2]> {
        let node = self.graph().node(self.id()?.node)?;
        let product = Binary(kir::Binary::Mul);
        let is_product = matches!(&node.kind, NodeKind::Op(op) if product.same(op.as_ref()));
        match node.inputs[..] {
            [a, b] if is_product => Some([self.graph().tensor_at(a), self.graph().tensor_at(b)]),
            _ => None,
        }
    }
}

/// The other operand of a comparison, [`Tensor::maximum`] and the like: a tensor, or a number, which
/// gets the element type of the first one.
pub trait Operand {
    /// Returns the operand as a tensor in the graph and of the element type of `like`.
    #[doc(hidden)]
    fn operand(self, like: &Tensor) -> Tensor;
}

impl Operand for &Tensor {
    fn operand(self, _: &Tensor) -> Tensor {
        self.clone()
    }
}

impl Operand for f64 {
    #[track_caller]
    fn operand(self, like: &Tensor) -> Tensor {
        like.constant_like(self)
    }
}

macro_rules! methods {
    ($($(#[$doc:meta])* $method:ident => $op:ident),* $(,)?) => {
        impl Tensor {
            $($(#[$doc])* #[track_caller] pub fn $method(&self, other: impl Operand) -> Tensor {
                Tensor::apply_one(Binary(kir::Binary::$op), &[self, &other.operand(self)])
            })*
        }
    };
}

methods! {
    /// The elementwise maximum; NaN if either element is NaN.
    maximum => Max,
    /// The elementwise minimum; NaN if either element is NaN.
    minimum => Min,
    /// This tensor to the power of the other.
    pow => Pow,
    /// Whether the elements are equal.
    equal => Eq,
    /// Whether the elements differ.
    not_equal => Ne,
    /// Whether this is less than the other.
    less => Lt,
    /// Whether this is less than or equal to the other.
    less_equal => Le,
    /// Whether this is greater than the other.
    greater => Gt,
    /// Whether this is greater than or equal to the other.
    greater_equal => Ge,
}

impl Tensor {
    /// Logical and.
    #[track_caller]
    pub fn logical_and(&self, other: &Tensor) -> Tensor {
        Tensor::apply_one(Binary(kir::Binary::And), &[self, other])
    }

    /// Logical or.
    #[track_caller]
    pub fn logical_or(&self, other: &Tensor) -> Tensor {
        Tensor::apply_one(Binary(kir::Binary::Or), &[self, other])
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident => $op:ident),*) => {$(
        impl std::ops::$trait<&Tensor> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                Tensor::apply_one(Binary(kir::Binary::$op), &[self, other])
            }
        }
        impl std::ops::$trait<Tensor> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor { std::ops::$trait::$method(self, &other) }
        }
        impl std::ops::$trait<&Tensor> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor { std::ops::$trait::$method(&self, other) }
        }
        impl std::ops::$trait<Tensor> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor { std::ops::$trait::$method(&self, &other) }
        }
        impl std::ops::$trait<f64> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: f64) -> Tensor {
                std::ops::$trait::$method(self, &self.scalar_operand(kir::Binary::$op, other))
            }
        }
        impl std::ops::$trait<f64> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: f64) -> Tensor { std::ops::$trait::$method(&self, other) }
        }
        impl std::ops::$trait<&Tensor> for f64 {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                std::ops::$trait::$method(&other.scalar_operand(kir::Binary::$op, self), other)
            }
        }
        impl std::ops::$trait<Tensor> for f64 {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor { std::ops::$trait::$method(self, &other) }
        }
    )*};
}
operators!(Add add => Add, Sub sub => Sub, Mul mul => Mul, Div div => Div);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;

    const COMPARISON: Gradient = Never("boolean result");

    cases![
        binary("Add", Twice, [Any, Any], |a, b| a + b)
            .empty("x + y", "[0, 3], [1, 3]", "empty [0, 3]", |x| &x[0] + &x[1])
            .empty(
                "x + y",
                "[0, 3], [2, 3]",
                "error: shapes [0, 3] and [2, 3] cannot be broadcast together",
                |x| &x[0] + &x[1]
            ),
        binary("Sub", Twice, [Any, Any], |a, b| a - b),
        binary("Mul", Twice, [Any, Any], |a, b| a * b),
        binary("Div", Twice, [Any, AwayFromZero], |a, b| a / b),
        binary("Pow", Twice, [Positive, Any], |a, b| a.pow(b)),
        binary("Maximum", Twice, [Apart, Apart], |a, b| a.maximum(b)),
        binary("Minimum", Twice, [Apart, Apart], |a, b| a.minimum(b)),
        binary("Equal", COMPARISON, [Halves, Halves], |a, b| a.equal(b)),
        binary("NotEqual", COMPARISON, [Halves, Halves], |a, b| a.not_equal(b)),
        binary("Less", COMPARISON, [Halves, Halves], |a, b| a.less(b)),
        binary("LessEqual", COMPARISON, [Halves, Halves], |a, b| a.less_equal(b)),
        binary("Greater", COMPARISON, [Halves, Halves], |a, b| a.greater(b)),
        binary("GreaterEqual", COMPARISON, [Halves, Halves], |a, b| a.greater_equal(b)),
        logical("And", Tensor::logical_and),
        logical("Or", Tensor::logical_or),
        // A chain with a repeated input, to test fusion and accumulated gradients.
        binary("Mul twice", Twice, [Any, Positive], |a, b| (a * b).tanh() * a + b.log() * a),
    ];
}
