//! Max and average pooling of images `[batch, height, width, channels]`.

use super::layout::{NCHW_TO_NHWC, NHWC_TO_NCHW};
use super::{Layout, Padding, Window, composed, same_spec};
use crate::graph::{GradCx, OpDef, Spec, Tensor};
use crate::kir::{self, LowerCx, PoolKind, View};
use crate::onnx::{Attr, ExportCx, Value};
use crate::reference::{Array, EvaluateCx, Indices, Scalar};
use serde::{Deserialize, Serialize};
use std::panic::Location;
use tensorpack_tensor::{DType, Error, ErrorKind, Result};

/// Window, stride, padding and layout of pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PoolOptions {
    /// The window's height and width.
    pub window: [usize; 2],
    /// The stride of the window.
    pub stride: [usize; 2],
    /// Padding around the image; it never contributes to a maximum or an average.
    pub padding: Padding,
    /// The order of dims of the input and the output.
    pub layout: Layout,
}

impl PoolOptions {
    /// Creates a square window with a stride of its own size.
    pub fn square(size: usize) -> PoolOptions {
        PoolOptions { window: [size; 2], stride: [size; 2], padding: Padding::Valid, layout: Layout::Nhwc }
    }

    fn slide(&self) -> Window {
        Window { stride: self.stride, dilation: [1, 1], padding: self.padding }
    }

    fn infer(&self, x: &Spec) -> Result<Spec> {
        super::float_input(x)?;
        if x.shape.rank() != 4 {
            return Err(Error::shape(format!(
                "expected images [batch, height, width, channels], got {}",
                x.shape
            )));
        }
        if self.window[0].saturating_mul(self.window[1]) > 256 {
            return Err(Error::argument(format!("a window of {:?} has more than 256 elements", self.window)));
        }
        if let Padding::Explicit(around) = self.padding
            && (0..2).any(|i| around[i].iter().any(|&p| p >= self.window[i]))
        {
            return Err(Error::argument(format!(
                "padding {around:?} must be less than the window {:?}, or some windows would contain only padding",
                self.window
            )));
        }
        let slide = self.slide();
        let size = [slide.out(0, x.shape[1], self.window[0])?, slide.out(1, x.shape[2], self.window[1])?];
        Ok(Spec { dtype: x.dtype, shape: vec![x.shape[0], size[0], size[1], x.shape[3]].into() })
    }

    fn kernel(&self, x: &[usize], y: &[usize]) -> Result<kir::Pool> {
        Ok(kir::Pool {
            batch: x[0],
            in_size: [x[1], x[2]],
            channels: x[3],
            window: self.window,
            stride: self.stride,
            pad_low: self.slide().pad_low([x[1], x[2]], self.window)?,
            out_size: [y[1], y[2]],
        })
    }
}

/// Pooling and its gradients. `MaxGrad` takes (dy, indices, x for its shape), `MaxPick` (x,
/// indices), `AverageGrad` (dy, x for its shape).
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Pool {
    kind: PoolKind,
    options: PoolOptions,
}
crate::exported!(Pool, 1..=3);

impl Pool {
    fn with(&self, kind: PoolKind) -> Pool {
        Pool { kind, options: self.options }
    }
}

impl OpDef for Pool {
    fn name(&self) -> &str {
        match self.kind {
            PoolKind::Max => "MaxPool",
            PoolKind::MaxGrad => "MaxPoolGrad",
            PoolKind::MaxPick => "MaxPoolPick",
            PoolKind::Average => "AveragePool",
            PoolKind::AverageGrad => "AveragePoolGrad",
        }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let with_indices = |x: &Spec| {
            let y = self.options.infer(x)?;
            let indices = Spec { dtype: DType::U8, shape: y.shape.clone() };
            Ok::<[Spec; 2], Error>([y, indices])
        };
        match (self.kind, inputs) {
            (PoolKind::Max, [x]) => Ok(with_indices(x)?.into()),
            (PoolKind::Average, [x]) => Ok(vec![self.options.infer(x)?]),
            (PoolKind::MaxPick, [x, at]) => {
                let [y, indices] = with_indices(x)?;
                same_spec(at, &indices)?;
                Ok(vec![y])
            }
            (PoolKind::MaxGrad, [dy, at, x]) => {
                let [y, indices] = with_indices(x)?;
                same_spec(dy, &y)?;
                same_spec(at, &indices)?;
                Ok(vec![x.clone()])
            }
            (PoolKind::AverageGrad, [dy, x]) => {
                same_spec(dy, &self.options.infer(x)?)?;
                Ok(vec![x.clone()])
            }
            _ => Err(Error::argument(format!("{} inputs are not supported", inputs.len()))),
        }
    }

    fn output_count(&self) -> usize {
        if self.kind == PoolKind::Max { 2 } else { 1 }
    }

    fn shape_only(&self, i: usize) -> bool {
        matches!((self.kind, i), (PoolKind::MaxGrad, 2) | (PoolKind::AverageGrad, 1))
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let Some(dy) = cx.output_grad(0) else { return Ok(vec![None; cx.input_count()]) };
        let x = cx.input(0);
        let dx = match self.kind {
            PoolKind::Max => Tensor::apply_one(self.with(PoolKind::MaxGrad), &[dy, cx.output(1), x]),
            PoolKind::MaxPick => Tensor::apply_one(self.with(PoolKind::MaxGrad), &[dy, cx.input(1), x]),
            PoolKind::MaxGrad => Tensor::apply_one(self.with(PoolKind::MaxPick), &[dy, cx.input(1)]),
            PoolKind::Average => Tensor::apply_one(self.with(PoolKind::AverageGrad), &[dy, x]),
            PoolKind::AverageGrad => Tensor::apply_one(self.with(PoolKind::Average), &[dy]),
        };
        Ok([Some(dx)].into_iter().chain(std::iter::repeat_n(None, cx.input_count() - 1)).collect())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (first, out) = (cx.input(0), cx.output_sizes(0));
        let (x, y) = match self.kind {
            PoolKind::Max | PoolKind::MaxPick | PoolKind::Average => (first.sizes.clone(), out),
            PoolKind::MaxGrad | PoolKind::AverageGrad => (out, first.sizes.clone()),
        };
        let kernel = self.options.kernel(&x, &y)?;
        let inputs = match self.kind {
            PoolKind::MaxGrad | PoolKind::MaxPick => vec![first, cx.input(1)],
            _ => vec![first],
        };
        Ok(cx.pool(self.kind, kernel, &inputs))
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let (first, out) = (cx.input(0), cx.output_sizes(0));
        let (x, y) = match self.kind {
            PoolKind::Max | PoolKind::MaxPick | PoolKind::Average => (first.sizes(), out),
            PoolKind::MaxGrad | PoolKind::AverageGrad => (out, first.sizes()),
        };
        let ([height, width], slide) = (self.options.window, self.options.slide());
        let pad = slide.pad_low([x[1], x[2]], self.options.window)?;
        // Maps an element of an output's window to its position in the image; `None` in the
        // padding.
        let at = |o: &[usize], tap: usize| {
            let row = slide.position(0, o[1], tap / width, pad[0], x[1])?;
            Some([o[0], row, slide.position(1, o[2], tap % width, pad[1], x[2])?, o[3]])
        };
        let mut largest = Array::zeros(first.dtype(), y);
        let mut indices = Array::zeros(DType::U8, y);
        let mut sums = cx.running_sums(first.dtype(), out);
        for o in Indices::new(y) {
            let inside: Vec<usize> = (0..height * width).filter(|&tap| at(&o, tap).is_some()).collect();
            let max_position = |i: usize| at(&o, cx.input(i).int(&o) as usize);
            let value = |tap: usize| at(&o, tap).map_or(0.0, |i| first.float(&i));
            match self.kind {
                PoolKind::Max => {
                    let (mut best, mut tap) = (f64::NEG_INFINITY, 0);
                    for (k, &p) in inside.iter().enumerate() {
                        let v = value(p);
                        if k == 0 || v > best || (v.is_nan() && !best.is_nan()) {
                            (best, tap) = (v, p);
                        }
                    }
                    largest.set(&o, Scalar::Float(best));
                    indices.set(&o, Scalar::Int(tap as i64));
                }
                PoolKind::MaxPick => {
                    sums.add(&o, Scalar::Float(max_position(1).map_or(0.0, |i| first.float(&i))))
                }
                PoolKind::MaxGrad => {
                    if let Some(i) = max_position(1) {
                        sums.add(&i, first.at(&o));
                    }
                }
                PoolKind::Average => {
                    let n = inside.len().max(1) as f64;
                    inside.iter().for_each(|&tap| sums.add(&o, Scalar::Float(value(tap) / n)));
                }
                PoolKind::AverageGrad => {
                    let share = first.float(&o) / inside.len().max(1) as f64;
                    inside.iter().filter_map(|&p| at(&o, p)).for_each(|i| sums.add(&i, Scalar::Float(share)));
                }
            }
        }
        Ok(match self.kind {
            PoolKind::Max => vec![largest, indices],
            _ => vec![sums.array()],
        })
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let op_type = match self.kind {
            PoolKind::Max if !cx.is_used(1) => "MaxPool",
            PoolKind::Average => "AveragePool",
            _ => {
                let why = format!("the gradient of {} has no ONNX form", self.name());
                return Err(Error::new(ErrorKind::Unsupported, why));
            }
        };
        let x = cx.transpose(&cx.input(0), &NHWC_TO_NCHW);
        let dims = NHWC_TO_NCHW.map(|i| cx.output_shape(0)[i]);
        let PoolOptions { window, .. } = self.options;
        let pads = self.options.slide().onnx_pads([x.shape()[2], x.shape()[3]], window)?;
        let [window, strides] = [window, self.options.stride].map(|n| n.map(|n| n as i64));
        let padding = match &pads {
            Some(pads) => ("pads", Attr::Ints(pads)),
            None => ("auto_pad", Attr::Text("SAME_UPPER")),
        };
        let attributes = [("kernel_shape", Attr::Ints(&window)), ("strides", Attr::Ints(&strides)), padding];
        let y = cx.node(op_type, &[&x], &attributes, x.dtype(), dims.to_vec())?;
        let y = cx.transpose(&y, &NCHW_TO_NHWC);
        Ok(vec![y; self.output_count()])
    }
}

impl Tensor {
    /// Max pooling over non-overlapping windows of `size` by `size`.
    #[track_caller]
    pub fn max_pool(&self, size: usize) -> Tensor {
        self.max_pool_with(PoolOptions::square(size))
    }

    /// Max pooling.
    #[track_caller]
    pub fn max_pool_with(&self, options: PoolOptions) -> Tensor {
        self.pool(PoolKind::Max, options)
    }

    /// Average pooling.
    #[track_caller]
    pub fn average_pool_with(&self, options: PoolOptions) -> Tensor {
        self.pool(PoolKind::Average, options)
    }

    #[track_caller]
    fn pool(&self, kind: PoolKind, options: PoolOptions) -> Tensor {
        let x = options.layout.to_nhwc(self);
        let y = Tensor::apply(Pool { kind, options }, &[&x]).swap_remove(0);
        options.layout.from_nhwc(&y)
    }

    /// Average pooling over non-overlapping windows of `size` by `size`.
    #[track_caller]
    pub fn average_pool(&self, size: usize) -> Tensor {
        self.average_pool_with(PoolOptions::square(size))
    }

    /// Averages every channel of every image: `[batch, channels]`.
    #[track_caller]
    #[doc(alias = "GlobalAvgPooling")]
    pub fn global_average_pool(&self) -> Tensor {
        self.global_average_pool_in(Layout::Nhwc)
    }

    /// Averages every channel of every image of this layout.
    #[track_caller]
    pub fn global_average_pool_in(&self, layout: Layout) -> Tensor {
        self.global("GlobalAveragePool", layout, |x, axes| x.mean_axes(axes))
    }

    /// Returns the maximum of every channel of every image: `[batch, channels]`.
    #[track_caller]
    pub fn global_max_pool(&self) -> Tensor {
        self.global_max_pool_in(Layout::Nhwc)
    }

    /// Returns the maximum of every channel of every image of this layout.
    #[track_caller]
    pub fn global_max_pool_in(&self, layout: Layout) -> Tensor {
        self.global("GlobalMaxPool", layout, |x, axes| x.max_axes(axes))
    }

    #[track_caller]
    fn global(&self, name: &str, layout: Layout, reduce: fn(&Tensor, &[isize]) -> Tensor) -> Tensor {
        match self.rank() {
            _ if self.is_poison() => self.clone(),
            4 => composed(self, name, Location::caller(), || match layout {
                Layout::Nhwc => reduce(self, &[1, 2]),
                Layout::Nchw => reduce(self, &[2, 3]),
            }),
            _ => self.fail(name, Error::shape(format!("expected images, got {}", self.shape()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;
    use crate::ops::window::tests::draw_padding;

    fn pool(name: &'static str, domain: Domain, op: fn(&Tensor, PoolOptions) -> Tensor) -> Case {
        case(name, Twice, move |draw| {
            let mut two = |low, high| [draw.between(low, high), draw.between(low, high)];
            let (mut n, window, stride) = (two(1, 7), two(1, 4), two(1, 3));
            let padding = draw_padding(draw, &mut n, window, window);
            let (batch, channels) = (draw.pick(&[1, 2, 0]), draw.pick(&[1, 3, 2, 0, 17]));
            let layout = draw.pick(&[Layout::Nhwc, Layout::Nchw]);
            let sizes = match layout {
                Layout::Nhwc => [batch, n[0], n[1], channels],
                Layout::Nchw => [batch, channels, n[0], n[1]],
            };
            let options = PoolOptions { window, stride, padding, layout };
            Trial::new(vec![Input::floats(draw, sizes, domain)], move |x| vec![op(&x[0], options)])
        })
    }

    cases![
        pool("MaxPool", Apart, Tensor::max_pool_with)
            .empty("x.max_pool(2)", "[0, 4, 4, 3]", "empty [0, 2, 2, 3]", |x| x[0].max_pool(2))
            .empty("x.max_pool(2)", "[1, 0, 4, 3]", "empty [1, 0, 2, 3]", |x| x[0].max_pool(2))
            .empty("x.max_pool(2)", "[1, 4, 4, 0]", "empty [1, 2, 2, 0]", |x| x[0].max_pool(2)),
        pool("AveragePool", Any, Tensor::average_pool_with)
            .empty("x.average_pool(2)", "[0, 4, 4, 3]", "empty [0, 2, 2, 3]", |x| x[0].average_pool(2))
            .empty("x.average_pool(2)", "[1, 0, 4, 3]", "empty [1, 0, 2, 3]", |x| x[0].average_pool(2))
            .empty("x.average_pool(2)", "[1, 4, 4, 0]", "empty [1, 2, 2, 0]", |x| x[0].average_pool(2)),
        case("Global average pool", Twice, |draw| {
            let (sizes, layout) = (draw.solid(4), draw.pick(&[Layout::Nhwc, Layout::Nchw]));
            Trial::new(vec![Input::floats(draw, sizes, Any)], move |x| {
                vec![x[0].global_average_pool_in(layout).square()]
            })
        }),
        case("Global max pool", Twice, |draw| {
            let (sizes, layout) = (draw.solid(4), draw.pick(&[Layout::Nhwc, Layout::Nchw]));
            Trial::new(vec![Input::floats(draw, sizes, Apart)], move |x| {
                vec![x[0].global_max_pool_in(layout).square()]
            })
        }),
    ];
}
