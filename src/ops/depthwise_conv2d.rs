//! Grouped convolution. Depthwise convolution, with one group per channel, has its own kernels;
//! other groups are convolved one by one.

use super::conv2d::{Conv2d, convolution};
use super::{Window, composed, same_spec};
use crate::graph::{Autocast, GradCx, OpDef, Spec, Tensor};
use crate::kir::{ContractKind, LowerCx, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx, Scalar};
use serde::{Deserialize, Serialize};
use std::panic::Location;
use tensorpack_tensor::{DType, Error, ErrorKind, Result};

/// The three operations. Each is linear in both inputs, and the gradients of each are the other
/// two. The output takes (image, filter), the image gradient (output gradient, filter, image for
/// its shape), the filter gradient (image, output gradient, filter for its shape). Filters are
/// `[height, width, 1, channels]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Part {
    Output,
    InputGrad,
    FilterGrad,
}
use Part::{FilterGrad, InputGrad, Output};

#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Depthwise {
    part: Part,
    window: Window,
}
crate::exported!(Depthwise, 2..=3);

impl Depthwise {
    fn part(&self, part: Part, inputs: &[&Tensor]) -> Tensor {
        Tensor::apply_one(Depthwise { part, window: self.window }, inputs)
    }
}

impl OpDef for Depthwise {
    fn name(&self) -> &str {
        match self.part {
            Output => "DepthwiseConv2d",
            InputGrad => "DepthwiseConv2dInputGrad",
            FilterGrad => "DepthwiseConv2dFilterGrad",
        }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let output = |x: &Spec, w: &Spec| {
            let forward = Depthwise { part: Output, window: self.window };
            Ok::<Spec, Error>(forward.infer(&[x.clone(), w.clone()])?.swap_remove(0))
        };
        let (x, w) = match (self.part, inputs) {
            (Output, [x, w]) => (x, w),
            (InputGrad, [dy, w, x]) => {
                same_spec(dy, &output(x, w)?)?;
                return Ok(vec![x.clone()]);
            }
            (FilterGrad, [x, dy, w]) => {
                same_spec(dy, &output(x, w)?)?;
                return Ok(vec![w.clone()]);
            }
            _ => return Err(Error::argument(format!("{} inputs are not supported", inputs.len()))),
        };
        let filter = Window::filter(x, w)?;
        if filter[2] != 1 || x.shape[3].known().is_some_and(|c| c != filter[3]) {
            return Err(Error::shape(format!(
                "the image {} has {} channels, but the filter {} expects {}",
                x.shape, x.shape[3], w.shape, filter[3]
            )));
        }
        Ok(vec![self.window.convolved(x, &filter, filter[3])?])
    }

    fn autocast(&self, _i: usize) -> Autocast {
        Autocast::Narrow
    }

    fn shape_only(&self, i: usize) -> bool {
        i == 2
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let (a, b, g) = (cx.input(0), cx.input(1), cx.dy());
        let by = |i: usize, part: Part, inputs: &[&Tensor]| cx.needs(i).then(|| self.part(part, inputs));
        Ok(match self.part {
            Output => vec![by(0, InputGrad, &[g, b, a]), by(1, FilterGrad, &[a, g, b])],
            InputGrad => vec![by(0, Output, &[g, b]), by(1, FilterGrad, &[g, a, b]), None],
            FilterGrad => vec![by(0, InputGrad, &[b, g, a]), by(1, Output, &[a, g]), None],
        })
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (a, b, out) = (cx.input(0), cx.input(1), cx.output_sizes(0));
        let kernel = |x: &[usize], w: &[usize], y: &[usize]| self.window.kernel(x, w, y);
        let kind = match self.part {
            Output => ContractKind::Depthwise(kernel(&a.sizes, &b.sizes, &out)?),
            InputGrad => ContractKind::DepthwiseInputGrad(kernel(&out, &b.sizes, &a.sizes)?),
            FilterGrad => ContractKind::DepthwiseFilterGrad(kernel(&a.sizes, &out, &b.sizes)?),
        };
        Ok(vec![cx.contract(kind, &a, &b)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let (a, b, out) = (cx.input(0), cx.input(1), cx.output_sizes(0));
        let mut sums = cx.running_sums(cx.output_dtype(0), out);
        let (x, w, y) = match self.part {
            Output => (a.sizes(), b.sizes(), out),
            InputGrad => (out, b.sizes(), a.sizes()),
            FilterGrad => (a.sizes(), out, b.sizes()),
        };
        self.window.taps(x, w, y, |at, tap, o| {
            for n in 0..x[0] {
                for c in 0..x[3] {
                    let (i, k, o) = ([n, at[0], at[1], c], [tap[0], tap[1], 0, c], [n, o[0], o[1], c]);
                    match self.part {
                        Output => sums.add(&o, Scalar::Float(a.float(&i) * b.float(&k))),
                        InputGrad => sums.add(&i, Scalar::Float(a.float(&o) * b.float(&k))),
                        FilterGrad => sums.add(&k, Scalar::Float(a.float(&i) * b.float(&o))),
                    }
                }
            }
        })?;
        Ok(vec![sums.array()])
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        match self.part {
            Output => {
                let channels = cx.input(1).shape()[3].known().unwrap_or(1);
                convolution(cx, &self.window, channels)
            }
            InputGrad | FilterGrad => {
                Err(Error::new(ErrorKind::Unsupported, format!("{} has no ONNX form", self.name())))
            }
        }
    }
}

/// Convolves channels-last images in groups: filters are `[height, width, in / groups, out]`, and
/// group `i` of the outputs depends on group `i` of the channels.
#[track_caller]
pub(super) fn grouped(x: &Tensor, filter: &Tensor, groups: usize, window: Window) -> Tensor {
    if x.is_poison() || filter.is_poison() {
        return Tensor::poison(x.graph());
    }
    let channels = match Window::filter(x.spec(), filter.spec()).map(|f| (f, x.shape()[3].known())) {
        Ok((f, Some(c)))
            if groups > 0 && f[2].checked_mul(groups) == Some(c) && f[3].is_multiple_of(groups) =>
        {
            (c, f[3])
        }
        Ok((f, _)) => {
            let why = format!(
                "with {groups} groups the image {} must have {} channels, and the outputs of the filter {} must be a multiple of {groups}",
                x.shape(),
                f[2].saturating_mul(groups),
                filter.shape()
            );
            return x.fail("Conv2d", Error::shape(why));
        }
        Err(e) => return x.fail("Conv2d", e),
    };
    let depthwise = |x: &Tensor| Tensor::apply_one(Depthwise { part: Output, window }, &[x, filter]);
    match channels {
        (inputs, outputs) if inputs == groups && outputs == groups => {
            x.graph().called_from(Location::caller(), || depthwise(x))
        }
        (inputs, outputs) if inputs == groups => {
            composed(x, "DepthwiseConv2d", Location::caller(), || {
                let graph = x.graph();
                let dtype = graph.contractions().filter(|_| x.dtype() != DType::F64).unwrap_or(x.dtype());
                let repeated = |x: &Tensor| x.repeat(outputs / inputs, 3);
                if !dtype.is_narrow_float() || (graph.contractions().is_none() && filter.dtype() != dtype) {
                    return depthwise(&repeated(x));
                }
                // The gradient adds up those of the copies of a channel, and rounds once only if they
                // are f32.
                let wide = |x: &Tensor| x.cast(dtype).cast(DType::F32);
                graph.without_autocast(|| {
                    let inputs = [&repeated(&wide(x)), &wide(filter)];
                    Tensor::apply_one(Depthwise { part: Output, window }, &inputs).cast(dtype)
                })
            })
        }
        _ => composed(x, "GroupedConv2d", Location::caller(), || {
            let convolved = |(x, w): (Tensor, Tensor)| Tensor::apply_one(Conv2d(window), &[&x, &w]);
            let parts = x.cut(groups, 3).into_iter().zip(filter.cut(groups, 3)).map(convolved);
            x.graph().concat(&parts.collect::<Vec<Tensor>>(), 3)
        }),
    }
}

#[cfg(test)]
mod tests {
    use crate::op_cases::*;
    use crate::ops::window::tests::draw_padding;
    use crate::ops::{Conv2dOptions, Layout};

    cases![
        case("DepthwiseConv2d", Twice, |draw| {
            let multiple = draw.pick(&[1, 1, 2, 3]);
            let channels = draw.pick(&[2, 3, 5, 18]);
            grouped_case(draw, channels, [1, multiple])
        })
        .empty("x.conv2d(y), in 2 groups", "[0, 5, 5, 2], [3, 3, 1, 2]", "empty [0, 5, 5, 2]", |x| x[0]
            .conv2d(&x[1], Conv2dOptions { groups: 2, ..Conv2dOptions::default() }))
        .empty(
            "x.conv2d(y), in 2 groups",
            "[1, 0, 5, 2], [3, 3, 1, 2]",
            "empty [1, 0, 5, 2]",
            |x| x[0].conv2d(&x[1], Conv2dOptions { groups: 2, ..Conv2dOptions::default() })
        ),
        case("Conv2d in groups", Twice, |draw| {
            let (groups, inner, outer) = (draw.pick(&[2, 3]), draw.pick(&[2, 3]), draw.pick(&[1, 2, 5]));
            grouped_case(draw, groups, [inner, outer])
        }),
    ];

    /// A convolution with `groups` groups, each with these input and output channels.
    fn grouped_case(draw: &mut Draw<'_>, groups: usize, [inner, outer]: [usize; 2]) -> Trial {
        let mut two = |low, high| [draw.between(low, high), draw.between(low, high)];
        let (mut n, kernel, stride, dilation) = (two(1, 6), two(1, 3), two(1, 3), two(1, 2));
        let reach = [0, 1].map(|i| (kernel[i] - 1) * dilation[i] + 1);
        let padding = draw_padding(draw, &mut n, reach, [4, 4]);
        let layout = draw.pick(&[Layout::Nhwc, Layout::Nchw]);
        let (batch, channels) = (draw.pick(&[1, 2]), groups * inner);
        let image = match layout {
            Layout::Nhwc => [batch, n[0], n[1], channels],
            Layout::Nchw => [batch, channels, n[0], n[1]],
        };
        let filter = [kernel[0], kernel[1], inner, groups * outer];
        let inputs = vec![Input::floats(draw, image, Any), Input::floats(draw, filter, Any).closed()];
        let options = Conv2dOptions { stride, dilation, padding, groups, layout };
        Trial::new(inputs, move |x| vec![x[0].conv2d(&x[1], options)])
    }
}
