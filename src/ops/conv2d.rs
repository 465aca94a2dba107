//! Convolution over images `[batch, height, width, channels]` with filters `[height, width, in, out]`, and its two
//! gradients. Each of the three is linear in both inputs, and the gradients of each are the other two.

use crate::graph::{GradCx, OpDef, Spec, Tensor};
use crate::kir::{ContractKind, LowerCx, View};
use tensorpack_kernels as kernels;
use tensorpack_tensor::{Dim, Error, Result};

/// How many zeros are put around an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Padding {
    /// As many as make the output as large as the input divided by the stride, rounded up; an odd one goes after.
    #[default]
    Same,
    /// None.
    Valid,
    /// Before and after, for height and width.
    Explicit([[usize; 2]; 2]),
}

/// What a window slides over, for convolution and pooling alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Window {
    pub(super) stride: [usize; 2],
    pub(super) dilation: [usize; 2],
    pub(super) padding: Padding,
}

impl Window {
    /// Zeros before and after axis `i`, whose size is `n`, for a window of `k`.
    fn around(&self, i: usize, n: usize, k: usize) -> Result<[usize; 2]> {
        let reach = self.reach(i, k)?;
        Ok(match self.padding {
            Padding::Valid => [0, 0],
            Padding::Explicit(p) => p[i],
            Padding::Same => {
                let out = n.div_ceil(self.stride[i]);
                let total = (out.saturating_sub(1) * self.stride[i] + reach).saturating_sub(n);
                [total / 2, total - total / 2]
            }
        })
    }

    /// How far a window of `k` taps reaches.
    fn reach(&self, i: usize, k: usize) -> Result<usize> {
        if self.stride[i] == 0 || self.dilation[i] == 0 || k == 0 {
            return Err(Error::argument("stride, dilation and window must be at least 1"));
        }
        (k - 1)
            .checked_mul(self.dilation[i])
            .and_then(|r| r.checked_add(1))
            .ok_or_else(|| Error::argument("the window is too large"))
    }

    /// The output's size along axis `i`.
    pub(super) fn out(&self, i: usize, n: Dim, k: usize) -> Result<Dim> {
        let reach = self.reach(i, k)?;
        let Dim::Known(n) = n else {
            if let Padding::Same = self.padding
                && self.stride[i] == 1
            {
                return Ok(n);
            }
            let p = match self.padding {
                Padding::Same => [usize::MAX; 2],
                Padding::Valid => [0, 0],
                Padding::Explicit(p) => p[i],
            };
            return Ok(Dim::derived("window", &[n], &[self.stride[i], reach, p[0], p[1]]));
        };
        let [low, high] = self.around(i, n, k)?;
        let padded = n.checked_add(low).and_then(|x| x.checked_add(high));
        match padded {
            _ if n == 0 => Ok(Dim::Known(0)),
            Some(padded) if padded >= reach => Ok(Dim::Known((padded - reach) / self.stride[i] + 1)),
            Some(padded) => Err(Error::shape(format!(
                "a window reaching over {reach} does not fit a size of {n} padded to {padded}"
            ))),
            None => Err(Error::argument(format!("padding by {low} and {high} is too large"))),
        }
    }

    /// Zeros before both axes, all sizes known.
    pub(super) fn pad_low(&self, size: [usize; 2], k: [usize; 2]) -> Result<[usize; 2]> {
        Ok([self.around(0, size[0], k[0])?[0], self.around(1, size[1], k[1])?[0]])
    }
}

/// Stride, dilation and padding of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conv2dOptions {
    /// How far the window moves.
    pub stride: [usize; 2],
    /// How far apart its taps are.
    pub dilation: [usize; 2],
    /// Zeros around the image.
    pub padding: Padding,
}

impl Default for Conv2dOptions {
    fn default() -> Conv2dOptions {
        Conv2dOptions { stride: [1, 1], dilation: [1, 1], padding: Padding::Same }
    }
}

impl Conv2dOptions {
    fn window(&self) -> Window {
        Window { stride: self.stride, dilation: self.dilation, padding: self.padding }
    }

    /// The output's shape for an image and a filter.
    fn infer(&self, x: &Spec, w: &Spec) -> Result<Spec> {
        super::float_input(x)?;
        if x.dtype != w.dtype {
            return Err(Error::dtype(format!("image and filter are {} and {}", x.dtype, w.dtype)));
        }
        if x.shape.rank() != 4 || w.shape.rank() != 4 {
            return Err(Error::shape(format!(
                "takes an image [batch, height, width, channels] and a filter [height, width, in, out], not {} and {}",
                x.shape, w.shape
            )));
        }
        let Some(filter) = w.shape.known() else {
            return Err(Error::shape(format!("the filter's shape {} must be known", w.shape)));
        };
        if x.shape[3].known().is_some_and(|c| c != filter[2]) {
            return Err(Error::shape(format!(
                "the image {} has {} channels, the filter {} takes {}",
                x.shape, x.shape[3], w.shape, filter[2]
            )));
        }
        let window = self.window();
        let size = [window.out(0, x.shape[1], filter[0])?, window.out(1, x.shape[2], filter[1])?];
        Ok(Spec { dtype: x.dtype, shape: vec![x.shape[0], size[0], size[1], Dim::Known(filter[3])].into() })
    }

    /// The kernel's sizes, from the concrete sizes of image, filter and output.
    fn kernel(&self, x: &[usize], w: &[usize], y: &[usize]) -> Result<kernels::Conv2d> {
        Ok(kernels::Conv2d {
            batch: x[0],
            in_size: [x[1], x[2]],
            in_channels: w[2],
            out_channels: w[3],
            kernel: [w[0], w[1]],
            stride: self.stride,
            dilation: self.dilation,
            pad_low: self.window().pad_low([x[1], x[2]], [w[0], w[1]])?,
            out_size: [y[1], y[2]],
        })
    }
}

/// Image and filter to output.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Conv2d(Conv2dOptions);

impl OpDef for Conv2d {
    fn name(&self) -> &str {
        "Conv2d"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![self.0.infer(&inputs[0], &inputs[1])?])
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
        Ok(vec![cx.contract(ContractKind::Conv2d(kernel), &x, &w)])
    }
}

/// Output gradient and filter to image gradient; the image is there for its shape.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Conv2dInputGrad(Conv2dOptions);

impl OpDef for Conv2dInputGrad {
    fn name(&self) -> &str {
        "Conv2dInputGrad"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[2].clone()])
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
        Ok(vec![cx.contract(ContractKind::Conv2dInputGrad(kernel), &dy, &w)])
    }
}

/// Image and output gradient to filter gradient; the filter is there for its shape.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Conv2dFilterGrad(Conv2dOptions);

impl OpDef for Conv2dFilterGrad {
    fn name(&self) -> &str {
        "Conv2dFilterGrad"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[2].clone()])
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
        Ok(vec![cx.contract(ContractKind::Conv2dFilterGrad(kernel), &x, &dy)])
    }
}

impl Tensor {
    /// The convolution of images `[batch, height, width, in]` with a filter `[height, width, in, out]`.
    #[track_caller]
    pub fn conv2d(&self, filter: &Tensor, options: Conv2dOptions) -> Tensor {
        Tensor::apply_one(Conv2d(options), &[self, filter])
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::trial::*;

    /// A padding under which a window of `reach` fits an image of `n`; the image grows if it must.
    pub(in crate::ops) fn draw_padding(
        draw: &mut Draw<'_>,
        n: &mut [usize; 2],
        reach: [usize; 2],
        at_most: [usize; 2],
    ) -> Padding {
        let padding = match draw.below(3) {
            0 => Padding::Valid,
            1 => Padding::Same,
            _ => Padding::Explicit([0, 1].map(|i| [0, 1].map(|_| draw.below(at_most[i].min(4))))),
        };
        for i in 0..2 {
            let around = match padding {
                Padding::Same => continue,
                Padding::Valid => 0,
                Padding::Explicit(p) => p[i][0] + p[i][1],
            };
            n[i] = n[i].max(reach[i].saturating_sub(around)).max(1);
        }
        padding
    }

    cases![
        case("Conv2d", Twice, |draw| {
            let mut two = |low, high| [draw.between(low, high), draw.between(low, high)];
            let (mut n, kernel, stride, dilation) = (two(1, 6), two(1, 3), two(1, 3), two(1, 2));
            let reach = [0, 1].map(|i| (kernel[i] - 1) * dilation[i] + 1);
            let padding = draw_padding(draw, &mut n, reach, [4, 4]);
            let (inner, outer) = (draw.of(&[1, 2, 3, 0]), draw.of(&[1, 2, 5, 17, 0]));
            let image = [draw.of(&[1, 2, 0]), n[0], n[1], inner];
            let filter = [kernel[0], kernel[1], inner, outer];
            let inputs = vec![Input::floats(draw, image, Any), Input::floats(draw, filter, Any).closed()];
            let options = Conv2dOptions { stride, dilation, padding };
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
