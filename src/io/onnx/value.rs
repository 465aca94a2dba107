//! The tensors of an ONNX graph while it is translated.

use crate::graph::Tensor;
use crate::ops::Layout;
use std::rc::Rc;
use tensorpack_tensor::{DType, Dim, HostTensor, Shape};

/// A tensor of the ONNX graph.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// A tensor that is computed.
    Computed(Tensor),
    /// An image or a sequence that is stored with its channels last: its dim 1 is the last one of
    /// the tensor.
    ChannelsLast(Tensor),
    /// A weight or a constant, with the name of the weight.
    Host(Rc<str>, HostTensor),
    /// A scalar or vector of integers of which some are unknown: a shape, or a part of one.
    Symbolic(Symbolic),
    /// An optional input or output that is omitted.
    Missing,
}

/// A scalar or vector of integers, some of them unknown.
#[derive(Clone, Debug)]
pub(super) struct Symbolic {
    pub(super) dtype: DType,
    pub(super) is_scalar: bool,
    pub(super) items: Vec<Item>,
}

/// An integer that may be unknown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Item {
    Number(f64),
    /// The size of a dim.
    Dim(Dim),
    Unknown,
}

impl Item {
    /// Returns the item of a dim.
    pub(super) fn of(dim: Dim) -> Item {
        dim.known().map_or(Item::Dim(dim), |n| Item::Number(n as f64))
    }
}

impl Value {
    pub(super) fn tensor(tensor: &Tensor) -> Value {
        Value::Computed(tensor.clone())
    }

    /// Returns the shape, with the dims in ONNX's order.
    pub(super) fn shape(&self) -> Shape {
        match self {
            Value::Computed(x) => x.shape().clone(),
            Value::ChannelsLast(x) => {
                let (rank, dims) = (x.rank(), x.shape());
                let order = [0, rank - 1].into_iter().chain(1..rank - 1);
                order.map(|i| dims[i]).collect::<Vec<Dim>>().into()
            }
            Value::Host(_, tensor) => tensor.sizes().into(),
            Value::Symbolic(Symbolic { is_scalar: true, .. }) | Value::Missing => Shape::scalar(),
            Value::Symbolic(Symbolic { items, .. }) => [items.len()].into(),
        }
    }

    pub(super) fn dtype(&self) -> DType {
        match self {
            Value::Computed(x) | Value::ChannelsLast(x) => x.dtype(),
            Value::Host(_, tensor) => tensor.dtype(),
            Value::Symbolic(symbolic) => symbolic.dtype,
            Value::Missing => DType::F32,
        }
    }
}

/// Returns a tensor with the dims in ONNX's order.
pub(super) fn channels_first(x: &Tensor) -> Tensor {
    Layout::Nchw.from_nhwc(x)
}

/// Returns a tensor with its channels, dim 1 in ONNX, last.
pub(super) fn channels_last(x: &Tensor) -> Tensor {
    Layout::Nchw.to_nhwc(x)
}
