//! How operations are tried: inputs of random sizes, strides and values, and what is done with them. Each operation's
//! file ends with its cases; `truth` holds every case to the chain of truth.

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
