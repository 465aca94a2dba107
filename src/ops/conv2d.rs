//! Convolution of images `[batch, height, width, channels]` with filters
//! `[height, width, in, out]`, and its two gradients. Each of the three is linear in both inputs,
//! and the gradients of each are the other two.

use super::layout::{HWIO_TO_OIHW, NCHW_TO_NHWC, NHWC_TO_NCHW};
use super::{Layout, Padding, Window, depthwise_conv2d, same_spec};
use crate::graph::{Autocast, GradCx, OpDef, Spec, Tensor};
use crate::kir::{self, ContractKind, LowerCx, View};
use crate::onnx::{Attr, ExportCx, Value};
use crate::reference::{Array, EvaluateCx, Scalar};
use serde::{Deserialize, Serialize};
use tensorpack_tensor::{Dim, Error, Result};

/// Stride, dilation, padding, groups and layout of a 2-D convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conv2dOptions {
    /// The stride of the window.
    pub stride: [usize; 2],
    /// The distance between filter taps.
    pub dilation: [usize; 2],
    /// Zeros around the image.
    pub padding: Padding,
    /// The number of channel groups, each convolved separately; equal to the number of channels for
    /// a depthwise convolution.
    #[doc(alias = "split")]
    pub groups: usize,
    /// The order of dims of the input and the output.
    pub layout: Layout,
}

impl Default for Conv2dOptions {
    fn default() -> Conv2dOptions {
        Conv2dOptions {
            stride: [1, 1],
            dilation: [1, 1],
            padding: Padding::Same,
            groups: 1,
            layout: Layout::Nhwc,
        }
    }
}

impl Conv2dOptions {
    pub(super) fn window(&self) -> Window {
        Window { stride: self.stride, dilation: self.dilation, padding: self.padding }
    }
}

impl Window {
    /// Checks image and filter, and returns the filter's sizes.
    pub(super) fn filter(x: &Spec, w: &Spec) -> Result<Vec<usize>> {
        super::float_input(x)?;
        if x.dtype != w.dtype {
            return Err(Error::dtype(format!(
                "element types of image and filter differ: {} and {}",
                x.dtype, w.dtype
            )));
        }
        if x.shape.rank() != 4 || w.shape.rank() != 4 {
            return Err(Error::shape(format!(
                "expected an image [batch, height, width, channels] and a filter [height, width, in, out], got {} and {}",
                x.shape, w.shape
            )));
        }
        w.shape.known().ok_or_else(|| Error::shape(format!("the filter's shape {} must be known", w.shape)))
    }

    /// Returns the output's shape for an image and a filter with `channels` outputs.
    pub(super) fn convolved(&self, x: &Spec, filter: &[usize], channels: usize) -> Result<Spec> {
        let size = [self.out(0, x.shape[1], filter[0])?, self.out(1, x.shape[2], filter[1])?];
        Ok(Spec { dtype: x.dtype, shape: vec![x.shape[0], size[0], size[1], Dim::Known(channels)].into() })
    }

    /// Returns the kernel for the concrete sizes of image, filter and output.
    pub(super) fn kernel(&self, x: &[usize], w: &[usize], y: &[usize]) -> Result<kir::Conv2d> {
        Ok(kir::Conv2d {
            batch: x[0],
            in_size: [x[1], x[2]],
            in_channels: x[3],
            out_channels: w[3],
            kernel: [w[0], w[1]],
            stride: self.stride,
            dilation: self.dilation,
            pad_low: self.pad_low([x[1], x[2]], [w[0], w[1]])?,
            out_size: [y[1], y[2]],
        })
    }
}

/// Emits a convolution or one of its gradients, as a matrix product where the filter is as large as
/// the image, which makes each image a row.
pub(super) fn contract(cx: &mut LowerCx<'_>, kind: ContractKind, lhs: &View, rhs: &View) -> View {
    let Some(product) = as_matmul(&kind) else { return cx.contract(kind, lhs, rhs) };
    let out = cx.output_sizes(0);
    let rows_alike = out.last() == Some(&product.n);
    let sizes = if rows_alike { out.clone() } else { vec![product.m, product.n] };
    let y = cx.contract_to(ContractKind::MatMul(product), lhs, rhs, &sizes);
    cx.reshape(&y, &out)
}

/// Returns the matrix product equivalent to a convolution with one window position per image and no
/// padding.
fn as_matmul(kind: &ContractKind) -> Option<kir::MatMul> {
    let (ContractKind::Conv2d(c) | ContractKind::Conv2dInputGrad(c) | ContractKind::Conv2dFilterGrad(c)) =
        kind
    else {
        return None;
    };
    let once = (c.out_size, c.kernel, c.pad_low, c.dilation) == ([1; 2], c.in_size, [0; 2], [1; 2]);
    let image = c.in_size[0].saturating_mul(c.in_size[1]).saturating_mul(c.in_channels);
    let [batch, out] = [c.batch, c.out_channels];
    let ([m, n, k], lhs_transposed, rhs_transposed) = match kind {
        ContractKind::Conv2d(_) => ([batch, out, image], false, false),
        ContractKind::Conv2dInputGrad(_) => ([batch, image, out], false, true),
        _ => ([image, out, batch], true, false),
    };
    let (lhs_shared, rhs_shared) = (false, false);
    once.then_some(kir::MatMul { batch: 1, m, n, k, lhs_transposed, rhs_transposed, lhs_shared, rhs_shared })
}

/// Computes the output from image and filter.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Conv2d(pub(super) Window);
crate::exported!(Conv2d, 2..=2);

impl OpDef for Conv2d {
    fn name(&self) -> &str {
        "Conv2d"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let (x, w) = (&inputs[0], &inputs[1]);
        let filter = Window::filter(x, w)?;
        if x.shape[3].known().is_some_and(|c| c != filter[2]) {
            return Err(Error::shape(format!(
                "the image {} has {} channels, but the filter {} expects {}",
                x.shape, x.shape[3], w.shape, filter[2]
            )));
        }
        Ok(vec![self.0.convolved(x, &filter, filter[3])?])
    }

    fn autocast(&self, _i: usize) -> Autocast {
        Autocast::Narrow
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let (x, w, dy) = (cx.input(0), cx.input(1), cx.dy());
        Ok(vec![
            cx.needs(0).then(|| Tensor::apply_one(Conv2dInputGrad(self.0), &[dy, w, x])),
            cx.needs(1).then(|| Tensor::apply_one(Conv2dFilterGrad(self.0), &[x, dy, w])),
        ])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (x, w) = (cx.input(0), cx.input(1));
        let kernel = self.0.kernel(&x.sizes, &w.sizes, &cx.output_sizes(0))?;
        Ok(vec![contract(cx, ContractKind::Conv2d(kernel), &x, &w)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let (x, w, mut y) =
            (cx.input(0), cx.input(1), cx.running_sums(cx.output_dtype(0), cx.output_sizes(0)));
        products(&self.0, x.sizes(), w.sizes(), cx.output_sizes(0), |i, k, o| {
            y.add(o, Scalar::Float(x.float(i) * w.float(k)));
        })?;
        Ok(vec![y.array()])
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        convolution(cx, &self.0, 1)
    }
}

/// Computes the image gradient from output gradient and filter; only the shape of the image is
/// used.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Conv2dInputGrad(Window);
crate::exported!(Conv2dInputGrad, 3..=3);

impl OpDef for Conv2dInputGrad {
    fn name(&self) -> &str {
        "Conv2dInputGrad"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let (dy, w, x) = (&inputs[0], &inputs[1], &inputs[2]);
        same_spec(dy, &Conv2d(self.0).infer(&[x.clone(), w.clone()])?[0])?;
        Ok(vec![x.clone()])
    }

    fn shape_only(&self, i: usize) -> bool {
        i == 2
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let (dy, w, g) = (cx.input(0), cx.input(1), cx.dy());
        Ok(vec![
            cx.needs(0).then(|| Tensor::apply_one(Conv2d(self.0), &[g, w])),
            cx.needs(1).then(|| Tensor::apply_one(Conv2dFilterGrad(self.0), &[g, dy, w])),
            None,
        ])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (dy, w) = (cx.input(0), cx.input(1));
        let kernel = self.0.kernel(&cx.output_sizes(0), &w.sizes, &dy.sizes)?;
        Ok(vec![contract(cx, ContractKind::Conv2dInputGrad(kernel), &dy, &w)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let (dy, w, mut dx) =
            (cx.input(0), cx.input(1), cx.running_sums(cx.output_dtype(0), cx.output_sizes(0)));
        products(&self.0, cx.output_sizes(0), w.sizes(), dy.sizes(), |i, k, o| {
            dx.add(i, Scalar::Float(dy.float(o) * w.float(k)));
        })?;
        Ok(vec![dx.array()])
    }
}

/// Computes the filter gradient from image and output gradient; only the shape of the filter is
/// used.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Conv2dFilterGrad(pub(super) Window);
crate::exported!(Conv2dFilterGrad, 3..=3);

impl OpDef for Conv2dFilterGrad {
    fn name(&self) -> &str {
        "Conv2dFilterGrad"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let (x, dy, w) = (&inputs[0], &inputs[1], &inputs[2]);
        same_spec(dy, &Conv2d(self.0).infer(&[x.clone(), w.clone()])?[0])?;
        Ok(vec![w.clone()])
    }

    fn shape_only(&self, i: usize) -> bool {
        i == 2
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let (x, dy, g) = (cx.input(0), cx.input(1), cx.dy());
        Ok(vec![
            cx.needs(0).then(|| Tensor::apply_one(Conv2dInputGrad(self.0), &[dy, g, x])),
            cx.needs(1).then(|| Tensor::apply_one(Conv2d(self.0), &[x, g])),
            None,
        ])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (x, dy) = (cx.input(0), cx.input(1));
        let kernel = self.0.kernel(&x.sizes, &cx.output_sizes(0), &dy.sizes)?;
        Ok(vec![contract(cx, ContractKind::Conv2dFilterGrad(kernel), &x, &dy)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let (x, dy, mut dw) =
            (cx.input(0), cx.input(1), cx.running_sums(cx.output_dtype(0), cx.output_sizes(0)));
        products(&self.0, x.sizes(), cx.output_sizes(0), dy.sizes(), |i, k, o| {
            dw.add(k, Scalar::Float(x.float(i) * dy.float(o)));
        })?;
        Ok(vec![dw.array()])
    }
}

/// Writes a convolution of `groups` groups as ONNX's `Conv`, whose images are NCHW.
pub(super) fn convolution(cx: &mut ExportCx<'_>, window: &Window, groups: usize) -> Result<Vec<Value>> {
    let x = cx.transpose(&cx.input(0), &NHWC_TO_NCHW);
    let w = cx.transpose(&cx.input(1), &HWIO_TO_OIHW);
    let dims = NHWC_TO_NCHW.map(|i| cx.output_shape(0)[i]);
    let kernel = [2, 3].map(|i| w.shape()[i].known().unwrap_or(1));
    let pads = window.onnx_pads([x.shape()[2], x.shape()[3]], kernel)?;
    let [strides, dilations] = [window.stride, window.dilation].map(|n| n.map(|n| n as i64));
    let padding = match &pads {
        Some(pads) => ("pads", Attr::Ints(pads)),
        None => ("auto_pad", Attr::Text("SAME_UPPER")),
    };
    let attributes = [
        ("strides", Attr::Ints(&strides)),
        ("dilations", Attr::Ints(&dilations)),
        ("group", Attr::Int(groups as i64)),
        padding,
    ];
    let y = cx.node("Conv", &[&x, &w], &attributes, x.dtype(), dims.to_vec())?;
    Ok(vec![cx.transpose(&y, &NCHW_TO_NHWC)])
}

/// Calls `product` for every multiplication of a convolution of the given sizes, with its index in
/// the image, the filter and the output.
pub(super) fn products(
    window: &Window,
    x: &[usize],
    w: &[usize],
    y: &[usize],
    mut product: impl FnMut(&[usize; 4], &[usize; 4], &[usize; 4]),
) -> Result<()> {
    window.taps(x, w, y, |at, tap, o| {
        for n in 0..x[0] {
            for c in 0..w[2] {
                for f in 0..w[3] {
                    product(&[n, at[0], at[1], c], &[tap[0], tap[1], c, f], &[n, o[0], o[1], f]);
                }
            }
        }
    })
}

impl Tensor {
    /// Convolves images `[batch, height, width, in]` with a filter
    /// `[height, width, in / groups, out]`.
    #[track_caller]
    pub fn conv2d(&self, filter: &Tensor, options: Conv2dOptions) -> Tensor {
        let x = options.layout.to_nhwc(self);
        let y = match options.groups {
            1 => Tensor::apply_one(Conv2d(options.window()), &[&x, filter]),
            groups => depthwise_conv2d::grouped(&x, filter, groups, options.window()),
        };
        options.layout.from_nhwc(&y)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;
    use crate::ops::window::tests::draw_padding;

    cases![
        case("Conv2d", Twice, |draw| {
            let mut two = |low, high| [draw.between(low, high), draw.between(low, high)];
            let (mut n, kernel, stride, dilation) = (two(1, 6), two(1, 3), two(1, 3), two(1, 2));
            let reach = [0, 1].map(|i| (kernel[i] - 1) * dilation[i] + 1);
            let padding = draw_padding(draw, &mut n, reach, [4, 4]);
            let (inner, outer) = (draw.pick(&[1, 2, 3, 0]), draw.pick(&[1, 2, 5, 17, 0]));
            let image = [draw.pick(&[1, 2, 0]), n[0], n[1], inner];
            let filter = [kernel[0], kernel[1], inner, outer];
            let inputs = vec![Input::floats(draw, image, Any), Input::floats(draw, filter, Any).closed()];
            let options = Conv2dOptions { stride, dilation, padding, ..Conv2dOptions::default() };
            Trial::new(inputs, move |x| vec![x[0].conv2d(&x[1], options)])
        })
        .empty("x.conv2d(y), SAME", "[0, 5, 5, 2], [3, 3, 2, 4]", "empty [0, 5, 5, 4]", |x| x[0]
            .conv2d(&x[1], Conv2dOptions::default()))
        .empty("x.conv2d(y), SAME", "[1, 5, 5, 0], [3, 3, 0, 4]", "zeros [1, 5, 5, 4]", |x| x[0]
            .conv2d(&x[1], Conv2dOptions::default()))
        .empty("x.conv2d(y), SAME", "[1, 5, 5, 2], [3, 3, 2, 0]", "empty [1, 5, 5, 0]", |x| x[0]
            .conv2d(&x[1], Conv2dOptions::default()))
        .empty("x.conv2d(y), SAME", "[1, 0, 5, 2], [3, 3, 2, 4]", "empty [1, 0, 5, 4]", |x| x[0]
            .conv2d(&x[1], Conv2dOptions::default()))
        .empty(
            "x.conv2d(y), SAME",
            "[1, 5, 5, 2], [0, 3, 2, 4]",
            "error: stride, dilation and window must be at least 1",
            |x| x[0].conv2d(&x[1], Conv2dOptions::default())
        )
        .empty("x.conv2d(y), VALID", "[1, 0, 5, 2], [3, 3, 2, 4]", "empty [1, 0, 3, 4]", |x| {
            x[0].conv2d(&x[1], Conv2dOptions { padding: Padding::Valid, ..Conv2dOptions::default() })
        }),
    ];
}
