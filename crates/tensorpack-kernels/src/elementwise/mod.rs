//! Fused elementwise kernels: scalar expressions over every element of an iteration space.

pub(crate) mod iteration_space;
pub(crate) mod map;
pub(crate) mod steps;
pub(crate) mod tile_program;

pub use map::{Map, Operand};
