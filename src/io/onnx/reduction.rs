//! Reductions, sorting and cumulative sums.

use super::node_cx::{NodeCx, one};
use super::value::Value;
use crate::ops::CumsumOptions;
use tensorpack_tensor::{DType, Result};

/// Returns the axes of a reduction, an attribute in old versions and an input in new ones. Without any,
/// each element is reduced by itself.
fn axes(cx: &NodeCx<'_, '_>) -> Result<Vec<usize>> {
    let given = cx.ints_or("axes", 1)?.filter(|axes| !axes.is_empty());
    match given {
        Some(axes) => axes.into_iter().map(|axis| cx.axis(axis)).collect(),
        None if cx.node.flag("noop_with_empty_axes")? => Ok(Vec::new()),
        None => Ok((0..cx.rank(0)).collect()),
    }
}

pub(super) fn reduce(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let mut axes = axes(cx)?;
    axes.sort_unstable();
    axes.dedup();
    let keep = cx.node.int("keepdims", 1)? != 0;
    let dtype = cx.dtype(0);
    // The layout of an image stays as it is if its dims stay.
    let is_last = keep && cx.is_channels_last(0);
    let rank = cx.rank(0);
    let (x, axes) = match is_last {
        true => {
            let at = |&axis: &usize| match axis {
                0 => 0,
                1 => rank - 1,
                axis => axis - 1,
            };
            (cx.channels_last(0)?, axes.iter().map(at).collect())
        }
        false => (cx.tensor(0)?, axes),
    };
    let over: Vec<isize> = axes.iter().map(|&a| a as isize).collect();
    let y = if over.is_empty() {
        match cx.node.op_type.as_str() {
            "ReduceL1" | "ReduceL2" => x.abs(),
            "ReduceSumSquare" => x.square(),
            "ReduceLogSum" => x.log(),
            _ => x,
        }
    } else {
        match cx.node.op_type.as_str() {
            "ReduceSum" => x.sum_keep(&over),
            "ReduceMean" => x.mean_keep(&over),
            "ReduceMax" => x.max_keep(&over),
            "ReduceMin" => x.min_keep(&over),
            "ReduceL1" => x.abs().sum_keep(&over),
            "ReduceL2" => x.square().sum_keep(&over).sqrt(),
            "ReduceSumSquare" => x.square().sum_keep(&over),
            "ReduceLogSumExp" => x.log_sum_exp_keep(&over),
            "ReduceLogSum" => x.sum_keep(&over).log(),
            "ReduceProd" => {
                let y = x.prod_axes(&over);
                axes.iter().fold(y, |y, &axis| y.expand_dims(axis as isize))
            }
            other => return Err(cx.unsupported(other)),
        }
    };
    // Sums of integers are i64 here.
    let y = y.cast(dtype);
    if is_last {
        return Ok(vec![Value::ChannelsLast(y)]);
    }
    one(match keep {
        true => y,
        false => axes.iter().rev().fold(y, |y, &axis| y.squeeze(axis as isize)),
    })
}

pub(super) fn arg_reduce(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    if cx.node.flag("select_last_index")? {
        return Err(cx.unsupported("the last of several extremes"));
    }
    let axis = cx.axis(cx.node.int("axis", 0)?)? as isize;
    let x = cx.tensor(0)?;
    let y = if cx.node.op_type == "ArgMax" { x.argmax(axis) } else { x.argmin(axis) };
    one(if cx.node.int("keepdims", 1)? != 0 { y.expand_dims(axis) } else { y })
}

pub(super) fn top_k(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let k = match cx.has(1) {
        true => cx.ints(1)?.first().copied().unwrap_or(-1),
        false => cx.node.int("k", -1)?,
    };
    let k = usize::try_from(k).map_err(|_| cx.unsupported("a negative k"))?;
    let axis = cx.axis(cx.node.int("axis", -1)?)?;
    let x = cx.tensor(0)?;
    let mut order: Vec<usize> = (0..x.rank()).collect();
    order.swap(axis, x.rank() - 1);
    let last = x.transpose(&order);
    let (values, indices) = match cx.node.int("largest", 1)? {
        0 => {
            let indices = last.argsort(-1).slice_axis(-1, 0, Some(k));
            (last.take_along_axis(&indices, -1), indices)
        }
        _ => last.top_k(k),
    };
    Ok([values, indices].into_iter().map(|y| Value::Computed(y.transpose(&order))).collect())
}

pub(super) fn cumsum(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let axis = cx.ints(1)?.first().copied().unwrap_or(0);
    let axis = cx.axis(axis)? as isize;
    let options = CumsumOptions { exclusive: cx.node.flag("exclusive")?, reverse: cx.node.flag("reverse")? };
    let x = cx.tensor(0)?;
    let dtype = x.dtype();
    let x = if matches!(dtype, DType::U8 | DType::Bool) { x.cast(DType::I64) } else { x };
    one(x.cumsum_with(axis, options).cast(dtype))
}
