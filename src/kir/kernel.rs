//! The kinds of kernels.

use super::{
    Argsort, Attention, Conv2d, Cumsum, Expr, GatherScatter, MatMul, Nms, Pool, ReduceKind, Shards, View,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use tensorpack_tensor::{DType, HostTensor, Result};

/// A scalar expression over every element of an iteration space, with its operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MapBody {
    /// The iteration space; outputs are dense over it.
    pub sizes: Vec<usize>,
    /// The operands, each broadcast to the iteration space.
    pub operands: Vec<View>,
    /// The expression.
    pub expr: Expr,
}

/// A map applied to the result of a contraction, rectangle by rectangle, while it is in cache.
/// Operand 0 of the expression is the contraction's own result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Epilogue {
    /// The other operands: operand `i + 1` of the expression, each broadcast to the output's sizes.
    pub operands: Vec<View>,
    /// One output.
    pub expr: Expr,
}

/// The kind of a contraction, with all sizes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ContractKind {
    /// A batched matrix product.
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

    /// Returns the number of products that are summed.
    pub(crate) fn multiply_adds(&self) -> u64 {
        let product = |sizes: &[usize]| sizes.iter().fold(1u64, |n, &size| n.saturating_mul(size as u64));
        match self {
            ContractKind::MatMul(c) => product(&[c.batch, c.m, c.n, c.k]),
            // Every output element has one product for each tap and input channel.
            ContractKind::Conv2d(c)
            | ContractKind::Conv2dInputGrad(c)
            | ContractKind::Conv2dFilterGrad(c) => {
                product(&[c.out_len(), c.kernel[0], c.kernel[1], c.in_channels])
            }
            ContractKind::Depthwise(c)
            | ContractKind::DepthwiseInputGrad(c)
            | ContractKind::DepthwiseFilterGrad(c) => product(&[c.out_len(), c.kernel[0], c.kernel[1]]),
        }
    }

    /// Returns the size of the output's last dimension: columns of a matrix product, channels of a
    /// convolution.
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

/// The kind of a pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PoolKind {
    /// Reads x; returns the maxima and, as u8, the position of each in its window.
    Max,
    /// Reads dy and the positions; returns dx.
    MaxGrad,
    /// Reads x and the positions; returns the elements there.
    MaxPick,
    /// Reads x; returns averages.
    Average,
    /// Reads dy; returns dx.
    AverageGrad,
}

/// The kind of a gather or scatter of table rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "LookupKind")]
pub enum GatherKind {
    /// Reads tables; returns the selected rows.
    Gather,
    /// Reads rows; returns tables of zeros with each row added to the selected one.
    ScatterAdd,
    /// Reads integers (`rows` and `indices` are the same view) and returns them unchanged. A zero
    /// ends the run with an error.
    NonZero,
}

/// What an attention kernel computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttentionKind {
    /// Reads queries, keys, values and what exists of key mask, bias and dropout seeds; returns the
    /// result `[batch, queries, heads, value_width]` and the logarithms of the sums of exponentials
    /// `[batch, heads, queries]`, which are 0 where all keys are masked.
    Forward,
    /// Reads what `Forward` reads, its two results and the gradient of the first; returns the
    /// gradients of queries, keys and values.
    Grad,
    /// Reads what `Grad` reads; returns the gradient of the scores `[batch, heads, queries, keys]`,
    /// which is that of a bias.
    ScoreGrad,
    /// Reads the dropout seeds; returns the factors of dropout `[batch, heads, queries, keys]`.
    DropoutFactors,
}

/// A custom kernel: a function of dense host tensors. See `docs/extend/op.md`.
pub trait CustomKernel: fmt::Debug + Send + Sync {
    /// Computes the outputs, which are zeroed and have the declared shapes. Runs on one thread.
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
    /// An expression of every element, with one output for each output of the expression.
    Map(MapBody),
    /// An expression of every element, reduced over some dimensions; several reductions share one
    /// pass.
    Reduce {
        /// The reduced values; the expression has one output for each kind.
        body: MapBody,
        /// Which dimensions are reduced.
        reduced: Vec<bool>,
        /// The kinds of reduction.
        kinds: Vec<ReduceKind>,
    },
    /// A sum of products of two tensors. Each is dense, or a float of 16 bits with any strides.
    ///
    /// Forward convolutions, and products of two matrices that are not transposed, also multiply
    /// u8: a byte `b` stands for the integer `b - 128`. Zeros around an image are the integer 0. The
    /// result is f32, as near to the sum of integers as f32 is.
    Contract {
        /// The kind and sizes.
        kind: ContractKind,
        /// The left operand.
        lhs: View,
        /// The right operand.
        rhs: View,
        /// A map applied to the result.
        epilogue: Option<Epilogue>,
    },
    /// Pooling over windows of NHWC tensors. Each is dense, or a float of 16 bits with any strides.
    Pool {
        /// The kind.
        kind: PoolKind,
        /// The sizes.
        pool: Pool,
        /// The inputs.
        inputs: Vec<View>,
    },
    /// A dense copy of a view.
    Copy(View),
    /// A copy with zeros around and between the elements.
    Pad {
        /// The input.
        src: View,
        /// Zeros before, for each dimension.
        low: Vec<usize>,
        /// Zeros after.
        high: Vec<usize>,
        /// Zeros between neighboring elements.
        interior: Vec<usize>,
    },
    /// A concatenation.
    Concat {
        /// The inputs, which have equal sizes except along `axis`.
        parts: Vec<View>,
        /// The dimension they are joined along.
        axis: usize,
    },
    /// A gather or scatter of table rows. An index out of range ends the run with an error.
    #[doc(alias = "Lookup")]
    Gather {
        /// The kind.
        kind: GatherKind,
        /// The sizes.
        gather: GatherScatter,
        /// The tables of a gather, dense; or the rows that are added, dense or of 16 bits.
        rows: View,
        /// The indices, dense i64.
        indices: View,
    },
    /// Cumulative sums of a tensor that is dense or a float of 16 bits.
    #[doc(alias = "Cumulate")]
    Cumsum {
        /// The sizes and the direction.
        cumsum: Cumsum,
        /// The input.
        input: View,
    },
    /// The indices (i64) that sort the rows of a dense tensor.
    #[doc(alias = "Order")]
    Argsort {
        /// The sizes and the order.
        argsort: Argsort,
        /// The input.
        input: View,
    },
    /// Which boxes greedy non-maximum suppression keeps (bool), from a dense tensor of booleans.
    Nms {
        /// The sizes.
        nms: Nms,
        /// The input.
        input: View,
    },
    /// Uniform random numbers in `[0, 1)`.
    Random {
        /// The name of the stream: the op's name without the tower's prefix.
        stream: String,
        /// The index of the first element in the stream. Earlier elements belong to earlier towers,
        /// so that several towers draw together what one would draw for all their examples.
        first: usize,
        /// Whether each tower draws its own elements; otherwise all draw the same.
        continued: bool,
    },
    /// The sum over all towers.
    AllReduce {
        /// The name, the same in every tower.
        key: String,
        /// This tower's summand, dense.
        input: View,
        /// Whether only updates of variables use the sum: then it need not be there before them.
        deferred: bool,
        /// The dtype in which other processes get the summands, if it is another one.
        wire: Option<DType>,
    },
    /// This program's shard of the sum over all towers. It may be late, like a deferred all-reduce.
    ReduceScatter {
        /// The name, the same in every tower.
        key: String,
        /// This tower's summand, dense.
        input: View,
        /// The dtype in which other processes get the summand, if it is another.
        wire: Option<DType>,
        /// The division into shards.
        shards: Shards,
    },
    /// This program's shard of a whole tensor.
    Shard {
        /// The tensor, dense.
        input: View,
        /// The division into shards.
        shards: Shards,
    },
    /// Whole tensors, gathered from the shards of all processes or replicas.
    AllGather {
        /// This program's shard of each tensor, dense.
        inputs: Vec<View>,
        /// The division into shards.
        shards: Shards,
    },
    /// Attention or its gradient. Inputs are dense, except bf16 and the bias, which may have any
    /// strides.
    Attention {
        /// What is computed.
        kind: AttentionKind,
        /// The sizes and masks.
        attention: Attention,
        /// The inputs.
        inputs: Vec<View>,
    },
    /// A custom kernel.
    Custom {
        /// The function.
        kernel: Arc<dyn CustomKernel>,
        /// The inputs, dense.
        inputs: Vec<View>,
    },
}

impl Kernel {
    /// Returns the number of multiply-adds of contractions and attention, which a causal mask
    /// halves; 0 for other kernels.
    pub(crate) fn multiply_adds(&self) -> u64 {
        match self {
            Kernel::Contract { kind, .. } => kind.multiply_adds(),
            Kernel::Attention { kind, attention: a, .. } => {
                let per_pair = match kind {
                    AttentionKind::Forward | AttentionKind::ScoreGrad => a.width + a.value_width,
                    AttentionKind::Grad => 3 * a.width + 2 * a.value_width,
                    AttentionKind::DropoutFactors => 0,
                };
                let [rows, queries, keys] = [a.batch * a.heads, a.queries, a.keys].map(|n| n as u64);
                let pairs = rows.saturating_mul(queries).saturating_mul(keys);
                let pairs = if a.causal { pairs.div_ceil(2) } else { pairs };
                pairs.saturating_mul(per_pair as u64)
            }
            _ => 0,
        }
    }

    /// Returns every view the kernel reads.
    pub fn reads(&self) -> Vec<&View> {
        match self {
            Kernel::Map(body) | Kernel::Reduce { body, .. } => body.operands.iter().collect(),
            Kernel::Contract { lhs, rhs, epilogue, .. } => {
                let more = epilogue.iter().flat_map(|e| &e.operands);
                [lhs, rhs].into_iter().chain(more).collect()
            }
            Kernel::Pool { inputs, .. }
            | Kernel::AllGather { inputs, .. }
            | Kernel::Attention { inputs, .. }
            | Kernel::Custom { inputs, .. } => inputs.iter().collect(),
            Kernel::Concat { parts, .. } => parts.iter().collect(),
            Kernel::Gather { rows, indices, .. } => vec![rows, indices],
            Kernel::Copy(src) | Kernel::Pad { src, .. } => vec![src],
            Kernel::AllReduce { input, .. }
            | Kernel::ReduceScatter { input, .. }
            | Kernel::Shard { input, .. }
            | Kernel::Cumsum { input, .. }
            | Kernel::Argsort { input, .. }
            | Kernel::Nms { input, .. } => {
                vec![input]
            }
            Kernel::Random { .. } => Vec::new(),
        }
    }

    /// Returns every view the kernel reads, in the order of `reads`.
    pub(crate) fn reads_mut(&mut self) -> Vec<&mut View> {
        match self {
            Kernel::Map(body) | Kernel::Reduce { body, .. } => body.operands.iter_mut().collect(),
            Kernel::Contract { lhs, rhs, epilogue, .. } => {
                let more = epilogue.iter_mut().flat_map(|e| &mut e.operands);
                [lhs, rhs].into_iter().chain(more).collect()
            }
            Kernel::Pool { inputs, .. }
            | Kernel::AllGather { inputs, .. }
            | Kernel::Attention { inputs, .. }
            | Kernel::Custom { inputs, .. } => inputs.iter_mut().collect(),
            Kernel::Concat { parts, .. } => parts.iter_mut().collect(),
            Kernel::Gather { rows, indices, .. } => vec![rows, indices],
            Kernel::Copy(src) | Kernel::Pad { src, .. } => vec![src],
            Kernel::AllReduce { input, .. }
            | Kernel::ReduceScatter { input, .. }
            | Kernel::Shard { input, .. }
            | Kernel::Cumsum { input, .. }
            | Kernel::Argsort { input, .. }
            | Kernel::Nms { input, .. } => vec![input],
            Kernel::Random { .. } => Vec::new(),
        }
    }

    /// Returns the kind as one word.
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
            Kernel::Nms { .. } => "nms",
            Kernel::Random { .. } => "random",
            Kernel::AllReduce { .. } => "all-reduce",
            Kernel::ReduceScatter { .. } => "reduce-scatter",
            Kernel::Shard { .. } => "shard",
            Kernel::AllGather { .. } => "all-gather",
            Kernel::Attention { kind, .. } => match kind {
                AttentionKind::Forward => "attention",
                AttentionKind::Grad => "attention-grad",
                AttentionKind::ScoreGrad => "attention-score-grad",
                AttentionKind::DropoutFactors => "attention-dropout",
            },
            Kernel::Custom { .. } => "custom",
        }
    }

    /// Returns whether the result depends only on the operands.
    pub fn is_pure(&self) -> bool {
        !matches!(self, Kernel::Random { .. } | Kernel::Custom { .. }) && !self.is_collective()
    }

    /// Returns whether the result depends on other towers or processes, which must all run it.
    pub fn is_collective(&self) -> bool {
        matches!(self, Kernel::AllReduce { .. } | Kernel::ReduceScatter { .. } | Kernel::AllGather { .. })
    }
}
