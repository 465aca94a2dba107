//! Training on several processes, on one machine or many: the group of processes, and the order in
//! which they add up.

mod sum_tree;

pub(crate) use sum_tree::{SumTree, subtrees};
