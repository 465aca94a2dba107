//! The training interface, from the outside.

mod custom;
mod cut_short;
mod dumps;
mod faults;
mod exports;
mod hyper_params;
mod inference;
mod inputs;
mod interface;
mod kills;
mod life_cycle;
mod models;
mod modules;
mod not_finite;
mod predictors;
mod processes;
mod remembered;
mod resume;
mod schedules;
mod statistics;
mod tower_functions;
mod towers;
mod trackers;
