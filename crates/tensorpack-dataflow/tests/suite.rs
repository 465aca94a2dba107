//! Tests of the data crate that can share a process: one binary links once, and its tests share the
//! cores.

mod adaptors;
mod augmentors;
mod decode;
mod fetch;
mod offline;
mod parallel;
mod pipelines;
mod rand_augment;
