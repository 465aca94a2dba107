//! The synchronization primitives of the code that has loom models: those of `std`, or those of the
//! model checker loom in a build with `--cfg loom`.

#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU64},
    sync::{Arc, Condvar, Mutex, MutexGuard},
};

#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU64},
    sync::{Arc, Condvar, Mutex, MutexGuard},
};
