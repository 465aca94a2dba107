//! Training on several processes, on one machine or many: the group of processes, the buckets they
//! exchange, and the order in which they add up.

mod all_gather;
mod bucket;
mod mpi_thread;
mod network_probe;
mod process_group;
mod store_gather;
mod sum_tree;

pub(crate) use all_gather::AllGather;
pub(crate) use bucket::Bucket;
pub use network_probe::Network;
pub(crate) use process_group::{COMPUTING, WAITING};
pub use process_group::{GroupOptions, ProcessGroup};
pub(crate) use sum_tree::SumTree;
