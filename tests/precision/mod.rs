//! Mixed precision: which operations narrow their inputs, and how models train.

mod loss_scale;
mod policy;
mod training;
