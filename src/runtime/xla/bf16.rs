//! Decides which expressions on bf16 operands are computed in bf16: those whose result has the same
//! bits as f32 arithmetic rounded at the store. Devices have units for bf16, and intermediate
//! results in memory take half the space.

use super::stablehlo::Value;
use crate::kir::{Binary, Class, Expr, Reg, Step, Unary};
use tensorpack_tensor::{DType, bf16};

/// Returns the dtype in which the f32 steps of a map are computed. `stored` are its output dtypes.
pub(super) fn compute_dtype(expr: &Expr, operands: &[Value], stored: &[DType]) -> DType {
    let is = |x: &Value, dtype: DType| x.element == dtype.into();
    let of_bf16 = operands.iter().any(|x| is(x, DType::Bf16))
        && operands.iter().all(|x| is(x, DType::Bf16) || is(x, DType::Bool));
    let exact = (0..expr.steps.len()).all(|at| is_exact(expr, at, stored));
    if of_bf16 && exact { DType::Bf16 } else { DType::F32 }
}

/// Whether a step on bf16 values has the same result in bf16 as in f32.
fn is_exact(expr: &Expr, at: usize, stored: &[DType]) -> bool {
    match expr.steps[at] {
        Step::Operand { class, .. } => class == Class::F32,
        Step::Const(number, class) => class == Class::F32 && bf16::from_f64(number).to_f64() == number,
        // The result is one of the operands, up to its sign, or a boolean.
        Step::Unary(op, _) if op != Unary::Square => {
            matches!(op, Unary::Neg | Unary::Abs | Unary::Relu | Unary::Not | Unary::IsFinite)
        }
        Step::Binary(op, ..) if !matches!(op, Binary::Add | Binary::Sub | Binary::Mul) => {
            !matches!(op, Binary::Div | Binary::Pow)
        }
        Step::Select(..) => true,
        // f32 has more than twice the digits of bf16, so rounding its result to bf16 equals
        // rounding the exact result. A step that reads the result needs it unrounded.
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
