//! Which expressions of bf16 are computed in bf16: those that give the same bits as f32 does, rounded when stored.
//! Devices have units for them, and what a compiler keeps of them in memory is half as long.

use super::text::Value;
use crate::kir::{Binary, Class, Expr, Reg, Step, Unary};
use tensorpack_tensor::{DType, bf16};

/// The type for the steps of class f32 of a map whose outputs are stored as these types.
pub(super) fn float_of(expr: &Expr, operands: &[Value], stored: &[DType]) -> DType {
    let is = |x: &Value, dtype: DType| x.element == dtype.into();
    let of_bf16 = operands.iter().any(|x| is(x, DType::Bf16))
        && operands.iter().all(|x| is(x, DType::Bf16) || is(x, DType::Bool));
    let same = (0..expr.steps.len()).all(|at| is_same(expr, at, stored));
    if of_bf16 && same { DType::Bf16 } else { DType::F32 }
}

/// Whether a step of numbers that bf16 has gives the same in bf16.
fn is_same(expr: &Expr, at: usize, stored: &[DType]) -> bool {
    match expr.steps[at] {
        Step::Operand { class, .. } => class == Class::F32,
        Step::Const(number, class) => class == Class::F32 && bf16::from_f64(number).to_f64() == number,
        // One of the numbers given, with another sign at most, or a truth value.
        Step::Unary(op, _) if op != Unary::Square => {
            matches!(op, Unary::Neg | Unary::Abs | Unary::Relu | Unary::Not | Unary::IsFinite)
        }
        Step::Binary(op, ..) if !matches!(op, Binary::Add | Binary::Sub | Binary::Mul) => {
            !matches!(op, Binary::Div | Binary::Pow)
        }
        Step::Select(..) => true,
        // f32 has more than twice the digits of bf16, so what it makes of two is rounded as the exact result would
        // be. Whoever computes with it must have it unrounded.
        Step::Unary(..) | Step::Binary(..) => {
            let outputs = || expr.outputs.iter().zip(stored).filter(|(r, _)| r.0 as usize == at);
            let read = expr.steps.iter().any(|step| reads(step, Reg(at as _)));
            !read && outputs().all(|(_, dtype)| *dtype == DType::Bf16)
        }
        Step::Index { .. } | Step::Cast(..) => false,
    }
}

fn reads(step: &Step, reg: Reg) -> bool {
    match *step {
        Step::Operand { .. } | Step::Const(..) | Step::Index { .. } => false,
        Step::Unary(_, a) | Step::Cast(_, a) => a == reg,
        Step::Binary(_, a, b) => a == reg || b == reg,
        Step::Select(a, b, c) => [a, b, c].contains(&reg),
    }
}
