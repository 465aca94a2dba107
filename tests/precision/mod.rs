//! Mixed precision: which operations narrow their inputs, and how models train.

mod cpu_kernels;
mod loss_scale;
mod overflowing_cost;
mod policy;
mod training;
