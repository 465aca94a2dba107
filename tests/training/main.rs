//! The training interface, from the outside.

mod dumps;
mod exports;
mod hyper_params;
mod inference;
mod kills;
mod life_cycle;
mod models;
mod predictors;
mod remembered;
mod schedules;
mod statistics;
mod trackers;
