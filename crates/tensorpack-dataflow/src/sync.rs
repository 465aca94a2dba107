//! The synchronization primitives of the worker threads: those of `std`, or those of the model
//! checker loom in a build with `--cfg loom`.

#[cfg(not(loom))]
pub(crate) use std::{
    sync::atomic::AtomicBool,
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread::{Builder, JoinHandle},
};

#[cfg(loom)]
pub(crate) use loom::{
    sync::atomic::AtomicBool,
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread::{Builder, JoinHandle},
};
