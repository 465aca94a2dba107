//! The ONNX format: models in memory, their encoding as protocol buffers, and [`ExportCx`], with
//! which every operation writes itself as ONNX nodes.
//!
//! Only the parts of `onnx.proto` that tensors and static graphs need are here. Models are not
//! trusted: nothing is allocated for elements that a file does not have.

mod batch_norm;
mod data_type;
mod encode;
mod export_cx;
mod model;
mod parse;
mod permute;

pub(crate) use batch_norm::fuse_batch_norm;
pub(crate) use data_type::dtype_of;
pub(crate) use encode::{Encoded, encode};
pub use export_cx::{Attr, ExportCx, Value};
pub(crate) use export_cx::{GraphWriter, NodeSpec};
pub(crate) use model::{Attribute, Dimension, Model, Node, OnnxGraph, ValueInfo};
pub(crate) use parse::parse;
pub(crate) use permute::permuted;
