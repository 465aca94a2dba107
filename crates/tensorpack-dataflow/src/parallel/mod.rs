//! Reading and mapping on threads of their own.
//!
//! A [`WorkerPool`](crew::WorkerPool) is the threads of one reader. Each takes a task from the feed, does it, and puts the result
//! where it belongs in the [`ReorderBuffer`](line::ReorderBuffer), from which the consumer takes one after the other. The line is as long as
//! may be made ahead.

mod worker_pool;
mod work_source;
mod reorder_buffer;
mod map_batch;
mod map_parallel;
mod prefetch;

pub use map_batch::{BatchRow, MapBatch};
pub use map_parallel::MapParallel;
pub use prefetch::Prefetch;
