//! Scalar expressions: what one element of a fused elementwise kernel computes. An [`Expr`] is a straight line of
//! steps, each using the results of earlier ones; a kernel runs it over a tile of elements at a time, step by step,
//! so that a chain of operations reads and writes memory once.

use serde::{Deserialize, Serialize};
use tensorpack_tensor::DType;

/// The types arithmetic is done in. Elements are converted when loaded and stored: bf16 computes in f32, all
/// integers and bool in i64 (wrapping when stored), which gives the same results with fewer loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// f32 and bf16.
    F32,
    /// f64.
    F64,
    /// i32, i64, u8 and bool.
    I64,
}

impl Class {
    /// The class in which elements of `dtype` are computed.
    pub fn of(dtype: DType) -> Class {
        match dtype {
            DType::F32 | DType::Bf16 => Class::F32,
            DType::F64 => Class::F64,
            DType::I32 | DType::I64 | DType::U8 | DType::Bool => Class::I64,
        }
    }
}

/// The result of a step, by the step's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reg(pub u16);

/// A function of one number. Truth values are numbers of the same class: 0 is false, all else true, and what yields
/// a truth value yields 0 or 1.
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

/// A function of two numbers of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the functions")]
pub enum Binary {
    Add,
    Sub,
    Mul,
    /// Integer division truncates, as Rust's; by zero it gives 0.
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

/// One step of an expression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// The element of the kernel's operand number `index`, converted to `class`.
    Operand {
        /// Which operand.
        index: u16,
        /// The class it is wanted in.
        class: Class,
    },
    /// The same number for every element.
    Const(f64, Class),
    /// The element's position along dimension `axis` of the iteration space.
    Index {
        /// The dimension.
        axis: u16,
        /// The class it is wanted in.
        class: Class,
    },
    /// A function of one earlier result.
    Unary(Unary, Reg),
    /// A function of two earlier results of one class.
    Binary(Binary, Reg, Reg),
    /// The second where the first is true, else the third; the last two of one class.
    Select(Reg, Reg, Reg),
    /// An earlier result in another class, as Rust's `as` converts.
    Cast(Class, Reg),
}

/// A straight-line program for one element.
#[derive(Clone, Debug, PartialEq)]
pub struct Expr {
    /// The steps; step `i` defines `Reg(i)`.
    pub steps: Vec<Step>,
    /// The results, one for each output of the kernel.
    pub outputs: Vec<Reg>,
}

impl Expr {
    /// The class of a step's result.
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

    /// How much there is to do for an element, in simple steps.
    pub(crate) fn effort(&self) -> usize {
        let steps = self.steps.iter().map(|step| match step {
            Step::Unary(Unary::Exp | Unary::Expm1 | Unary::Log | Unary::Log1p | Unary::Tanh, _) => 8,
            Step::Unary(Unary::Sigmoid | Unary::Erf | Unary::Sin | Unary::Cos, _) => 8,
            Step::Binary(Binary::Pow, ..) => 8,
            _ => 1,
        });
        steps.sum()
    }
}
