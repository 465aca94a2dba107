//! Normalization and softmax.

use super::node_cx::{NodeCx, one, one_channels_last};
use super::value::Value;
use crate::graph::Tensor;
use tensorpack_tensor::Result;

pub(super) fn batch_norm(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    if cx.node.flag("training_mode")? {
        return Err(cx.unsupported("batch normalization in training mode"));
    }
    if cx.node.int("spatial", 1)? == 0 {
        return Err(cx.unsupported("batch normalization of every position of its own"));
    }
    let epsilon = cx.node.float("epsilon", 1e-5)?;
    let (gamma, beta) = (cx.weight(1)?, cx.weight(2)?);
    let (mean, variance) = (cx.statistic(3)?, cx.statistic(4)?);
    let x = cx.channels_last(0)?;
    let scale = (variance + epsilon).rsqrt() * gamma;
    one_channels_last_if(cx.rank(0) > 2, (x - mean) * scale + beta)
}

fn one_channels_last_if(is_image: bool, y: Tensor) -> Result<Vec<Value>> {
    if is_image { one_channels_last(y) } else { one(y) }
}

pub(super) fn instance_norm(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let epsilon = cx.node.float("epsilon", 1e-5)?;
    let (gamma, beta) = (cx.weight(1)?, cx.weight(2)?);
    let x = cx.channels_last(0)?;
    let axes: Vec<isize> = (1..x.rank() as isize - 1).collect();
    one_channels_last_if(x.rank() > 2, x.normalize(&axes, epsilon) * gamma + beta)
}

pub(super) fn layer_norm(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    if cx.node.outputs.iter().skip(1).any(|name| !name.is_empty()) {
        return Err(cx.unsupported("layer normalization that returns its statistics"));
    }
    let epsilon = cx.node.float("epsilon", 1e-5)?;
    let axis = cx.axis(cx.node.int("axis", -1)?)?;
    let x = cx.tensor(0)?;
    let axes: Vec<isize> = (axis..x.rank()).map(|i| i as isize).collect();
    let mut y = x.normalize(&axes, epsilon) * cx.weight(1)?;
    if cx.has(2) {
        y = y + cx.weight(2)?;
    }
    one(y)
}

pub(super) fn group_norm(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let epsilon = cx.node.float("epsilon", 1e-5)?;
    let groups = usize::try_from(cx.node.int("num_groups", 1)?).unwrap_or(0);
    if cx.rank(0) < 2 || cx.rank(1) != 1 || cx.rank(2) != 1 {
        return Err(cx.unsupported("a tensor without channels"));
    }
    let channels = cx.known(cx.shape(0)[1])?;
    // Opset 18 has one scale per group, opset 21 one per channel.
    let per_channel = |x: Tensor| match x.shape().first().and_then(|d| d.known()) {
        Some(n) if n == groups && n != channels && groups > 0 => x.repeat(channels / groups, 0),
        _ => x,
    };
    let (gamma, beta) = (per_channel(cx.weight(1)?), per_channel(cx.weight(2)?));
    let x = cx.channels_last(0)?;
    one_channels_last_if(x.rank() > 2, x.group_norm(groups, epsilon) * gamma + beta)
}

pub(super) fn lp_norm(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let axis = cx.axis(cx.node.int("axis", -1)?)? as isize;
    let x = cx.tensor(0)?;
    let norm = match cx.node.int("p", 2)? {
        1 => x.abs().sum_keep(&[axis]),
        _ => x.square().sum_keep(&[axis]).sqrt(),
    };
    // Zeros stay zeros.
    let is_zero = norm.equal(&cx.scalar(0.0, x.dtype())?);
    one(&x / is_zero.select(&cx.scalar(1.0, x.dtype())?, &norm))
}

/// Local response normalization: the squares of a window of channels are summed.
pub(super) fn lrn(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let node = cx.node;
    let (alpha, beta, bias) =
        (node.float("alpha", 1e-4)?, node.float("beta", 0.75)?, node.float("bias", 1.0)?);
    let size = usize::try_from(node.int("size", 1)?).ok().filter(|n| (1..=256).contains(n));
    let size = size.ok_or_else(|| cx.unsupported("a window of this size"))?;
    if cx.rank(0) < 2 {
        return Err(cx.unsupported("a tensor without channels"));
    }
    let x = cx.channels_last(0)?;
    let last = x.rank() - 1;
    let channels = cx.known(x.shape()[last])?;
    let (mut low, mut high) = (vec![0; x.rank()], vec![0; x.rank()]);
    (low[last], high[last]) = ((size - 1) / 2, size / 2);
    let padded = x.square().pad(&low, &high, &vec![0; x.rank()]);
    let parts = (0..size).map(|i| padded.slice_axis(-1, i, Some(i + channels)));
    let Some(sum) = parts.reduce(|a, b| a + b) else { return Err(cx.unsupported("an empty window")) };
    let scale = (sum * (alpha / size as f64) + bias).pow(&cx.scalar(beta, x.dtype())?);
    one_channels_last_if(x.rank() > 2, x / scale)
}

pub(super) fn softmax(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let is_log = cx.node.op_type == "LogSoftmax";
    let old = cx.opset() < 13;
    let axis = cx.axis(cx.node.int("axis", if old { 1 } else { -1 })?)?;
    let x = cx.tensor(0)?;
    let apply =
        |x: &Tensor, axis: isize| if is_log { x.log_softmax_axis(axis) } else { x.softmax_axis(axis) };
    // Old versions flatten all dims from the axis on.
    if old && axis + 1 < x.rank() {
        return one(apply(&x.flatten(axis), axis as isize).reshape_like(&x));
    }
    one(apply(&x, axis as isize))
}
