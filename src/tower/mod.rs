//! Towers: replicas of a model in the graph, and the context in which a tower function builds one.

mod context;

pub use context::{Mode, TowerContext};
