//! Layers: against values PyTorch computed in float64, in graphs with several towers, and in what they make and say.

mod bad_input;
mod batch_norm;
mod bf16;
mod golden;
mod logged;
mod models;
