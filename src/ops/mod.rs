//! The operations. Each file holds one operation or a small family: shape rule, gradient, lowering,
//! and the method users call. This list is the only place that names them all.

mod activation;
mod all_reduce;
mod any;
mod attention;
mod bilinear;
mod binary;
mod boxes;
mod broadcast;
mod cast;
mod concat;
mod constant;
mod conv1d;
mod conv2d;
mod conv2d_transpose;
mod conv3d;
mod cumsum;
mod cut;
mod depthwise_conv2d;
mod einsum;
mod fan_out;
mod gather;
mod gradient_gate;
mod grid_sample;
mod int8;
mod iota;
mod layout;
mod lengths;
mod loss;
mod matmul;
mod moments;
mod nms;
mod normalize;
mod one_hot;
mod optimization_barrier;
mod order;
mod pad;
mod pool;
mod pool3d;
mod print;
mod prod;
mod random;
mod reduce;
mod reshape;
mod resize;
mod reverse;
mod roi_align;
mod rotary_embedding;
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

pub use attention::AttentionOptions;
pub use binary::Operand;
pub use conv1d::Conv1dOptions;
pub use conv2d::Conv2dOptions;
pub use conv3d::Conv3dOptions;
pub use cumsum::CumsumOptions;
pub(crate) use fan_out::operands as matrix_product_operands;
pub use grid_sample::GridSampleOptions;
pub(crate) use int8::{GROUP as INT8_GROUP, MAX_TERMS as INT8_MAX_TERMS};
pub use layout::Layout;
pub use nms::NmsOptions;
pub use pool::PoolOptions;
pub use pool3d::Pool3dOptions;
pub use random::Random;
pub(crate) use reshape::Target as ReshapeTarget;
pub use resize::ResizeOptions;
pub use roi_align::RoiAlignOptions;
pub use window::{Padding, Padding3d};

use crate::graph::{Spec, Tensor};
use std::panic::Location;
use tensorpack_tensor::{Dim, Error, Result, Shape};
use window::Window;

/// Builds an operation composed of others in a scope named `name`. Errors inside it point at the
/// caller's line.
fn composed(
    x: &Tensor,
    name: &str,
    caller: &'static Location<'static>,
    build: impl FnOnce() -> Tensor,
) -> Tensor {
    let graph = x.graph();
    graph.called_from(caller, || graph.scope(name, false, true, build))
}

/// Checks that an axis is in range.
fn axis_of(shape: &Shape, axis: usize) -> Result<()> {
    match axis < shape.rank() {
        true => Ok(()),
        false => Err(Error::shape(format!("{shape} has no axis {axis}"))),
    }
}

/// Checks that a tensor has the expected type and, as far as both are known, the expected shape.
fn same_spec(found: &Spec, expected: &Spec) -> Result<()> {
    let differ = |(a, b): (&Dim, &Dim)| matches!((a, b), (Dim::Known(a), Dim::Known(b)) if a != b);
    let (got, want) = (&found.shape, &expected.shape);
    match found.dtype == expected.dtype
        && got.rank() == want.rank()
        && !got.iter().zip(want.iter()).any(differ)
    {
        true => Ok(()),
        false => Err(Error::shape(format!("expected {}{want}, got {}{got}", expected.dtype, found.dtype))),
    }
}

/// Checks that a tensor has floating-point elements.
fn float_input(spec: &Spec) -> Result<()> {
    match spec.dtype.is_float() {
        true => Ok(()),
        false => Err(Error::dtype(format!("expected floating-point elements, got {}", spec.dtype))),
    }
}
