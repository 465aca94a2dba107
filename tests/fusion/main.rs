//! The CPU engine's optimizations change no result: fusion, epilogues, hoisting out of pooling
//! gradients, updates in place and merged into passes.
//!
//! `TENSORPACK_TEST_CASES` sets the number of random programs, which are the same in every run.

mod barrier;
mod epilogues;
mod graph_builder;
mod graphs;
mod merging;
mod panels;
mod pooling;
mod reductions;
mod stored;
mod updates;
mod views;
