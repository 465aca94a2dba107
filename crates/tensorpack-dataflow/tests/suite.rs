//! Tests of the data crate, in one binary: it links once, and all tests share the cores.

mod adaptors;
mod augmentors;
mod corpus;
mod decode;
mod fetch;
mod offline;
mod parallel;
mod pipelines;
