//! Transposed convolution: the gradient of a convolution with respect to its image, as an operation
//! with an output size derived from the input's.

use super::conv2d::{Conv2d, Conv2dFilterGrad, contract, products};
use super::layout::{HWIO_TO_OIHW, NCHW_TO_NHWC, NHWC_TO_NCHW};
use super::{Conv2dOptions, Padding, Window};
use crate::graph::{Autocast, GradCx, OpDef, Spec, Tensor};
use crate::kir::{ContractKind, LowerCx, View};
use crate::onnx::{Attr, ExportCx, Value};
use crate::reference::{Array, EvaluateCx, Scalar};
use serde::{Deserialize, Serialize};
use tensorpack_tensor::{Dim, Error, Result};

impl Window {
    /// Returns the output size along axis `i` of a transposed convolution of an input of size `n`.
    fn transposed(&self, i: usize, n: Dim, k: usize) -> Result<Dim> {
        let (stride, reach) = (self.stride[i] as i128, self.reach(i, k)? as i128);
        let beyond = match self.padding {
            Padding::Same => 0,
            Padding::Valid => (reach - stride).max(0),
            Padding::Explicit(p) => reach - stride - p[i][0] as i128 - p[i][1] as i128,
        };
        match n {
            Dim::Known(0) => Ok(n),
            Dim::Known(n) => {
                let size = isize::try_from(n as i128 * stride + beyond).ok().filter(|&n| n > 0);
                let why = || {
                    format!(
                        "a transposed convolution of an input of size {n} with a window of {k}, stride {stride} \
                         and padding {:?} has no output",
                        self.padding
                    )
                };
                size.map(|n| Dim::Known(n as usize)).ok_or_else(|| Error::shape(why()))
            }
            Dim::Unknown(_) if (stride, beyond) == (1, 0) => Ok(n),
            Dim::Unknown(_) => {
                Ok(Dim::derived("transposed window", &[n], &[self.stride[i], beyond as usize]))
            }
        }
    }
}

/// Computes the output from image `[batch, height, width, in]` and filter
/// `[height, width, out, in]`.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Conv2dTranspose(Window);
crate::exported!(Conv2dTranspose, 2..=2);

impl OpDef for Conv2dTranspose {
    fn name(&self) -> &str {
        "Conv2dTranspose"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let (x, w) = (&inputs[0], &inputs[1]);
        let filter = Window::filter(x, w)?;
        if x.shape[3].known().is_some_and(|c| c != filter[3]) {
            return Err(Error::shape(format!(
                "the image {} has {} channels, but the filter {} ([height, width, out, in]) expects {}",
                x.shape, x.shape[3], w.shape, filter[3]
            )));
        }
        let size = |i: usize| self.0.transposed(i, x.shape[i + 1], filter[i]);
        let shape = vec![x.shape[0], size(0)?, size(1)?, Dim::Known(filter[2])];
        Ok(vec![Spec { dtype: x.dtype, shape: shape.into() }])
    }

    fn autocast(&self, _i: usize) -> Autocast {
        Autocast::Narrow
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let (x, w, dy) = (cx.input(0), cx.input(1), cx.dy());
        Ok(vec![
            cx.needs(0).then(|| Tensor::apply_one(Conv2d(self.0), &[dy, w])),
            cx.needs(1).then(|| Tensor::apply_one(Conv2dFilterGrad(self.0), &[dy, x, w])),
        ])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (x, w) = (cx.input(0), cx.input(1));
        let kernel = self.0.kernel(&cx.output_sizes(0), &w.sizes, &x.sizes)?;
        Ok(vec![contract(cx, ContractKind::Conv2dInputGrad(kernel), &x, &w)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let (x, w, mut y) =
            (cx.input(0), cx.input(1), cx.running_sums(cx.output_dtype(0), cx.output_sizes(0)));
        // The output has the role of a convolution's image.
        products(&self.0, cx.output_sizes(0), w.sizes(), x.sizes(), |i, k, o| {
            y.add(i, Scalar::Float(x.float(o) * w.float(k)));
        })?;
        Ok(vec![y.array()])
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let x = cx.transpose(&cx.input(0), &NHWC_TO_NCHW);
        let w = cx.transpose(&cx.input(1), &HWIO_TO_OIHW);
        let dims = NHWC_TO_NCHW.map(|i| cx.output_shape(0)[i]);
        let window = &self.0;
        // Zeros that are cut off the full result before and after each axis; fewer than none are added.
        let mut pads = [0; 4];
        let mut output_padding = [0; 2];
        for i in 0..2 {
            let reach = window.reach(i, w.shape()[i + 2].known().unwrap_or(1))? as i64;
            let stride = window.stride[i] as i64;
            let [low, high] = match window.padding {
                Padding::Explicit(p) => p[i].map(|n| n as i64),
                Padding::Valid => [0, (reach - stride).min(0)],
                Padding::Same => {
                    let total = (reach - stride).max(0);
                    [total / 2, (reach - stride) - total / 2]
                }
            };
            (pads[i], pads[i + 2], output_padding[i]) = (low, high.max(0), (-high).max(0));
        }
        let [strides, dilations] = [window.stride, window.dilation].map(|n| n.map(|n| n as i64));
        let attributes = [
            ("strides", Attr::Ints(&strides)),
            ("dilations", Attr::Ints(&dilations)),
            ("pads", Attr::Ints(&pads)),
            ("output_padding", Attr::Ints(&output_padding)),
        ];
        let y = cx.node("ConvTranspose", &[&x, &w], &attributes, x.dtype(), dims.to_vec())?;
        Ok(vec![cx.transpose(&y, &NCHW_TO_NHWC)])
    }
}

impl Tensor {
    /// Transposed convolution of images `[batch, height, width, in]` with a filter
    /// `[height, width, out, in]`. With [`Padding::Same`] each size is multiplied by the stride;
    /// with [`Padding::Valid`] the window's overhang is added. Groups are not supported.
    #[track_caller]
    #[doc(alias = "Deconv2D")]
    pub fn conv2d_transpose(&self, filter: &Tensor, options: Conv2dOptions) -> Tensor {
        if options.groups != 1 {
            let e = Error::argument("a transposed convolution does not support groups; set groups to 1");
            return self.fail("Conv2dTranspose", e);
        }
        let x = options.layout.to_nhwc(self);
        let y = Tensor::apply_one(Conv2dTranspose(options.window()), &[&x, filter]);
        options.layout.from_nhwc(&y)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;
    use crate::ops::Layout;

    cases![
        case("Conv2dTranspose", Twice, |draw| {
            let mut two = |low, high| [draw.between(low, high), draw.between(low, high)];
            let (n, kernel, stride, dilation) = (two(1, 4), two(1, 3), two(1, 3), two(1, 2));
            let reach = [0, 1].map(|i| (kernel[i] - 1) * dilation[i] + 1);
            let around = |draw: &mut Draw<'_>, i: usize| {
                let low = draw.below(reach[i]);
                [low, draw.below(reach[i] - low)]
            };
            let padding = match draw.below(3) {
                0 => Padding::Same,
                1 => Padding::Valid,
                _ => Padding::Explicit([around(draw, 0), around(draw, 1)]),
            };
            let (inner, outer) = (draw.pick(&[1, 2, 3, 0]), draw.pick(&[1, 2, 5, 17, 0]));
            let layout = draw.pick(&[Layout::Nhwc, Layout::Nchw]);
            let batch = draw.pick(&[1, 2, 0]);
            let image = match layout {
                Layout::Nhwc => [batch, n[0], n[1], inner],
                Layout::Nchw => [batch, inner, n[0], n[1]],
            };
            let filter = [kernel[0], kernel[1], outer, inner];
            let inputs = vec![Input::floats(draw, image, Any), Input::floats(draw, filter, Any).closed()];
            let options = Conv2dOptions { stride, dilation, padding, groups: 1, layout };
            Trial::new(inputs, move |x| vec![x[0].conv2d_transpose(&x[1], options)])
        })
        .empty("x.conv2d_transpose(y)", "[0, 5, 5, 2], [3, 3, 4, 2]", "empty [0, 5, 5, 4]", |x| x[0]
            .conv2d_transpose(&x[1], Conv2dOptions::default()))
        .empty("x.conv2d_transpose(y)", "[1, 0, 5, 2], [3, 3, 4, 2]", "empty [1, 0, 5, 4]", |x| x[0]
            .conv2d_transpose(&x[1], Conv2dOptions::default()))
        .empty("x.conv2d_transpose(y)", "[1, 5, 5, 0], [3, 3, 4, 0]", "zeros [1, 5, 5, 4]", |x| x[0]
            .conv2d_transpose(&x[1], Conv2dOptions::default())),
    ];
}
