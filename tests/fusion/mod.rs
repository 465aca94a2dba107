//! Compiler passes of the CPU engine change no result: fusion, epilogues, operations moved before
//! pooling, in-place and merged updates.
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
