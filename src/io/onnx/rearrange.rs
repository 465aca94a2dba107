//! Operations that rearrange, select and repeat elements.

use super::fold::extremes;
use super::is_index;
use super::node_cx::{NodeCx, one};
use super::translator::unknown_size;
use super::value::{Item, Value};
use crate::graph::Tensor;
use crate::onnx::permuted;
use crate::ops::ReshapeTarget;
use tensorpack_tensor::{DType, Dim, Error, ErrorKind, HostTensor, Result, element_count};

/// From here on, the end of a slice is that of the axis.
const TO_END: i64 = i32::MAX as i64;
/// The maximum number of rows that are selected, or replaced, by constant indices.
const MAX_ROWS: usize = 1 << 24;
/// The maximum number of parts of a split.
const MAX_PARTS: usize = 1 << 12;

/// The shape of a tensor is always folded; this is reached only for malformed nodes.
pub(super) fn shape(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    Err(Error::new(ErrorKind::Io, format!("{} has {} inputs", cx.node.op_type, cx.inputs.len())))
}

/// Returns a constant with other sizes.
fn resized(tensor: &HostTensor, sizes: Vec<usize>) -> Result<HostTensor> {
    if element_count(&sizes)? != tensor.len() {
        return Err(Error::shape(format!("{:?} cannot be reshaped to {sizes:?}", tensor.sizes())));
    }
    let mut result = HostTensor::zeros(tensor.dtype(), sizes)?;
    result.copy_from_bytes(tensor.as_bytes())?;
    Ok(result)
}

/// Reshapes input 0 to dims that are known, those of the input, or inferred.
fn reshaped(cx: &mut NodeCx<'_, '_>, targets: Vec<ReshapeTarget>) -> Result<Vec<Value>> {
    if let Value::Host(name, tensor) = cx.value(0) {
        let size = |t: &ReshapeTarget| match *t {
            ReshapeTarget::Size(n) => Some(n),
            ReshapeTarget::Same(i) => tensor.sizes().get(i).copied(),
            ReshapeTarget::Rest => None,
        };
        let known: usize = targets.iter().filter_map(size).product();
        let rest = tensor.len().checked_div(known).unwrap_or(0);
        let sizes = targets.iter().map(|t| size(t).unwrap_or(rest)).collect();
        return Ok(vec![Value::Host(name, resized(&tensor, sizes)?)]);
    }
    one(cx.tensor(0)?.reshape_to(targets))
}

pub(super) fn reshape(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let from = cx.shape(0);
    let items: Vec<Item> = match cx.node.ints("shape")? {
        Some(sizes) => sizes.iter().map(|&n| Item::Number(n as f64)).collect(),
        None => cx.dims(1)?,
    };
    let keep_zero = cx.node.flag("allowzero")?;
    let mut targets = Vec::new();
    for (i, item) in items.iter().enumerate() {
        let used = |at: usize| targets.contains(&ReshapeTarget::Same(at));
        let target = match *item {
            Item::Number(-1.0) => ReshapeTarget::Rest,
            Item::Number(0.0) if !keep_zero => match from.get(i) {
                Some(Dim::Known(n)) => ReshapeTarget::Size(*n),
                Some(Dim::Unknown(_)) => ReshapeTarget::Same(i),
                None => return Err(Error::shape(format!("{from} has no dim {i}"))),
            },
            Item::Number(n) if n >= 0.0 => ReshapeTarget::Size(n as usize),
            Item::Number(n) => return Err(Error::shape(format!("{n} is not a size"))),
            Item::Dim(dim) => {
                let own = from.iter().enumerate().find(|&(at, &d)| d == dim && !used(at));
                own.map_or(ReshapeTarget::Rest, |(at, _)| ReshapeTarget::Same(at))
            }
            Item::Unknown => ReshapeTarget::Rest,
        };
        targets.push(target);
    }
    let inferred = targets.iter().filter(|&&t| t == ReshapeTarget::Rest).count();
    match inferred {
        0 | 1 => reshaped(cx, targets),
        _ if items.iter().all(|item| !matches!(item, Item::Unknown | Item::Number(-1.0))) => {
            let like = cx.translator.shaped(&items)?;
            one(cx.tensor(0)?.reshape_like(&like))
        }
        _ => Err(unknown_size()),
    }
}

pub(super) fn flatten(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let rank = cx.rank(0);
    let axis = match cx.node.int("axis", 1)? {
        axis if axis == rank as i64 => rank,
        axis => cx.axis(axis)?,
    };
    let shape = cx.shape(0);
    let size = |dims: &[Dim]| Dim::product(dims).known().map(ReshapeTarget::Size);
    let targets = match (size(&shape[..axis]), size(&shape[axis..])) {
        (Some(a), Some(b)) => vec![a, b],
        (Some(a), None) => vec![a, ReshapeTarget::Rest],
        (None, Some(b)) => vec![ReshapeTarget::Rest, b],
        (None, None) if axis == 1 => vec![ReshapeTarget::Same(0), ReshapeTarget::Rest],
        (None, None) => return Err(unknown_size()),
    };
    reshaped(cx, targets)
}

pub(super) fn squeeze(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let shape = cx.shape(0);
    let axes = match cx.ints_or("axes", 1)? {
        Some(axes) => axes.into_iter().map(|axis| cx.axis(axis)).collect::<Result<Vec<usize>>>()?,
        None => (0..shape.rank()).filter(|&i| shape[i] == Dim::Known(1)).collect(),
    };
    if let Some(&axis) = axes.iter().find(|&&a| shape[a].known().is_some_and(|n| n != 1)) {
        return Err(Error::shape(format!("axis {axis} of {shape} does not have size 1")));
    }
    let targets = (0..shape.rank()).filter(|i| !axes.contains(i)).map(ReshapeTarget::Same).collect();
    reshaped(cx, targets)
}

pub(super) fn unsqueeze(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let Some(axes) = cx.ints_or("axes", 1)? else { return Err(cx.unsupported("a missing axis")) };
    let rank = cx.rank(0) + axes.len();
    let axes = axes.into_iter().map(|axis| cx.axis_of(axis, rank)).collect::<Result<Vec<usize>>>()?;
    let mut own = 0..cx.rank(0);
    let mut targets = Vec::new();
    for i in 0..rank {
        match (axes.contains(&i), own.clone().next()) {
            (true, _) => targets.push(ReshapeTarget::Size(1)),
            (false, Some(_)) => targets.extend(own.next().map(ReshapeTarget::Same)),
            (false, None) => return Err(Error::new(ErrorKind::Io, "an axis occurs twice")),
        }
    }
    reshaped(cx, targets)
}

pub(super) fn transpose(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let rank = cx.rank(0);
    let order: Vec<usize> = match cx.node.ints("perm")? {
        Some(perm) => perm.iter().map(|&axis| cx.axis(axis)).collect::<Result<_>>()?,
        None => (0..rank).rev().collect(),
    };
    // An image that becomes channels last, or first, may be stored in that order already.
    let to_last: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).take(rank).collect();
    match cx.value(0) {
        Value::ChannelsLast(x) if order == to_last => one(x),
        Value::Computed(x) if rank > 2 && is_inverse(&order, &to_last) => Ok(vec![Value::ChannelsLast(x)]),
        Value::Host(name, tensor) => Ok(vec![Value::Host(name, permuted(&tensor, &order)?)]),
        _ => one(cx.tensor(0)?.transpose(&order)),
    }
}

fn is_inverse(a: &[usize], b: &[usize]) -> bool {
    a.len() == b.len() && a.iter().enumerate().all(|(i, &at)| b.get(at) == Some(&i))
}

pub(super) fn concat(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let axis = cx.axis(cx.node.int("axis", 1)?)?;
    let count = cx.inputs.len();
    let rank = cx.rank(0);
    if rank > 2 && (0..count).any(|i| cx.is_channels_last(i)) && (0..count).all(|i| cx.rank(i) == rank) {
        let parts = (0..count).map(|i| cx.channels_last(i)).collect::<Result<Vec<Tensor>>>()?;
        let axis = match axis {
            0 => 0,
            1 => rank - 1,
            axis => axis - 1,
        };
        return Ok(vec![Value::ChannelsLast(cx.graph().concat(&parts, axis as isize))]);
    }
    let parts = (0..count).map(|i| cx.operand(i)).collect::<Result<Vec<Tensor>>>()?;
    one(cx.graph().concat(&parts, axis as isize))
}

pub(super) fn split(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let axis = cx.axis(cx.node.int("axis", 0)?)?;
    let n = cx.known(cx.shape(0)[axis])?;
    let sizes: Vec<usize> = match cx.ints_or("split", 1)? {
        Some(sizes) => {
            let sizes: Option<Vec<usize>> = sizes.into_iter().map(|n| usize::try_from(n).ok()).collect();
            sizes.ok_or_else(|| cx.unsupported("a negative size"))?
        }
        None => {
            let count = cx.node.outputs.len().clamp(1, MAX_PARTS);
            let size = n.div_ceil(count);
            (0..count).map(|i| size.min(n.saturating_sub(i * size))).collect()
        }
    };
    if sizes.len() > MAX_PARTS {
        return Err(cx.unsupported(format!("a split into {} parts", sizes.len())));
    }
    Ok(cx.tensor(0)?.split(&sizes, axis as isize).into_iter().map(Value::Computed).collect())
}

pub(super) fn slice(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let ints = |name: &str, i: usize| cx.ints_or(name, i);
    let (Some(starts), Some(ends)) = (ints("starts", 1)?, ints("ends", 2)?) else {
        return Err(Error::new(ErrorKind::Io, "its bounds are missing"));
    };
    let count = starts.len();
    let axes = ints("axes", 3)?.unwrap_or_else(|| (0..count as i64).collect());
    let steps = if cx.has(4) { cx.ints(4)? } else { vec![1; count] };
    if [ends.len(), axes.len(), steps.len()].iter().any(|&n| n != count) || steps.contains(&0) {
        return Err(Error::new(ErrorKind::Io, "its bounds, axes and steps do not fit together"));
    }
    let shape = cx.shape(0);
    let mut x = cx.tensor(0)?;
    for (((&start, &end), &axis), &step) in starts.iter().zip(&ends).zip(&axes).zip(&steps) {
        let axis = cx.axis(axis)?;
        x = match shape[axis].known() {
            Some(n) => part(&x, axis, n, [start, end, step]),
            // Positions from the start of an axis of unknown size.
            None => match (usize::try_from(start), end, usize::try_from(step)) {
                (Ok(0), TO_END.., Ok(1)) => x,
                (Ok(begin), 0.., Ok(step)) => {
                    let at = |i: usize| i == axis;
                    let begins: Vec<usize> = (0..x.rank()).map(|i| if at(i) { begin } else { 0 }).collect();
                    let end = (end < TO_END).then_some(end as usize);
                    let ends: Vec<Option<usize>> = (0..x.rank()).map(|i| end.filter(|_| at(i))).collect();
                    let steps: Vec<usize> = (0..x.rank()).map(|i| if at(i) { step } else { 1 }).collect();
                    x.strided_slice(&begins, &ends, &steps)
                }
                _ if (start, step) == (-1, -1) && end < -TO_END => x.reverse(&[axis as isize]),
                _ => return Err(unknown_size()),
            },
        };
    }
    one(x)
}

/// Returns a slice of an axis of size `n`.
fn part(x: &Tensor, axis: usize, n: usize, [start, end, step]: [i64; 3]) -> Tensor {
    let (begin, end) = match (extremes(n, [start, end, step]), step > 0) {
        (Some((first, last)), true) => (first, last + 1),
        (Some((first, last)), false) => (last, first + 1),
        (None, _) => (0, 0),
    };
    let at = |i: usize| i == axis;
    let begins: Vec<usize> = (0..x.rank()).map(|i| if at(i) { begin } else { 0 }).collect();
    let ends: Vec<Option<usize>> = (0..x.rank()).map(|i| at(i).then_some(end)).collect();
    let step_size = usize::try_from(step.unsigned_abs()).unwrap_or(usize::MAX).min(n.max(1));
    let steps: Vec<usize> = (0..x.rank()).map(|i| if at(i) { step_size } else { 1 }).collect();
    let y = if (begin, end, step_size) == (0, n, 1) {
        x.clone()
    } else {
        x.strided_slice(&begins, &ends, &steps)
    };
    if step < 0 { y.reverse(&[axis as isize]) } else { y }
}

pub(super) fn pad(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let pads = match cx.node.ints("pads")?.or(cx.node.ints("paddings")?) {
        Some(pads) => pads.to_vec(),
        None => cx.ints(1)?,
    };
    let value = match cx.has(2) {
        true => cx.number(2)?.unwrap_or(0.0),
        false => cx.node.float("value", 0.0)?,
    };
    let axes: Vec<usize> = match cx.has(3) {
        true => cx.ints(3)?.into_iter().map(|axis| cx.axis(axis)).collect::<Result<_>>()?,
        false => (0..cx.rank(0)).collect(),
    };
    if pads.len() != 2 * axes.len() {
        return Err(Error::new(
            ErrorKind::Io,
            format!("there are {} paddings for {} axes", pads.len(), axes.len()),
        ));
    }
    let mut x = cx.tensor(0)?;
    let (mut low, mut high) = (vec![0; x.rank()], vec![0; x.rank()]);
    for (i, &axis) in axes.iter().enumerate() {
        (low[axis], high[axis]) = (pads[i], pads[i + axes.len()]);
    }
    // Negative padding cuts.
    for axis in 0..x.rank() {
        if low[axis] < 0 || high[axis] < 0 {
            let n = cx.known(x.shape()[axis])?;
            let end = if high[axis] < 0 { high[axis] } else { i64::MAX };
            x = part(&x, axis, n, [(-low[axis]).max(0), end, 1]);
        }
    }
    let size = |n: &i64| usize::try_from(*n).unwrap_or(0);
    let (low, high): (Vec<usize>, Vec<usize>) =
        (low.iter().map(size).collect(), high.iter().map(size).collect());
    match cx.node.text("mode", "constant")? {
        "constant" => {}
        mode @ ("reflect" | "edge") => return one(mirrored(cx, x, &low, &high, mode == "reflect")?),
        mode => return Err(cx.unsupported(format!("the mode {mode:?}"))),
    }
    let between = vec![0; x.rank()];
    if value == 0.0 {
        return one(x.pad(&low, &high, &between));
    }
    if x.dtype() == DType::Bool {
        return one(x.logical_not().pad(&low, &high, &between).logical_not());
    }
    let inside = cx.scalar(1.0, x.dtype())?.broadcast_like(&x).pad(&low, &high, &between);
    let outside = cx.scalar(value, x.dtype())?;
    one(inside.greater(&cx.scalar(0.0, x.dtype())?).select(&x.pad(&low, &high, &between), &outside))
}

/// Pads with elements of the tensor: those at the same distance from the edge, or the edge's own.
fn mirrored(
    cx: &NodeCx<'_, '_>,
    mut x: Tensor,
    low: &[usize],
    high: &[usize],
    reflect: bool,
) -> Result<Tensor> {
    for axis in 0..x.rank() {
        if (low[axis], high[axis]) == (0, 0) {
            continue;
        }
        let n = cx.known(x.shape()[axis])?;
        let total = low[axis].saturating_add(high[axis]).saturating_add(n);
        if n == 0 || total > MAX_ROWS || (reflect && low[axis].max(high[axis]) >= n) {
            let why = format!(
                "{} cannot be padded by {} and {} of its own elements",
                x.shape(),
                low[axis],
                high[axis]
            );
            return Err(Error::shape(why));
        }
        let at = |i: usize| match i.checked_sub(low[axis]) {
            None if reflect => low[axis] - i,
            None => 0,
            Some(i) if i < n => i,
            Some(i) if reflect => 2 * (n - 1) - i,
            Some(_) => n - 1,
        };
        let places: Vec<i64> = (0..total).map(|i| at(i) as i64).collect();
        let places = cx.graph().constant(HostTensor::new([places.len()], places)?);
        x = x.gather(&places, axis as isize);
    }
    Ok(x)
}

pub(super) fn tile(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let counts: Option<Vec<usize>> = cx.ints(1)?.into_iter().map(|n| usize::try_from(n).ok()).collect();
    let counts = counts.ok_or_else(|| cx.unsupported("a negative count"))?;
    one(cx.tensor(0)?.tile(&counts))
}

pub(super) fn expand(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let items = cx.dims(1)?;
    let x = cx.tensor(0)?;
    let rank = x.rank().max(items.len());
    // A size of 1, or a size that the tensor has already, keeps that of the tensor.
    let own = |i: usize| (i + x.rank()).checked_sub(rank).map(|d| x.shape()[d]);
    let wanted = |i: usize| (i + items.len()).checked_sub(rank).map(|d| items[d]);
    let size = |i: usize| match (own(i), wanted(i)) {
        (Some(_), None | Some(Item::Number(1.0))) => Some(-1),
        (Some(own), Some(item)) if Item::of(own) == item => Some(-1),
        (_, Some(Item::Number(n))) => Some(n as isize),
        _ => None,
    };
    match (0..rank).map(size).collect::<Option<Vec<isize>>>() {
        Some(sizes) if sizes.iter().all(|&n| n == -1) => one(x),
        Some(sizes) => one(x.broadcast_to(&sizes)),
        None => {
            let like = cx.translator.shaped(&items)?;
            let whole = x.shape().broadcast(like.shape())?;
            match whole == *like.shape() {
                true => one(x.broadcast_like(&like)),
                false => {
                    let zero = cx.scalar(0.0, DType::F32)?;
                    let whole = zero.broadcast_like(&x.cast(DType::F32)) + like;
                    one(x.broadcast_like(&whole))
                }
            }
        }
    }
}

pub(super) fn constant_of_shape(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let items = cx.dims(0)?;
    let scalar = match cx.node.tensor("value")? {
        Some(value) => resized(value, Vec::new())?,
        None => HostTensor::scalar(0f32),
    };
    let scalar = cx.graph().constant(scalar);
    let sizes = items.iter().map(|item| match item {
        Item::Number(n) if *n >= 0.0 => Some(*n as isize),
        _ => None,
    });
    match sizes.collect::<Option<Vec<isize>>>() {
        Some(sizes) => one(scalar.broadcast_to(&sizes)),
        None => one(scalar.broadcast_like(&cx.translator.shaped(&items)?)),
    }
}

pub(super) fn range(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let dtype = cx.dtype(0);
    let (start, delta) = (cx.number(0)?.unwrap_or(0.0), cx.number(2)?.unwrap_or(1.0));
    let items = cx.dims(1)?;
    match (&items[..], start, delta) {
        ([Item::Dim(dim)], 0.0, 1.0) => one(cx.translator.indices(*dim, dtype)?),
        ([Item::Number(limit)], ..) => {
            let count = ((limit - start) / delta).ceil().max(0.0);
            if !count.is_finite() || count > MAX_ROWS as f64 {
                return Err(cx.unsupported("a range of this length"));
            }
            let values: Vec<f64> = (0..count as usize).map(|i| start + i as f64 * delta).collect();
            Ok(vec![Value::Host("".into(), HostTensor::from_f64(dtype, [values.len()], &values)?)])
        }
        _ => Err(unknown_size()),
    }
}

/// Returns indices in which negative ones count from the end of an axis.
fn positions(cx: &mut NodeCx<'_, '_>, i: usize, size: Dim) -> Result<Tensor> {
    if let Value::Host(_, tensor) = cx.value(i) {
        let at = |v: f64| match size.known() {
            Some(n) if v < 0.0 => Ok(v + n as f64),
            None if v < 0.0 => Err(unknown_size()),
            _ => Ok(v),
        };
        let values = tensor.to_f64_vec().into_iter().map(at).collect::<Result<Vec<f64>>>()?;
        return Ok(cx.graph().constant(HostTensor::from_f64(DType::I64, tensor.sizes(), &values)?));
    }
    let indices = cx.tensor(i)?;
    if !is_index(indices.dtype()) {
        return Err(Error::dtype(format!("indices of type {} are not supported", indices.dtype())));
    }
    let Some(n) = size.known() else { return Ok(indices) };
    let zero = cx.scalar(0.0, indices.dtype())?;
    Ok(indices.less(&zero).select(&(&indices + n as f64), &indices))
}

pub(super) fn gather(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let axis = cx.axis(cx.node.int("axis", 0)?)?;
    let size = cx.shape(0)[axis];
    // A single index is a slice.
    if let (Value::Host(_, index), Some(n)) = (cx.value(1), size.known())
        && index.len() == 1
    {
        let at = index.to_f64_vec()[0] as i64;
        let at = if at < 0 { at + n as i64 } else { at };
        let at = usize::try_from(at).ok().filter(|&at| at < n);
        let at =
            at.ok_or_else(|| Error::shape(format!("an index is outside axis {axis} of {}", cx.shape(0))))?;
        let x = cx.operand(0)?.slice_axis(axis as isize, at, Some(at + 1));
        return match index.sizes().len() {
            0 => one(x.squeeze(axis as isize)),
            rank => one((1..rank).fold(x, |x, _| x.expand_dims(axis as isize))),
        };
    }
    let indices = positions(cx, 1, size)?;
    let table = match cx.value(0) {
        Value::Host(_, tensor) if tensor.dtype().is_float() => cx.weight(0)?,
        _ => cx.tensor(0)?,
    };
    one(table.gather(&indices, axis as isize))
}

pub(super) fn gather_elements(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let axis = cx.axis(cx.node.int("axis", 0)?)?;
    let indices = positions(cx, 1, cx.shape(0)[axis])?;
    let mut x = cx.tensor(0)?;
    // The indices may cover a part of the other dims only.
    for i in (0..x.rank()).filter(|&i| i != axis && i < indices.rank()) {
        if let (Some(n), Some(part)) = (x.shape()[i].known(), indices.shape()[i].known())
            && part < n
        {
            x = x.slice_axis(i as isize, 0, Some(part));
        }
    }
    one(x.take_along_axis(&indices, axis as isize))
}

pub(super) fn scatter_elements(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let axis = cx.axis(cx.node.int("axis", 0)?)?;
    let indices = positions(cx, 1, cx.shape(0)[axis])?;
    let (data, updates) = (cx.tensor(0)?, cx.tensor(2)?);
    let (kept, given) = (data.shape(), updates.shape());
    if kept.rank() != given.rank() || (0..kept.rank()).any(|i| i != axis && kept[i] != given[i]) {
        return Err(cx.unsupported(format!("{given} as a part of {kept}")));
    }
    let mut order: Vec<usize> = (0..data.rank()).collect();
    order.swap(axis, data.rank() - 1);
    let [data, updates, indices] = [data, updates, indices].map(|x| x.transpose(&order));
    let sums = updates.add_along_last(&indices, &data);
    let y = match cx.node.text("reduction", "none")? {
        "add" => data + sums,
        "none" => {
            let ones = cx.scalar(1.0, updates.dtype())?.broadcast_like(&updates);
            let count = ones.add_along_last(&indices, &data);
            count.greater(&cx.scalar(0.0, count.dtype())?).select(&sums, &data)
        }
        other => return Err(cx.unsupported(format!("the reduction {other:?}"))),
    };
    one(y.transpose(&order))
}

/// Returns the sizes of the dims that the last dim of the indices, input 1, selects from, which must be
/// known, and the distances between their elements.
fn indexed(cx: &NodeCx<'_, '_>) -> Result<(Vec<usize>, Vec<usize>)> {
    let (shape, indices) = (cx.shape(0), cx.shape(1));
    let depth = indices.last().and_then(|d| d.known()).filter(|&k| k > 0 && k <= shape.rank());
    let depth = depth.ok_or_else(|| cx.unsupported(format!("indices of shape {indices}")))?;
    let sizes = shape[..depth].iter().map(|&d| cx.known(d)).collect::<Result<Vec<usize>>>()?;
    element_count(&sizes)?;
    let mut strides = vec![1; depth];
    for i in (1..depth).rev() {
        strides[i - 1] = strides[i] * sizes[i];
    }
    Ok((sizes, strides))
}

pub(super) fn gather_nd(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    if cx.node.int("batch_dims", 0)? != 0 {
        return Err(cx.unsupported("a batch of indices"));
    }
    let (sizes, strides) = indexed(cx)?;
    let indices = cx.tensor(1)?;
    if !is_index(indices.dtype()) {
        return Err(Error::dtype(format!("indices of type {} are not supported", indices.dtype())));
    }
    let indices = indices.cast(DType::I64);
    let constant = |values: &[usize]| {
        let values: Vec<i64> = values.iter().map(|&n| n as i64).collect();
        Ok::<Tensor, Error>(cx.graph().constant(HostTensor::new([values.len()], values)?))
    };
    let zero = cx.scalar(0.0, DType::I64)?;
    let positive = indices.less(&zero).select(&(&indices + constant(&sizes)?), &indices);
    let flat = (positive * constant(&strides)?).sum_axes(&[-1]);
    let x = cx.tensor(0)?;
    let rows = if sizes.len() > 1 { x.merge_dims(0, sizes.len()) } else { x };
    one(rows.gather(&flat, 0))
}

pub(super) fn scatter_nd(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let reduction = cx.node.text("reduction", "none")?;
    if !matches!(reduction, "none" | "add") {
        return Err(cx.unsupported(format!("the reduction {reduction:?}")));
    }
    let (sizes, strides) = indexed(cx)?;
    let rows = element_count(&sizes)?;
    if rows > MAX_ROWS {
        return Err(cx.unsupported(format!("a table of {rows} rows")));
    }
    let mut flat = Vec::new();
    for index in cx.ints(1)?.chunks(sizes.len()) {
        let mut row = 0;
        for ((&i, &n), &stride) in index.iter().zip(&sizes).zip(&strides) {
            let i = if i < 0 { i.saturating_add(n as i64) } else { i };
            let i = usize::try_from(i).ok().filter(|&i| i < n);
            row += i.ok_or_else(|| Error::shape(format!("an index is outside {}", cx.shape(0))))? * stride;
        }
        flat.push(row as i64);
    }
    let mut sorted = flat.clone();
    sorted.sort_unstable();
    if reduction == "none" && sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(cx.unsupported("the same index twice"));
    }
    let mut mask = vec![false; rows];
    flat.iter().for_each(|&row| mask[row as usize] = true);
    let (data, updates) = (cx.tensor(0)?, cx.tensor(2)?);
    let table = if sizes.len() > 1 { data.merge_dims(0, sizes.len()) } else { data.clone() };
    let leading = cx.rank(1) - 1;
    let updates = match leading {
        0 => updates.expand_dims(0),
        1 => updates,
        _ => updates.merge_dims(0, leading),
    };
    let indices = cx.graph().constant(HostTensor::new([flat.len()], flat)?);
    let sums = updates.scatter_add(&indices, rows, 0);
    let y = match reduction {
        "add" => table + sums,
        _ => {
            let mut shape = vec![1; table.rank()];
            shape[0] = rows;
            cx.graph().constant(HostTensor::new(shape, mask)?).select(&sums, &table)
        }
    };
    one(y.reshape_like(&data))
}

pub(super) fn one_hot(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let classes = cx.number(1)?.filter(|&n| (0.0..=MAX_ROWS as f64).contains(&n));
    let classes = classes.ok_or_else(|| cx.unsupported("a depth that is not a size"))? as usize;
    let values = cx.host(2)?;
    let [off, on] = values.to_f64_vec()[..] else { return Err(cx.unsupported("these values")) };
    let rank = cx.rank(0) + 1;
    let axis = cx.axis_of(cx.node.int("axis", -1)?, rank)?;
    let indices = positions(cx, 0, Dim::Known(classes))?;
    let is_hot = indices.one_hot(classes, DType::F32).greater(&cx.scalar(0.0, DType::F32)?);
    let hot = match values.dtype() {
        DType::Bool => is_hot.cast(DType::F32) * (on - off) + off,
        dtype => is_hot.select(&cx.scalar(on, dtype)?, &cx.scalar(off, dtype)?),
    };
    let order: Vec<usize> = (0..axis).chain([rank - 1]).chain(axis..rank - 1).collect();
    one(hot.transpose(&order).cast(values.dtype()))
}

/// Returns the block size, and the sizes of an image that must be known.
fn blocks(cx: &NodeCx<'_, '_>) -> Result<(usize, [usize; 3])> {
    let block = usize::try_from(cx.node.int("blocksize", 0)?).ok().filter(|&b| b > 0 && b < 1 << 16);
    let block = block.ok_or_else(|| cx.unsupported("this block size"))?;
    let shape = cx.shape(0);
    if shape.rank() != 4 {
        return Err(cx.unsupported("a tensor that is not an image"));
    }
    Ok((block, [cx.known(shape[1])?, cx.known(shape[2])?, cx.known(shape[3])?]))
}

pub(super) fn depth_to_space(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let (b, [c, h, w]) = blocks(cx)?;
    let depth = c / (b * b);
    if !c.is_multiple_of(b * b) {
        return Err(Error::shape(format!("{c} channels are not a multiple of {}", b * b)));
    }
    let [b, depth, h, w] = [b, depth, h, w].map(|n| n as isize);
    let x = cx.tensor(0)?;
    let y = match cx.node.text("mode", "DCR")? {
        "CRD" => x.reshape(&[-1, depth, b, b, h, w]).transpose(&[0, 1, 4, 2, 5, 3]),
        _ => x.reshape(&[-1, b, b, depth, h, w]).transpose(&[0, 3, 4, 1, 5, 2]),
    };
    one(y.reshape(&[-1, depth, h * b, w * b]))
}

pub(super) fn space_to_depth(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let (b, [c, h, w]) = blocks(cx)?;
    if !(h.is_multiple_of(b) && w.is_multiple_of(b)) {
        return Err(Error::shape(format!("an image of {h}x{w} cannot be divided into blocks of {b}x{b}")));
    }
    let [b, c, h, w] = [b, c, h / b, w / b].map(|n| n as isize);
    let y = cx.tensor(0)?.reshape(&[-1, c, h, b, w, b]).transpose(&[0, 3, 5, 1, 2, 4]);
    one(y.reshape(&[-1, c * b * b, h, w]))
}

pub(super) fn trilu(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let upper = cx.node.int("upper", 1)? != 0;
    let k = cx.number(1)?.unwrap_or(0.0);
    if cx.rank(0) < 2 {
        return Err(cx.unsupported("a tensor that is not a matrix"));
    }
    let x = cx.tensor(0)?;
    let (row, column) = (x.iota_like(-2, DType::I64), x.iota_like(-1, DType::I64));
    let diagonal = &row + k;
    let kept = if upper { column.greater_equal(&diagonal) } else { column.less_equal(&diagonal) };
    one(match x.dtype() {
        DType::Bool => kept.logical_and(&x),
        dtype => kept.select(&x, &cx.scalar(0.0, dtype)?),
    })
}
