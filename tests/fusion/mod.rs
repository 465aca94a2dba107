//! What the CPU engine makes of a program changes no result: fusion, epilogues, what is done before
//! pooling, updates in place and joined into passes.
//!
//! `TENSORPACK_TEST_CASES` sets how many random programs are tried; what is drawn is the same in
//! every run.

mod barrier;
mod epilogues;
mod graphs;
mod growing;
mod merging;
mod panels;
mod pooling;
mod reductions;
mod stored;
mod updates;
mod views;
