//! Decides which expressions on bf16 or f16 operands are computed in that type: those whose result
//! has the same bits as f32 arithmetic rounded at the store. Devices have units for these types, and
//! intermediate results in memory take half the space.

use super::stablehlo::{Element, Value};
use crate::kir::{Binary, Class, Expr, Reg, Step, Unary};
use tensorpack_tensor::{DType, bf16, f16};

/// Returns the dtype in which the f32 steps of a map are computed. `stored` are its output dtypes.
pub(super) fn compute_dtype(expr: &Expr, operands: &[Value], stored: &[DType]) -> DType {
    let is = |x: &Value, dtype: DType| x.element == dtype.into();
    let narrow = operands.iter().find_map(|x| match x.element {
        Element::Of(dtype) if dtype.is_narrow_float() => Some(dtype),
        _ => None,
    });
    let same = |narrow: &DType| operands.iter().all(|x| is(x, *narrow) || is(x, DType::Bool));
    let exact = |narrow: &DType| (0..expr.steps.len()).all(|at| is_exact(expr, at, stored, *narrow));
    narrow.filter(same).filter(exact).unwrap_or(DType::F32)
}

/// Whether a step on values of type `narrow` has the same result in that type as in f32.
fn is_exact(expr: &Expr, at: usize, stored: &[DType], narrow: DType) -> bool {
    match expr.steps[at] {
        Step::Operand { class, .. } => class == Class::F32,
        Step::Const(number, class) => class == Class::F32 && rounded(number, narrow) == number,
        // The result is one of the operands, up to its sign, or a boolean.
        Step::Unary(op, _) if op != Unary::Square => {
            matches!(op, Unary::Neg | Unary::Abs | Unary::Relu | Unary::Not | Unary::IsFinite)
        }
        Step::Binary(op, ..) if !matches!(op, Binary::Add | Binary::Sub | Binary::Mul) => {
            !matches!(op, Binary::Div | Binary::Pow)
        }
        Step::Select(..) => true,
        // f32 has more than twice the digits of both types (24 are enough for the 11 of f16), so
        // rounding its result once more equals rounding the exact result. A step that reads the result needs it unrounded.
        Step::Unary(..) | Step::Binary(..) => {
            let outputs = || expr.outputs.iter().zip(stored).filter(|(r, _)| r.0 as usize == at);
            let read = expr.steps.iter().any(|step| reads(step, Reg(at as _)));
            !read && outputs().all(|(_, dtype)| *dtype == narrow)
        }
        Step::Index { .. } | Step::Cast(..) => false,
    }
}

/// Returns the number nearest to `number` in a float type of 16 bits.
fn rounded(number: f64, narrow: DType) -> f64 {
    match narrow {
        DType::F16 => f16::from_f64(number).to_f64(),
        _ => bf16::from_f64(number).to_f64(),
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
