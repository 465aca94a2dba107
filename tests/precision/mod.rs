//! Mixed precision: which operations narrow their inputs, and how models train.

mod loss_scale;
mod overflowing_cost;
mod policy;
mod training;
