//! Scalar expressions: the computation of a fused elementwise kernel for one element.
//!
//! An [`Expr`] is a straight-line program whose steps use the results of earlier steps. A kernel
//! runs it one tile of elements at a time, step by step, so a chain of operations reads and writes
//! memory once.

use serde::{Deserialize, Serialize};
use std::hash::{Hash, Hasher};
use tensorpack_tensor::DType;

/// The type that arithmetic is done in. Elements are converted when loaded and stored: bf16
/// and f16 compute in f32, all integers and bool in i64 (wrapping when stored). That gives the same
/// results with fewer loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// f32, bf16 and f16.
    F32,
    /// f64.
    F64,
    /// i32, i64, u8 and bool.
    I64,
}

impl Class {
    /// Returns the class that elements of `dtype` are computed in.
    #[doc(alias = "of")]
    pub fn from_dtype(dtype: DType) -> Class {
        match dtype {
            DType::F32 | DType::Bf16 | DType::F16 => Class::F32,
            DType::F64 => Class::F64,
            DType::I32 | DType::I64 | DType::U8 | DType::Bool => Class::I64,
        }
    }
}

/// A virtual register: the result of the step with this index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reg(pub u16);

/// A function of one value. Booleans are values of the same class: 0 is false, anything else is
/// true, and predicates return 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the functions")]
pub enum Unary {
    Neg,
    Abs,
    Sign,
    Exp,
    /// `e^x - 1`, accurate near 0.
    Expm1,
    Log,
    Log1p,
    Sqrt,
    Rsqrt,
    Recip,
    Square,
    Tanh,
    Sigmoid,
    Erf,
    Sin,
    Cos,
    Floor,
    /// To the nearest integer, halves to even.
    Round,
    /// `max(x, 0)`, with NaN staying NaN.
    Relu,
    /// 1 if the value is 0, else 0.
    Not,
    /// 1 if the value is neither NaN nor infinite, else 0.
    IsFinite,
}

/// A function of two values of the same class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the functions")]
pub enum Binary {
    Add,
    Sub,
    Mul,
    /// Integer division truncates as in Rust; division by zero gives 0.
    Div,
    /// NaN if either is NaN.
    Max,
    /// NaN if either is NaN.
    Min,
    Pow,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    And,
    Or,
}

/// One step of an expression. Steps are equal if they compute the same bits: constants are compared
/// by bits, so NaN equals itself and 0 differs from -0.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// The element of operand `index`, converted to `class`.
    Operand {
        /// Index of the operand.
        index: u16,
        /// Class of the result.
        class: Class,
    },
    /// The same value for every element.
    Const(f64, Class),
    /// The element's position along dimension `axis` of the iteration space.
    Index {
        /// The dimension.
        axis: u16,
        /// Class of the result.
        class: Class,
    },
    /// A function of one earlier result.
    Unary(Unary, Reg),
    /// A function of two earlier results of the same class.
    Binary(Binary, Reg, Reg),
    /// The second result where the first is true, otherwise the third. The last two have the same
    /// class.
    Select(Reg, Reg, Reg),
    /// An earlier result converted to another class, with the semantics of Rust's `as`.
    Cast(Class, Reg),
}

/// A step with constants as bits, for which equality and hash can be derived.
#[derive(PartialEq, Eq, Hash)]
enum StepBits {
    Operand(u16, Class),
    Const(u64, Class),
    Index(u16, Class),
    Unary(Unary, Reg),
    Binary(Binary, Reg, Reg),
    Select(Reg, Reg, Reg),
    Cast(Class, Reg),
}

impl Step {
    fn bits(self) -> StepBits {
        match self {
            Step::Operand { index, class } => StepBits::Operand(index, class),
            Step::Const(value, class) => StepBits::Const(value.to_bits(), class),
            Step::Index { axis, class } => StepBits::Index(axis, class),
            Step::Unary(op, x) => StepBits::Unary(op, x),
            Step::Binary(op, a, b) => StepBits::Binary(op, a, b),
            Step::Select(condition, a, b) => StepBits::Select(condition, a, b),
            Step::Cast(class, x) => StepBits::Cast(class, x),
        }
    }
}

impl PartialEq for Step {
    fn eq(&self, other: &Step) -> bool {
        self.bits() == other.bits()
    }
}

impl Eq for Step {}

impl Hash for Step {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bits().hash(state);
    }
}

/// A straight-line program for one element.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Expr {
    /// The steps; step `i` defines `Reg(i)`.
    pub steps: Vec<Step>,
    /// The results, one per output of the kernel.
    pub outputs: Vec<Reg>,
}

impl Expr {
    /// Returns the class of a step's result.
    pub fn class(&self, mut reg: Reg) -> Class {
        loop {
            reg = match self.steps[reg.0 as usize] {
                Step::Operand { class, .. } | Step::Const(_, class) | Step::Index { class, .. } => {
                    return class;
                }
                Step::Cast(class, _) => return class,
                Step::Unary(_, r) | Step::Binary(_, r, _) | Step::Select(_, r, _) => r,
            }
        }
    }

    /// Estimates the cost per element, in units of a simple step.
    pub(crate) fn cost(&self) -> usize {
        let steps = self.steps.iter().map(|step| match step {
            Step::Unary(Unary::Exp | Unary::Expm1 | Unary::Log | Unary::Log1p | Unary::Tanh, _) => 8,
            Step::Unary(Unary::Sigmoid | Unary::Erf | Unary::Sin | Unary::Cos, _) => 8,
            Step::Binary(Binary::Pow, ..) => 8,
            _ => 1,
        });
        steps.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn constants_are_equal_if_their_bits_are() {
        let constant = |value: f64| Step::Const(value, Class::F64);
        assert_eq!(constant(f64::NAN), constant(f64::NAN));
        assert_ne!(constant(0.0), constant(-0.0));
        assert_ne!(constant(1.0), Step::Const(1.0, Class::F32));
        let steps = [0.0, -0.0, f64::NAN, 0.0, f64::NAN].map(constant);
        assert_eq!(steps.into_iter().collect::<HashSet<Step>>().len(), 3);
    }
}
