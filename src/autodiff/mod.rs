//! Automatic differentiation: a pass over the graph that adds the gradient as ordinary nodes.

mod gradients;

pub use gradients::gradients;
