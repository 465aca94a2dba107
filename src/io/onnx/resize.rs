//! Resizing of images.

use super::node_cx::{NodeCx, one};
use super::value::{Item, Value};
use crate::graph::Tensor;
use tensorpack_tensor::{Dim, Error, ErrorKind, HostTensor, Result};

/// How positions in the output correspond to those in the input.
#[derive(Clone, Copy)]
enum Coordinates {
    HalfPixel,
    PytorchHalfPixel,
    Asymmetric,
    AlignCorners,
}

impl Coordinates {
    /// Returns the position in an input of size `from` of element `i` of an output of size `to`.
    /// Rounded as in f32: which of two elements is the nearest may depend on it.
    fn position(self, i: usize, from: usize, to: usize, scale: f32) -> f64 {
        let x = i as f32;
        let position = match self {
            Coordinates::PytorchHalfPixel if to <= 1 => 0.0,
            Coordinates::HalfPixel | Coordinates::PytorchHalfPixel => (x + 0.5) / scale - 0.5,
            Coordinates::Asymmetric => x / scale,
            Coordinates::AlignCorners if to <= 1 => 0.0,
            Coordinates::AlignCorners => x * (from as f32 - 1.0) / (to as f32 - 1.0),
        };
        f64::from(position)
    }
}

/// The maximum size of a resized axis.
const MAX_SIZE: usize = 1 << 20;

pub(super) fn resize(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let node = cx.node;
    let is_upsample = node.op_type == "Upsample" || cx.opset() < 11;
    let mode = node.text("mode", "nearest")?;
    let default = if is_upsample { "asymmetric" } else { "half_pixel" };
    let coordinates = match node.text("coordinate_transformation_mode", default)? {
        "half_pixel" => Coordinates::HalfPixel,
        "pytorch_half_pixel" => Coordinates::PytorchHalfPixel,
        "asymmetric" => Coordinates::Asymmetric,
        "align_corners" => Coordinates::AlignCorners,
        other => return Err(cx.unsupported(format!("the coordinate transformation {other:?}"))),
    };
    let rounding: fn(f64) -> f64 =
        match node.text("nearest_mode", if is_upsample { "floor" } else { "round_prefer_floor" })? {
            "floor" => f64::floor,
            "ceil" => f64::ceil,
            "round_prefer_ceil" => |x| (x + 0.5).floor(),
            _ => |x| (x - 0.5).ceil(),
        };
    let is_linear = match mode {
        "nearest" => false,
        "linear" | "bilinear" => true,
        other => return Err(cx.unsupported(format!("the mode {other:?}"))),
    };
    if node.flag("antialias")? || node.text("keep_aspect_ratio_policy", "stretch")? != "stretch" {
        return Err(cx.unsupported("antialiasing, or keeping of the aspect ratio,"));
    }
    let shape = cx.shape(0);
    let axes: Vec<usize> = match node.ints("axes")? {
        Some(axes) => axes.iter().map(|&axis| cx.axis(axis)).collect::<Result<_>>()?,
        None => (0..shape.rank()).collect(),
    };
    let targets = targets(cx, is_upsample, &axes)?;
    if is_linear && !cx.dtype(0).is_float() {
        return Err(cx.unsupported(format!("linear interpolation of {}", cx.dtype(0))));
    }
    let is_last = cx.is_channels_last(0);
    let mut x = if is_last { cx.channels_last(0)? } else { cx.tensor(0)? };
    for (&axis, target) in axes.iter().zip(targets) {
        let at = match (is_last, axis) {
            (false, axis) | (true, axis @ 0) => axis,
            (true, 1) => shape.rank() - 1,
            (true, axis) => axis - 1,
        };
        x = resize_axis(cx, &x, at, target, (coordinates, rounding, is_linear))?;
    }
    Ok(vec![if is_last { Value::ChannelsLast(x) } else { return one(x) }])
}

/// The new size of an axis: a factor, or a size.
#[derive(Clone, Copy, Debug)]
enum Target {
    Scale(f32),
    Size(Item),
}

/// Returns the factor or the size of each axis.
fn targets(cx: &NodeCx<'_, '_>, is_upsample: bool, axes: &[usize]) -> Result<Vec<Target>> {
    let scales_at = if is_upsample { 1 } else { 2 };
    let scales: Vec<f32> = match cx.node.floats("scales")? {
        Some(scales) => scales.to_vec(),
        None if cx.has(scales_at) => {
            cx.host(scales_at)?.to_f64_vec().into_iter().map(|scale| scale as f32).collect()
        }
        None => Vec::new(),
    };
    let targets: Vec<Target> = match scales.is_empty() && cx.has(3) {
        true => cx.dims(3)?.into_iter().map(Target::Size).collect(),
        false => scales.into_iter().map(Target::Scale).collect(),
    };
    match targets.len() == axes.len() {
        true => Ok(targets),
        false => Err(Error::new(
            ErrorKind::Io,
            format!("{} sizes are given for {} axes", targets.len(), axes.len()),
        )),
    }
}

fn resize_axis(
    cx: &NodeCx<'_, '_>,
    x: &Tensor,
    axis: usize,
    target: Target,
    (coordinates, rounding, is_linear): (Coordinates, fn(f64) -> f64, bool),
) -> Result<Tensor> {
    let dim = x.shape()[axis];
    let from = match (dim, target) {
        (_, Target::Scale(1.0)) => return Ok(x.clone()),
        (dim, Target::Size(item)) if Item::of(dim) == item => return Ok(x.clone()),
        (Dim::Known(n), _) => n,
        // Every element is repeated if the factor is an integer.
        (_, Target::Scale(scale)) if !is_linear && scale.fract() == 0.0 && (1.0..=64.0).contains(&scale) => {
            let (k, to) = (scale as usize, 8 * scale as usize);
            let nearest = |i: usize| rounding(coordinates.position(i, 8, to, scale)).clamp(0.0, 7.0);
            match (0..to).all(|i| nearest(i) == (i / k) as f64) {
                true => return Ok(x.repeat(k, axis as isize)),
                false => return Err(super::translator::unknown_size()),
            }
        }
        _ => return Err(super::translator::unknown_size()),
    };
    let (to, scale) = match target {
        // The product of 10 and 0.7 is 7 in f32, and less in f64.
        Target::Scale(scale) => (f64::from((from as f32 * scale).floor()), scale),
        Target::Size(Item::Number(n)) => (n, n as f32 / from as f32),
        Target::Size(_) => return Err(super::translator::unknown_size()),
    };
    if !(1.0..=MAX_SIZE as f64).contains(&to) || from == 0 {
        return Err(Error::shape(format!("a size of {from} cannot be resized to {to}")));
    }
    let (to, last) = (to as usize, from as f64 - 1.0);
    let gather = |places: Vec<i64>| -> Result<Tensor> {
        let places = cx.graph().constant(HostTensor::new([places.len()], places)?);
        Ok(x.gather(&places, axis as isize))
    };
    let positions: Vec<f64> = (0..to).map(|i| coordinates.position(i, from, to, scale)).collect();
    if !is_linear {
        let nearest = |p: &f64| rounding(*p).clamp(0.0, last) as i64;
        return gather(positions.iter().map(nearest).collect());
    }
    let positions: Vec<f64> = positions.iter().map(|p| p.clamp(0.0, last)).collect();
    let low = gather(positions.iter().map(|p| p.floor() as i64).collect())?;
    let high = gather(positions.iter().map(|p| (p.floor() + 1.0).min(last) as i64).collect())?;
    let mut sizes = vec![1; x.rank()];
    sizes[axis] = to;
    let weights: Vec<f64> = positions.iter().map(|p| p - p.floor()).collect();
    let weights = cx.graph().constant(HostTensor::from_f64(x.dtype(), sizes, &weights)?);
    Ok(&low + (high - &low) * weights)
}
