//! Tests of the kernels, in one binary: it links once, and the tests of all kernels share the cores.

mod argsort;
mod nms;
mod contract;
mod copy;
mod gather;
mod map;
mod oracle;
mod pool;
mod reduce;
