//! The operations, one or one tight family a file: shape rule, gradient, lowering, and the method users call.
//! This list is the only place that names them all.

mod activation;
mod all_reduce;
mod any;
mod binary;
mod broadcast;
mod cast;
mod concat;
mod constant;
mod conv1d;
mod conv2d;
mod conv2d_transpose;
mod cumsum;
mod cut;
mod depthwise_conv2d;
mod einsum;
mod fan_out;
mod gather;
mod iota;
mod layout;
mod loss;
mod matmul;
mod moments;
mod normalize;
mod one_hot;
mod optimization_barrier;
mod order;
mod pad;
mod pool;
mod print;
mod prod;
mod random;
mod reduce;
mod reshape;
mod resize;
mod reverse;
mod same_dims;
mod select;
mod silu;
mod slice;
mod softmax;
mod split;
mod stop_gradient;
mod tile;
mod transpose;
mod unary;
mod unpool;
mod window;
mod with_gradient;

pub use conv1d::Conv1dOptions;
pub use conv2d::Conv2dOptions;
pub use cumsum::CumsumOptions;
pub use layout::Layout;
pub use pool::PoolOptions;
pub use random::Random;
pub use window::Padding;

use crate::graph::{Spec, Tensor};
use std::panic::Location;
use tensorpack_tensor::{Dim, Error, Result, Shape};
use window::Window;

/// Builds something of several operations under one name, so that errors in it point at the caller's line.
fn composed(
    x: &Tensor,
    name: &str,
    caller: &'static Location<'static>,
    build: impl FnOnce() -> Tensor,
) -> Tensor {
    let graph = x.graph();
    graph.called_from(caller, || graph.scope(name, false, true, build))
}

/// That an axis is one of a shape's.
fn axis_of(shape: &Shape, axis: usize) -> Result<()> {
    match axis < shape.rank() {
        true => Ok(()),
        false => Err(Error::shape(format!("{shape} has no axis {axis}"))),
    }
}

/// That a tensor is of the type and, as far as both are known, of the shape it must be.
fn same_spec(found: &Spec, wanted: &Spec) -> Result<()> {
    let apart = |(a, b): (&Dim, &Dim)| matches!((a, b), (Dim::Known(a), Dim::Known(b)) if a != b);
    let (is, must) = (&found.shape, &wanted.shape);
    match found.dtype == wanted.dtype && is.rank() == must.rank() && !is.iter().zip(must.iter()).any(apart) {
        true => Ok(()),
        false => Err(Error::shape(format!("takes {}{must}, not {}{is}", wanted.dtype, found.dtype))),
    }
}

/// That a tensor's elements are floats.
fn float_input(spec: &Spec) -> Result<()> {
    match spec.dtype.is_float() {
        true => Ok(()),
        false => Err(Error::dtype(format!("takes floating point elements, not {}", spec.dtype))),
    }
}
