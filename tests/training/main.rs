//! The training interface, from the outside.

mod kills;
mod life_cycle;
mod models;
mod predictors;
