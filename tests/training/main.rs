//! The training interface, from the outside.

mod life_cycle;
mod models;
