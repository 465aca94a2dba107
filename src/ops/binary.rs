//! Functions of two numbers, element by element, with broadcasting; and Rust's operators for them.

use crate::graph::{GradCx, NodeKind, OpDef, OpIdentity, Spec, Tensor};
use crate::kir::{self, LowerCx, View};
use crate::reference::{Array, EvaluateCx, Scalar};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use tensorpack_tensor::{DType, Error, Result};

/// A function of every pair of elements.
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
            return Err(Error::dtype(format!("does not take {} elements", a.dtype)));
        }
        if self.0 == Pow {
            super::float_input(a)?;
        }
        let dtype = if self.is_comparison() { DType::Bool } else { a.dtype };
        Ok(vec![Spec { dtype, shape: a.shape.broadcast(&b.shape)? }])
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        use kir::Binary::*;
        let (a, b, y, dy) = (cx.input(0), cx.input(1), cx.output(0), cx.dy());
        // Where both are equal, the maximum's gradient is shared between them.
        let share = |wins: Tensor| {
            let tie = a.equal(b).cast(dy.dtype()) * 0.5;
            dy * (wins.cast(dy.dtype()) + tie)
        };
        let to_a = || match self.0 {
            Add | Sub => dy.clone(),
            Mul => dy * b,
            Div => dy / b,
            Max => share(a.greater(b)),
            Min => share(a.less(b)),
            _ => dy * b * a.pow(&(b - 1.0)),
        };
        let to_b = || match self.0 {
            Add | Sub => dy.clone(),
            Mul => dy * a,
            Div => -(dy * y / b),
            Max => share(b.greater(a)),
            Min => share(b.less(a)),
            _ => {
                // a^b * ln(a) tends to 0 as a does; a negative base has no derivative in b.
                let positive = a.greater(&a.zero());
                let log = positive.select(a, &a.one()).log();
                dy * positive.select(&(y * log), &y.zero())
            }
        };
        if self.is_comparison() || matches!(self.0, And | Or) {
            return Ok(vec![None, None]);
        }
        // A difference is negated after it is summed: there is less of it then.
        let to_b = || if self.0 == Sub { -dy.sum_like(b) } else { to_b().sum_like(b) };
        Ok(vec![cx.needs(0).then(|| to_a().sum_like(a)), cx.needs(1).then(to_b)])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (a, b) = (cx.input(0), cx.input(1));
        Ok(vec![cx.map(&[&a, &b], |e, r| e.binary(self.0, r[0], r[1]))])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        use Scalar::{Float, Int};
        use kir::Binary::*;
        let truth = |v: bool| Int(i64::from(v));
        Ok(cx.output(|i| {
            let (x, y) = (cx.input(0).broadcast_at(i), cx.input(1).broadcast_at(i));
            let (p, q) = (x.as_f64(), y.as_f64());
            let order = match (x, y) {
                (Int(x), Int(y)) => Some(x.cmp(&y)),
                _ => p.partial_cmp(&q),
            };
            match (self.0, x, y) {
                (Eq, ..) => truth(order.is_some_and(Ordering::is_eq)),
                (Ne, ..) => truth(order.is_none_or(Ordering::is_ne)),
                (Lt, ..) => truth(order.is_some_and(Ordering::is_lt)),
                (Le, ..) => truth(order.is_some_and(Ordering::is_le)),
                (Gt, ..) => truth(order.is_some_and(Ordering::is_gt)),
                (Ge, ..) => truth(order.is_some_and(Ordering::is_ge)),
                (And, ..) => truth(p != 0.0 && q != 0.0),
                (Or, ..) => truth(p != 0.0 || q != 0.0),
                (Add, Int(x), Int(y)) => Int(x.wrapping_add(y)),
                (Sub, Int(x), Int(y)) => Int(x.wrapping_sub(y)),
                (Mul, Int(x), Int(y)) => Int(x.wrapping_mul(y)),
                (Div, Int(_), Int(0)) => Int(0),
                (Div, Int(x), Int(y)) => Int(x.wrapping_div(y)),
                (Max, Int(x), Int(y)) => Int(x.max(y)),
                (Min, Int(x), Int(y)) => Int(x.min(y)),
                (Add, ..) => Float(p + q),
                (Sub, ..) => Float(p - q),
                (Mul, ..) => Float(p * q),
                (Div, ..) => Float(p / q),
                // A NaN on either side is the result.
                (Max, ..) => Float(if p > q || p.is_nan() { p } else { q }),
                (Min, ..) => Float(if p < q || p.is_nan() { p } else { q }),
                (Pow, ..) => Float(p.powf(q)),
            }
        }))
    }

    fn nan_hint(&self) -> Option<String> {
        match self.0 {
            kir::Binary::Div => Some("a divisor is zero; add a small number to it".into()),
            kir::Binary::Pow => Some("a base is negative, or zero with a negative exponent".into()),
            _ => None,
        }
    }
}

impl Tensor {
    /// The two tensors this is the product of, element by element, if it is one.
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

macro_rules! methods {
    ($($(#[$doc:meta])* $method:ident => $op:ident),* $(,)?) => {
        impl Tensor {
            $($(#[$doc])* #[track_caller] pub fn $method(&self, other: &Tensor) -> Tensor {
                Tensor::apply_one(Binary(kir::Binary::$op), &[self, other])
            })*
        }
    };
}

methods! {
    /// The larger of the two; NaN if either is.
    maximum => Max,
    /// The smaller of the two; NaN if either is.
    minimum => Min,
    /// This to the power of the other.
    pow => Pow,
    /// Whether equal.
    equal => Eq,
    /// Whether different.
    not_equal => Ne,
    /// Whether less.
    less => Lt,
    /// Whether less or equal.
    less_equal => Le,
    /// Whether greater.
    greater => Gt,
    /// Whether greater or equal.
    greater_equal => Ge,
    /// Whether both.
    logical_and => And,
    /// Whether either.
    logical_or => Or,
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
            fn $method(self, other: f64) -> Tensor { std::ops::$trait::$method(self, &self.constant_like(other)) }
        }
        impl std::ops::$trait<f64> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: f64) -> Tensor { std::ops::$trait::$method(&self, other) }
        }
        impl std::ops::$trait<&Tensor> for f64 {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor { std::ops::$trait::$method(&other.constant_like(self), other) }
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
    use crate::trial::*;

    const COMPARISON: Gradient = Never("a truth value");

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
        binary("Pow", Twice, [Positive, Any], Tensor::pow),
        binary("Maximum", Twice, [Apart, Apart], Tensor::maximum),
        binary("Minimum", Twice, [Apart, Apart], Tensor::minimum),
        binary("Equal", COMPARISON, [Halves, Halves], Tensor::equal),
        binary("NotEqual", COMPARISON, [Halves, Halves], Tensor::not_equal),
        binary("Less", COMPARISON, [Halves, Halves], Tensor::less),
        binary("LessEqual", COMPARISON, [Halves, Halves], Tensor::less_equal),
        binary("Greater", COMPARISON, [Halves, Halves], Tensor::greater),
        binary("GreaterEqual", COMPARISON, [Halves, Halves], Tensor::greater_equal),
        logical("And", Tensor::logical_and),
        logical("Or", Tensor::logical_or),
        // A chain with a repeated input, for fusion and for gradients that add up.
        binary("Mul twice", Twice, [Any, Positive], |a, b| (a * b).tanh() * a + b.log() * a),
    ];
}
