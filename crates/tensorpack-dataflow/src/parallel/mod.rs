//! Adaptors that run on background threads.
//!
//! Each reader owns a [`WorkerPool`](worker_pool::WorkerPool). A worker takes a task from the
//! [`WorkSource`](work_source::WorkSource), runs it and stores the result in its slot of the
//! [`ReorderBuffer`](reorder_buffer::ReorderBuffer), which the consumer drains in order. The
//! capacity of the buffer bounds how far the workers run ahead.

mod worker_pool;
mod work_source;
mod reorder_buffer;
mod map_batch;
mod map_parallel;
mod prefetch;
#[cfg(all(test, loom))]
mod models;

pub use map_batch::{BatchRow, MapBatch};
pub use map_parallel::MapParallel;
pub use prefetch::Prefetch;
