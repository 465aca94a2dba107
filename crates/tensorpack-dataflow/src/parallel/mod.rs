//! Reading and mapping on threads of their own.
//!
//! A [`Crew`](crew::Crew) is the threads of one reader. Each takes a task from the feed, does it, and puts the result
//! where it belongs in the [`Line`](line::Line), from which the consumer takes one after the other. The line is as long as
//! may be made ahead.

mod crew;
mod feed;
mod line;
mod map_batch;
mod map_parallel;
mod prefetch;

pub use map_batch::{MapBatch, Slot};
pub use map_parallel::MapParallel;
pub use prefetch::Prefetch;
