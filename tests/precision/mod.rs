//! Mixed precision: which operations narrow their inputs, and how models train.

mod policy;
mod training;
