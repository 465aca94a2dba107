//! Neural network layers. A layer is a plain value that holds settings; `apply` adds it to the
//! graph under a name.
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
mod affine;
mod argscope;
mod batch_norm;
mod batch_renorm;
mod bias;
mod conv1d;
mod conv2d;
mod conv2d_transpose;
mod conv3d;
mod depthwise_conv2d;
mod dropout;
mod embedding;
mod group_norm;
mod gru;
mod instance_norm;
mod kv_cache;
mod layer_norm;
mod linear;
mod linear_wrap;
mod lstm;
mod maxout;
mod multi_head_attention;
mod p_relu;
mod parameter;
mod regularize;
mod sequence;
mod setting;
mod summary;
mod trainables;
mod weight_settings;

pub use activation::Activation;
pub use argscope::ScopedLayer;
pub use batch_norm::BatchNorm;
pub use batch_renorm::BatchRenorm;
pub use conv1d::Conv1d;
pub use conv2d::Conv2d;
pub use conv2d_transpose::Conv2dTranspose;
pub use conv3d::Conv3d;
pub use depthwise_conv2d::DepthwiseConv2d;
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use group_norm::GroupNorm;
pub use gru::{Gru, GruCell};
pub use instance_norm::InstanceNorm;
pub use kv_cache::KvCache;
pub use layer_norm::LayerNorm;
pub use linear::Linear;
pub use linear_wrap::{Layer, LinearWrap};
pub use lstm::{Lstm, LstmCell, LstmState};
pub use maxout::Maxout;
pub use multi_head_attention::MultiHeadAttention;
pub use p_relu::PRelu;
pub use regularize::{l1_regularizer, l2_regularizer, regularize_cost, regularize_cost_from_collection};
pub use sequence::RecurrentOptions;
pub use summary::{LayerSummary, ModelSummary, summary};
pub(crate) use summary::{memory_text, parameter_count, variable_bytes};
pub use trainables::describe_trainables;
