//! The kinds of kernel.

use super::{Argsort, Conv2d, Cumsum, Expr, GatherScatter, MatMul, Pool, ReduceKind, View};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use tensorpack_tensor::{HostTensor, Result};

/// A scalar expression over every element of an iteration space, and what it reads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MapBody {
    /// The iteration space; outputs are dense over it.
    pub sizes: Vec<usize>,
    /// What is read, each broadcast to the iteration space.
    pub operands: Vec<View>,
    /// What is computed.
    pub expr: Expr,
}

/// A map applied to the result of a contraction, rectangle by rectangle, while it is in cache. Operand 0 of the
/// expression is the contraction's own result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Epilogue {
    /// The other operands: operand `i + 1` of the expression, each broadcast to the output's sizes.
    pub operands: Vec<View>,
    /// One output.
    pub expr: Expr,
}

/// What is contracted, with all sizes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ContractKind {
    /// A matrix product, perhaps batched.
    MatMul(MatMul),
    /// A convolution.
    Conv2d(Conv2d),
    /// Its gradient with respect to the input.
    Conv2dInputGrad(Conv2d),
    /// Its gradient with respect to the filter.
    Conv2dFilterGrad(Conv2d),
    /// A convolution of each channel with a filter of its own.
    Depthwise(Conv2d),
    /// Its gradient with respect to the input.
    DepthwiseInputGrad(Conv2d),
    /// Its gradient with respect to the filters.
    DepthwiseFilterGrad(Conv2d),
}

impl ContractKind {
    /// Checks that no product of the sizes overflows.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            ContractKind::MatMul(product) => product.check(),
            ContractKind::Conv2d(c)
            | ContractKind::Conv2dInputGrad(c)
            | ContractKind::Conv2dFilterGrad(c) => c.check(),
            ContractKind::Depthwise(c)
            | ContractKind::DepthwiseInputGrad(c)
            | ContractKind::DepthwiseFilterGrad(c) => c.check_depthwise(),
        }
    }

    /// Returns the number of elements of the left operand, of the right operand and of the output.
    pub(crate) fn lens(&self) -> [usize; 3] {
        match self {
            ContractKind::MatMul(product) => [product.lhs_len(), product.rhs_len(), product.out_len()],
            ContractKind::Conv2d(c) => [c.in_len(), c.filter_len(), c.out_len()],
            ContractKind::Conv2dInputGrad(c) => [c.out_len(), c.filter_len(), c.in_len()],
            ContractKind::Conv2dFilterGrad(c) => [c.in_len(), c.out_len(), c.filter_len()],
            ContractKind::Depthwise(c) => [c.in_len(), c.depthwise_filter_len(), c.out_len()],
            ContractKind::DepthwiseInputGrad(c) => [c.out_len(), c.depthwise_filter_len(), c.in_len()],
            ContractKind::DepthwiseFilterGrad(c) => [c.in_len(), c.out_len(), c.depthwise_filter_len()],
        }
    }

    /// Returns the size of the output's last dimension: columns of a matrix product, channels of a convolution.
    pub(crate) fn out_columns(&self) -> usize {
        match self {
            ContractKind::MatMul(product) => product.n,
            ContractKind::Conv2d(c) | ContractKind::Conv2dFilterGrad(c) => c.out_channels,
            ContractKind::Conv2dInputGrad(c)
            | ContractKind::Depthwise(c)
            | ContractKind::DepthwiseInputGrad(c)
            | ContractKind::DepthwiseFilterGrad(c) => c.in_channels,
        }
    }
}

/// What pooling does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PoolKind {
    /// Reads x; gives the maxima and, as u8, where in its window each was found.
    Max,
    /// Reads dy and the places; gives dx.
    MaxGrad,
    /// Reads x and the places; gives the elements there.
    MaxPick,
    /// Reads x; gives averages.
    Average,
    /// Reads dy; gives dx.
    AverageGrad,
}

/// What is done with the rows of tables that are named by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "LookupKind")]
pub enum GatherKind {
    /// Reads tables; gives the rows named.
    Gather,
    /// Reads rows; gives tables of zeros with each added to the row named.
    ScatterAdd,
    /// Reads integers (`rows` and `indices` are the same view) and returns them unchanged. A zero
    /// ends the run with an error.
    NonZero,
}

/// A user's own kernel: a function of dense host tensors. See `docs/extend/op.md`.
pub trait CustomKernel: fmt::Debug + Send + Sync {
    /// Computes the outputs, which come zeroed and with the right shapes. Runs on one thread.
    fn run(&self, inputs: &[HostTensor], outputs: &mut [HostTensor]) -> Result<()>;
}

/// Custom kernels are compared by identity: two are equal if they are the same object.
impl PartialEq for dyn CustomKernel {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::addr_eq(self, other)
    }
}

impl Eq for dyn CustomKernel {}

impl Hash for dyn CustomKernel {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::from_ref(self).cast::<()>().hash(state);
    }
}

/// One kernel. Outputs are always dense.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// An expression of every element; one output for each of the expression's.
    Map(MapBody),
    /// An expression of every element, reduced over some dimensions; several reductions share one pass.
    Reduce {
        /// What is computed of every element; one output of the expression for each kind.
        body: MapBody,
        /// Which dimensions are reduced.
        reduced: Vec<bool>,
        /// How.
        kinds: Vec<ReduceKind>,
    },
    /// A sum of products of two tensors, which are dense or bf16.
    Contract {
        /// What and how large.
        kind: ContractKind,
        /// The left operand.
        lhs: View,
        /// The right operand.
        rhs: View,
        /// What is done to the result before it leaves the cache.
        epilogue: Option<Epilogue>,
    },
    /// Pooling over windows of NHWC tensors, which are dense or bf16.
    Pool {
        /// What it does.
        kind: PoolKind,
        /// The sizes.
        pool: Pool,
        /// What it reads.
        inputs: Vec<View>,
    },
    /// A dense copy of a view.
    Copy(View),
    /// A copy with zeros around and between the elements.
    Pad {
        /// What is read.
        src: View,
        /// Zeros before, for each dimension.
        low: Vec<usize>,
        /// Zeros after.
        high: Vec<usize>,
        /// Zeros between neighbours.
        interior: Vec<usize>,
    },
    /// Several tensors side by side.
    Concat {
        /// What is read, alike in all dimensions but one.
        parts: Vec<View>,
        /// That one.
        axis: usize,
    },
    /// Rows of tables by number. A number that names no row ends the run with an error.
    #[doc(alias = "Lookup")]
    Gather {
        /// Whether they are read or added to.
        kind: GatherKind,
        /// The sizes.
        gather: GatherScatter,
        /// The tables, or what is added; dense, or bf16 that is added.
        rows: View,
        /// The numbers, dense i64.
        indices: View,
    },
    /// Running sums of a tensor that is dense or bf16.
    #[doc(alias = "Cumulate")]
    Cumsum {
        /// The sizes and the direction.
        cumsum: Cumsum,
        /// What is summed.
        input: View,
    },
    /// The places (i64) of a dense tensor's elements in the order of their values.
    #[doc(alias = "Order")]
    Argsort {
        /// The sizes and the order.
        argsort: Argsort,
        /// What is ordered.
        input: View,
    },
    /// Uniform random numbers in `[0, 1)`.
    Random {
        /// The name of the stream: the op's, without the tower's.
        stream: String,
        /// The number of the first element: those before belong to earlier towers, so that several towers draw
        /// together what one would for all their examples.
        first: usize,
        /// Whether towers draw numbers of their own; else all draw the same.
        continued: bool,
    },
    /// The sum of what all towers have here.
    AllReduce {
        /// What it is called in every tower.
        key: String,
        /// This tower's part, dense.
        input: View,
    },
    /// A user's own kernel.
    Custom {
        /// The function.
        kernel: Arc<dyn CustomKernel>,
        /// What it reads, dense.
        inputs: Vec<View>,
    },
}

impl Kernel {
    /// Every view the kernel reads.
    pub fn reads(&self) -> Vec<&View> {
        match self {
            Kernel::Map(body) | Kernel::Reduce { body, .. } => body.operands.iter().collect(),
            Kernel::Contract { lhs, rhs, epilogue, .. } => {
                let more = epilogue.iter().flat_map(|e| &e.operands);
                [lhs, rhs].into_iter().chain(more).collect()
            }
            Kernel::Pool { inputs, .. } | Kernel::Custom { inputs, .. } => inputs.iter().collect(),
            Kernel::Concat { parts, .. } => parts.iter().collect(),
            Kernel::Gather { rows, indices, .. } => vec![rows, indices],
            Kernel::Copy(src) | Kernel::Pad { src, .. } => vec![src],
            Kernel::AllReduce { input, .. }
            | Kernel::Cumsum { input, .. }
            | Kernel::Argsort { input, .. } => {
                vec![input]
            }
            Kernel::Random { .. } => Vec::new(),
        }
    }

    /// Every view the kernel reads, to be changed; in the same order.
    pub(crate) fn reads_mut(&mut self) -> Vec<&mut View> {
        match self {
            Kernel::Map(body) | Kernel::Reduce { body, .. } => body.operands.iter_mut().collect(),
            Kernel::Contract { lhs, rhs, epilogue, .. } => {
                let more = epilogue.iter_mut().flat_map(|e| &mut e.operands);
                [lhs, rhs].into_iter().chain(more).collect()
            }
            Kernel::Pool { inputs, .. } | Kernel::Custom { inputs, .. } => inputs.iter_mut().collect(),
            Kernel::Concat { parts, .. } => parts.iter_mut().collect(),
            Kernel::Gather { rows, indices, .. } => vec![rows, indices],
            Kernel::Copy(src) | Kernel::Pad { src, .. } => vec![src],
            Kernel::AllReduce { input, .. }
            | Kernel::Cumsum { input, .. }
            | Kernel::Argsort { input, .. } => vec![input],
            Kernel::Random { .. } => Vec::new(),
        }
    }

    /// The kind, in a word.
    pub fn name(&self) -> &'static str {
        match self {
            Kernel::Map(_) => "map",
            Kernel::Reduce { .. } => "reduce",
            Kernel::Contract { kind, .. } => match kind {
                ContractKind::MatMul(_) => "matmul",
                ContractKind::Conv2d(_) => "conv2d",
                ContractKind::Conv2dInputGrad(_) => "conv2d-input-grad",
                ContractKind::Conv2dFilterGrad(_) => "conv2d-filter-grad",
                ContractKind::Depthwise(_) => "depthwise",
                ContractKind::DepthwiseInputGrad(_) => "depthwise-input-grad",
                ContractKind::DepthwiseFilterGrad(_) => "depthwise-filter-grad",
            },
            Kernel::Pool { kind, .. } => match kind {
                PoolKind::Max => "max-pool",
                PoolKind::MaxGrad => "max-pool-grad",
                PoolKind::MaxPick => "max-pool-pick",
                PoolKind::Average => "average-pool",
                PoolKind::AverageGrad => "average-pool-grad",
            },
            Kernel::Copy(_) => "copy",
            Kernel::Pad { .. } => "pad",
            Kernel::Concat { .. } => "concat",
            Kernel::Gather { kind: GatherKind::Gather, .. } => "gather",
            Kernel::Gather { kind: GatherKind::ScatterAdd, .. } => "scatter-add",
            Kernel::Gather { kind: GatherKind::NonZero, .. } => "check-nonzero",
            Kernel::Cumsum { .. } => "cumsum",
            Kernel::Argsort { .. } => "argsort",
            Kernel::Random { .. } => "random",
            Kernel::AllReduce { .. } => "all-reduce",
            Kernel::Custom { .. } => "custom",
        }
    }

    /// Whether the result depends on the operands alone.
    pub fn is_pure(&self) -> bool {
        !matches!(self, Kernel::Random { .. } | Kernel::AllReduce { .. } | Kernel::Custom { .. })
    }
}
