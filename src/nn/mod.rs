//! Layers: plain values that say how a layer is made, applied to a tensor under a name.
//!
//! ```
//! # use tensorpack::{graph::{Graph, TensorSpec}, nn::Conv2d, tower::TowerContext};
//! # let graph = Graph::new();
//! # let t = &TowerContext::training(&graph);
//! # let image = graph.placeholder(&TensorSpec::f32("image", [None, Some(28), Some(28), Some(1)]));
//! let conv = Conv2d::new(32, 3).relu();
//! let x = conv.apply(t, "conv0", &image).max_pool(2);
//! let x = conv.clone().stride(2).apply(t, "conv1", &x);
//! assert_eq!(x.shape()[3], 32.into());
//! # assert!(graph.freeze().is_ok());
//! ```

mod activation;
mod batch_norm;
mod conv2d;
mod linear;

pub use activation::Activation;
pub use batch_norm::BatchNorm;
pub use conv2d::Conv2d;
pub use linear::Linear;
