//! Arithmetic on single elements: storage types, the types arithmetic is done in, and their
//! functions.

mod addend;
pub(crate) mod element;
mod math;
mod number;

pub(crate) use addend::Addend;

pub(crate) use number::Number;
