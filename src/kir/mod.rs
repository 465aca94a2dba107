//! The kernel IR: operations lower to it, and engines compile it.
//!
//! A [`Program`] is a list of [`Kernel`]s over [`Buffer`]s with concrete sizes. The kinds of
//! kernels are few and fixed, so fusion, memory planning and scheduling never ask which operation a
//! kernel came from. Operations that only rearrange (reshape, transpose, slice, broadcast) emit no
//! kernel: they return another [`View`] of the same buffer. The IR says what is computed; layouts,
//! algorithms and loops are choices of each engine.

mod descriptors;
mod expr_builder;
mod kernel;
mod lower;
mod program;
mod shards;
mod validate;
mod view;

pub use descriptors::{Argsort, Attention, Conv2d, Cumsum, FloatBits, GatherScatter, MatMul, Nms, Pool};
pub use expr_builder::ExprBuilder;
pub use kernel::{
    AttentionKind, ContractKind, CustomKernel, Epilogue, GatherKind, Kernel, MapBody, PoolKind,
};
pub use lower::LowerCx;
pub(crate) use lower::compact;
pub use program::{
    Buffer, BufferId, BufferKind, KernelNode, OnOverflow, Origin, Program, Recomputed, Update,
};
pub use shards::Shards;
pub use tensorpack_kernels::ReduceKind;
pub use tensorpack_kernels::expr::{Binary, Class, Expr, Reg, Step, Unary};
pub(crate) use validate::{Signature, validate, validate_signature, validate_view};
pub use view::View;
pub(crate) use view::elements;
