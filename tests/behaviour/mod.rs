//! Tests of the graph, the engine and the session through the public API.

#[path = "../models/mod.rs"]
mod models;

mod attention;
mod kv_cache;
mod bits;
mod errors;
mod bad_input;
mod bad_lowering;
mod hostile_sizes;
mod out_of_memory;
mod not_finite;
mod variables;
mod step_program;
mod engines;
mod null_device;
mod reference_device;
mod threads;
mod plan;
mod panels;
mod rows;
mod dumps;
