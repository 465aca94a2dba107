//! Test cases of operations: how to draw inputs of random sizes, strides and values, and what to
//! compute from them. The file of each operation ends with its cases; `op_tests` runs them.

mod case;
mod draw;
mod input;

pub(crate) use case::{
    Case, Cases, Empty,
    Gradient::{self, Never, Twice},
    all_cases, binary, case, cases, logical, pair, reduction, unary,
};
pub(crate) use draw::{
    Domain::{self, Any, Apart, AwayFromZero, Halves, Positive},
    Draw,
};
pub(crate) use input::{Elements, Input, Trial};
