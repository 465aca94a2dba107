//! Contractions of bf16 with f32 sums, by instructions that multiply pairs of bf16.
//!
//! The operands become matrices of pairs, two neighboring terms of the sum in 32 bits (`pairing`).
//! A matrix product or convolution of pairs is then the f32 one with sums of half the length
//! (`contract`): it shares blocking, packing and micro-kernels with f32.

mod contract;
mod pairing;

pub use contract::Bf16Contract;
