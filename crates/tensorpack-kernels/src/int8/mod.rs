//! Products of 8-bit integers with exact sums.
//!
//! - `contract` is the interface: sizes, packing of weights, and which rows a chunk multiplies.
//! - `tile` multiplies a few rows by a panel of columns: the loops of each instruction set.

mod contract;
mod tile;

pub use contract::Int8Contract;
