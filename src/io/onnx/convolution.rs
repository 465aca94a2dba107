//! Convolutions and pooling of images and sequences, which have their channels last here.

use super::node_cx::{NodeCx, one_channels_last};
use super::value::Value;
use crate::graph::Tensor;
use crate::ops::{Conv2dOptions, Layout, Padding, PoolOptions};
use tensorpack_tensor::{Dim, Error, ErrorKind, Result};

/// The window of a convolution or of pooling. That of a sequence has a height of 1.
struct Window {
    kernel: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    padding: Padding,
    /// Whether the input is a sequence.
    is_sequence: bool,
}

/// Returns values for height and width from an attribute with one value per axis.
fn pair(cx: &NodeCx<'_, '_>, name: &str, axes: usize) -> Result<[usize; 2]> {
    let wrong = || Error::new(ErrorKind::Io, format!("the attribute {name:?} does not have {axes} sizes"));
    let Some(values) = cx.node.ints(name)? else { return Ok([1, 1]) };
    let values: Option<Vec<usize>> = values.iter().map(|&n| usize::try_from(n).ok()).collect();
    match values.as_deref() {
        Some(&[w]) if axes == 1 => Ok([1, w]),
        Some(&[h, w]) if axes == 2 => Ok([h, w]),
        _ => Err(wrong()),
    }
}

impl Window {
    fn new(cx: &NodeCx<'_, '_>, kernel: Option<&[usize]>) -> Result<Window> {
        let axes = cx.rank(0).saturating_sub(2);
        if !(1..=2).contains(&axes) {
            return Err(cx.unsupported(format!("{} of a tensor of rank {}", cx.node.op_type, axes + 2)));
        }
        let kernel = match kernel {
            Some(&[w]) => [1, w],
            Some(&[h, w]) => [h, w],
            _ => pair(cx, "kernel_shape", axes)?,
        };
        let (stride, dilation) = (pair(cx, "strides", axes)?, pair(cx, "dilations", axes)?);
        let mut window = Window { kernel, stride, dilation, padding: Padding::Valid, is_sequence: axes == 1 };
        window.padding = window.padding(cx, axes)?;
        Ok(window)
    }

    fn padding(&self, cx: &NodeCx<'_, '_>, axes: usize) -> Result<Padding> {
        let shape = cx.shape(0);
        match cx.node.text("auto_pad", "NOTSET")? {
            "VALID" => return Ok(Padding::Valid),
            "SAME_UPPER" => return Ok(Padding::Same),
            "SAME_LOWER" => {
                let mut around = [[0; 2]; 2];
                for i in 2 - axes..2 {
                    let n = cx.known(shape[i + axes])?;
                    let reach = (self.kernel[i].saturating_sub(1)).saturating_mul(self.dilation[i]) + 1;
                    let windows =
                        n.div_ceil(self.stride[i].max(1)).saturating_sub(1).saturating_mul(self.stride[i]);
                    let total = windows.saturating_add(reach).saturating_sub(n);
                    around[i] = [total - total / 2, total / 2];
                }
                return Ok(Padding::Explicit(around));
            }
            _ => {}
        }
        let Some(pads) = cx.node.ints("pads")? else { return Ok(Padding::Valid) };
        let pads: Option<Vec<usize>> = pads.iter().map(|&n| usize::try_from(n).ok()).collect();
        match pads.as_deref() {
            Some(&[a, b]) if axes == 1 => Ok(Padding::Explicit([[0, 0], [a, b]])),
            Some(&[a, b, c, d]) if axes == 2 => Ok(Padding::Explicit([[a, c], [b, d]])),
            _ => Err(cx.unsupported("negative padding")),
        }
    }

    fn options(&self, groups: usize) -> Conv2dOptions {
        let (stride, dilation, padding) = (self.stride, self.dilation, self.padding);
        Conv2dOptions { stride, dilation, padding, groups, layout: Layout::Nhwc }
    }

    /// Applies a function of images to an image or a sequence.
    fn apply(&self, x: &Tensor, f: impl FnOnce(&Tensor) -> Tensor) -> Result<Vec<Value>> {
        one_channels_last(match self.is_sequence {
            true => f(&x.expand_dims(1)).squeeze(1),
            false => f(x),
        })
    }
}

/// Returns the weights of a convolution `[height, width, in, out]`, or of a transposed one `[height,
/// width, out, in]`, and the sizes of the window.
fn filter(cx: &mut NodeCx<'_, '_>) -> Result<(Tensor, Vec<usize>)> {
    let shape = cx.shape(1);
    let sizes = shape.known().filter(|sizes| matches!(sizes.len(), 3 | 4)).ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, format!("filters of shape {shape} are not supported"))
    })?;
    let order: Vec<usize> = (2..sizes.len()).chain([1, 0]).collect();
    let w = cx.weight_as(1, &order)?;
    let w = if sizes.len() == 3 { w.expand_dims(0) } else { w };
    Ok((w, sizes[2..].to_vec()))
}

pub(super) fn conv(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let (w, kernel) = filter(cx)?;
    let window = Window::new(cx, Some(&kernel))?;
    let groups = usize::try_from(cx.node.int("group", 1)?).unwrap_or(0);
    let x = cx.channels_last(0)?;
    let bias = if cx.has(2) { Some(cx.weight(2)?) } else { None };
    window.apply(&x, |x| {
        let y = x.conv2d(&w, window.options(groups));
        match &bias {
            Some(bias) => y + bias,
            None => y,
        }
    })
}

pub(super) fn conv_transpose(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let (w, kernel) = filter(cx)?;
    let mut window = Window::new(cx, Some(&kernel))?;
    let axes = kernel.len();
    if cx.node.int("group", 1)? != 1 {
        return Err(cx.unsupported("a transposed convolution with groups"));
    }
    if cx.node.ints("output_shape")?.is_some() || cx.node.text("auto_pad", "NOTSET")?.starts_with("SAME") {
        return Err(cx.unsupported("a transposed convolution with a given output size"));
    }
    let extra = match cx.node.ints("output_padding")? {
        Some(_) if window.is_sequence => [0, pair(cx, "output_padding", axes)?[1]],
        Some(_) => pair(cx, "output_padding", axes)?,
        None => [0, 0],
    };
    // Output padding cuts less off the full result; beyond its end are zeros.
    let mut around = match window.padding {
        Padding::Explicit(around) => around,
        _ => [[0, 0]; 2],
    };
    let mut beyond = [0; 2];
    for i in 0..2 {
        beyond[i] = extra[i].saturating_sub(around[i][1]);
        around[i][1] -= extra[i].min(around[i][1]);
    }
    window.padding = Padding::Explicit(around);
    let bias = if cx.has(2) { Some(cx.weight(2)?) } else { None };
    let x = cx.channels_last(0)?;
    window.apply(&x, |x| {
        let mut y = x.conv2d_transpose(&w, window.options(1));
        if beyond != [0, 0] {
            y = y.pad(&[0; 4], &[0, beyond[0], beyond[1], 0], &[0; 4]);
        }
        match &bias {
            Some(bias) => y + bias,
            None => y,
        }
    })
}

pub(super) fn pool(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let mut window = Window::new(cx, None)?;
    if window.dilation != [1, 1] {
        return Err(cx.unsupported("dilated pooling"));
    }
    if cx.node.outputs.get(1).is_some_and(|indices| !indices.is_empty()) {
        return Err(cx.unsupported("the indices of a maximum"));
    }
    let is_max = cx.node.op_type == "MaxPool";
    let x = cx.channels_last(0)?;
    let x = if window.is_sequence { x.expand_dims(1) } else { x };
    let sizes = [x.shape()[1], x.shape()[2]];
    let count_padding = !is_max && cx.node.flag("count_include_pad")?;
    let given = match window.padding {
        Padding::Explicit(pads) => pads,
        _ => [[0; 2]; 2],
    };
    let mut padding = given;
    if cx.node.flag("ceil_mode")? && window.padding != Padding::Same {
        for i in 0..2 {
            padding[i][1] += ceil_padding(cx, &window, i, sizes[i], given[i])?;
        }
        window.padding = Padding::Explicit(padding);
    }
    let options = PoolOptions {
        window: window.kernel,
        stride: window.stride,
        padding: window.padding,
        layout: Layout::Nhwc,
    };
    let y = match (is_max, count_padding) {
        (true, _) => x.max_pool_with(options),
        (false, false) => x.average_pool_with(options),
        (false, true) if window.padding == Padding::Same => return Err(cx.unsupported("counting of padding")),
        // Zeros that the model adds count, those of the last window do not.
        (false, true) => {
            let [h, w] = given;
            let padded = x.pad(&[0, h[0], w[0], 0], &[0, h[1], w[1], 0], &[0; 4]);
            let rest = [0, 1].map(|i| [0, padding[i][1] - given[i][1]]);
            padded.average_pool_with(PoolOptions { padding: Padding::Explicit(rest), ..options })
        }
    };
    one_channels_last(if window.is_sequence { y.squeeze(1) } else { y })
}

/// Returns the zeros after an axis that a last, partial window needs. It must begin before them.
fn ceil_padding(
    cx: &NodeCx<'_, '_>,
    window: &Window,
    i: usize,
    size: Dim,
    pads: [usize; 2],
) -> Result<usize> {
    let (k, s) = (window.kernel[i], window.stride[i].max(1));
    if (k, pads) == (1, [0, 0]) && s == 1 {
        return Ok(0);
    }
    let n = cx.known(size)?;
    let padded = n + pads[0] + pads[1];
    let mut windows = padded.saturating_sub(k).div_ceil(s) + 1;
    if (windows - 1) * s >= n + pads[0] {
        windows -= 1;
    }
    Ok(((windows.max(1) - 1) * s + k).saturating_sub(padded))
}

pub(super) fn global_pool(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let x = cx.channels_last(0)?;
    if x.rank() < 3 {
        return Err(cx.unsupported("a tensor without an image"));
    }
    let axes: Vec<isize> = (1..x.rank() as isize - 1).collect();
    one_channels_last(match cx.node.op_type.as_str() {
        "GlobalMaxPool" => x.max_keep(&axes),
        _ => x.mean_keep(&axes),
    })
}
