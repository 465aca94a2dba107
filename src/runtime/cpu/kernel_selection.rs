//! Maps descriptors of the kernel IR to the CPU kernels that run them.

use super::contract_kernel::ContractKernel;
use crate::kir::{self, ContractKind};
use tensorpack_kernels::{self as kernels, Bf16Contract, Bf16Isa, Int8Contract};
use tensorpack_tensor::{DType, Error, Result};

/// Attributes of a contraction that only the CPU engine has.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContractAttributes {
    /// The right operand is prepacked into panels (see `panels.rs`).
    pub(super) rhs_panels: bool,
    /// Convolutions use the direct algorithm, never Winograd.
    pub(super) exact: bool,
    /// The threads that share the work.
    pub(super) threads: usize,
    /// The instructions for bf16.
    pub(super) bf16: Option<Bf16Isa>,
}

/// Returns whether a contraction has a kernel for bf16 operands that is faster than the one for
/// f32: the sum over few input channels of images would multiply mostly padding.
pub(super) fn multiplies_bf16(kind: &ContractKind) -> bool {
    match kind {
        ContractKind::MatMul(_) | ContractKind::Conv2dInputGrad(_) => true,
        ContractKind::Conv2d(c) => c.in_channels >= 4,
        ContractKind::Conv2dFilterGrad(c) => c.in_channels >= 3,
        ContractKind::Depthwise(_)
        | ContractKind::DepthwiseInputGrad(_)
        | ContractKind::DepthwiseFilterGrad(_) => false,
    }
}

/// Returns the kernel of a contraction of operands of type `dtype` with an output of type `out`.
pub(super) fn contraction(
    kind: &ContractKind,
    [dtype, out]: [DType; 2],
    attributes: ContractAttributes,
) -> Result<ContractKernel> {
    let bf16 = match (dtype, attributes.bf16) {
        (DType::F32 | DType::F64 | DType::U8, _) => None,
        (DType::Bf16, Some(isa)) if multiplies_bf16(kind) => Some(isa),
        _ => return Err(Error::dtype(format!("this CPU has no kernel for a contraction of {dtype}"))),
    };
    let conv2d = |c: &kir::Conv2d| kernels::Conv2d {
        batch: c.batch,
        in_size: c.in_size,
        in_channels: c.in_channels,
        out_channels: c.out_channels,
        kernel: c.kernel,
        stride: c.stride,
        dilation: c.dilation,
        pad_low: c.pad_low,
        out_size: c.out_size,
        // Only f32 has Winograd kernels.
        exact: attributes.exact || dtype == DType::F64,
    };
    if dtype == DType::U8 {
        return Ok(ContractKernel::Int8(match kind {
            ContractKind::MatMul(p) => Int8Contract::matmul(p.m, p.n, p.k),
            ContractKind::Conv2d(c) => Int8Contract::conv2d(conv2d(c)),
            _ => return Err(Error::dtype("this contraction has no kernel for u8")),
        }));
    }
    // Wraps a descriptor in the kernel for its type.
    macro_rules! kernel {
        ($kernel:expr) => {
            match bf16 {
                Some(isa) => ContractKernel::Bf16 { kernel: Bf16Contract::from($kernel), isa, out },
                None => ContractKernel::new(Box::new($kernel), dtype),
            }
        };
    }
    Ok(match kind {
        ContractKind::MatMul(product) => kernel!(kernels::MatMul {
            batch: product.batch,
            m: product.m,
            n: product.n,
            k: product.k,
            lhs_transposed: product.lhs_transposed,
            rhs_transposed: product.rhs_transposed,
            lhs_shared: product.lhs_shared,
            rhs_shared: product.rhs_shared,
            rhs_panels: attributes.rhs_panels,
            threads: attributes.threads,
        }),
        ContractKind::Conv2d(c) => kernel!(kernels::Conv2dForward(conv2d(c))),
        ContractKind::Conv2dInputGrad(c) => kernel!(kernels::Conv2dInputGrad(conv2d(c))),
        ContractKind::Conv2dFilterGrad(c) => kernel!(kernels::Conv2dFilterGrad(conv2d(c))),
        ContractKind::Depthwise(c) => {
            ContractKernel::new(Box::new(kernels::DepthwiseForward(conv2d(c))), dtype)
        }
        ContractKind::DepthwiseInputGrad(c) => {
            ContractKernel::new(Box::new(kernels::DepthwiseInputGrad(conv2d(c))), dtype)
        }
        ContractKind::DepthwiseFilterGrad(c) => {
            ContractKernel::new(Box::new(kernels::DepthwiseFilterGrad(conv2d(c))), dtype)
        }
    })
}

/// Returns the kernel of a pooling operation.
pub(super) fn pool(pool: &kir::Pool) -> kernels::Pool {
    kernels::Pool {
        batch: pool.batch,
        in_size: pool.in_size,
        channels: pool.channels,
        window: pool.window,
        stride: pool.stride,
        pad_low: pool.pad_low,
        out_size: pool.out_size,
    }
}

/// Returns the kernel of a gather or scatter.
pub(super) fn gather(gather: &kir::GatherScatter) -> kernels::GatherScatter {
    kernels::GatherScatter {
        batch: gather.batch,
        rows: gather.rows,
        width: gather.width,
        count: gather.count,
        shared: gather.shared,
    }
}

/// Returns the kernel of a cumulative sum.
pub(super) fn cumsum(cumsum: &kir::Cumsum) -> kernels::Cumsum {
    kernels::Cumsum {
        outer: cumsum.outer,
        len: cumsum.len,
        inner: cumsum.inner,
        exclusive: cumsum.exclusive,
        reverse: cumsum.reverse,
    }
}

/// Returns the kernel of an argsort.
pub(super) fn argsort(argsort: &kir::Argsort) -> kernels::Argsort {
    kernels::Argsort {
        rows: argsort.rows,
        len: argsort.len,
        take: argsort.take,
        descending: argsort.descending,
    }
}

/// Returns the kernel of non-maximum suppression.
pub(super) fn nms(nms: &kir::Nms) -> kernels::Nms {
    kernels::Nms { rows: nms.rows, len: nms.len }
}

/// Returns the kernel of attention; `inputs` are its operands.
pub(super) fn attention(
    kind: kir::AttentionKind,
    attention: &kir::Attention,
    inputs: &[kir::View],
) -> kernels::Attention {
    let strides = |view: &kir::View| [0, 1, 2, 3].map(|d| view.strides[d]);
    let has_bias = attention.bias && kind != kir::AttentionKind::DropoutFactors;
    kernels::Attention {
        pass: match kind {
            kir::AttentionKind::Forward => kernels::AttentionPass::Forward,
            kir::AttentionKind::Grad => kernels::AttentionPass::Grad,
            kir::AttentionKind::ScoreGrad => kernels::AttentionPass::ScoreGrad,
            kir::AttentionKind::DropoutFactors => kernels::AttentionPass::DropoutFactors,
        },
        batch: attention.batch,
        heads: attention.heads,
        kv_heads: attention.kv_heads,
        queries: attention.queries,
        keys: attention.keys,
        width: attention.width,
        value_width: attention.value_width,
        scale: attention.scale.value(),
        causal: attention.causal,
        mask: attention.mask,
        bias: has_bias.then(|| strides(&inputs[3 + usize::from(attention.mask)])),
        dropout: attention.dropout.map(kir::FloatBits::value),
    }
}
