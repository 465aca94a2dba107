//! Image resizing. Pixels are areas: the center of the first pixel is half a pixel from the edge,
//! in the input and in the output, unless [`ResizeOptions::align_corners`] is set.

use super::composed;
use crate::graph::{GradCx, OpDef, Spec, Tensor};
use crate::kir::{LowerCx, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx};
use serde::{Deserialize, Serialize};
use std::panic::Location;
use tensorpack_tensor::{DType, Error, HostTensor, Result};

/// Options of [`Tensor::resize_bilinear_with`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ResizeOptions {
    /// Whether the centers of the first and of the last pixel stay where they are, instead of the
    /// edges of the image. The only pixel of a resized axis is then the first one.
    pub align_corners: bool,
}

/// The sampling positions of the output along an axis of the input: constants, known once the
/// axis's size is.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct SamplePlaces {
    axis: usize,
    to: usize,
    what: SampleKind,
    dtype: DType,
    /// Files of earlier versions lack this field.
    #[serde(default)]
    align_corners: bool,
}
crate::exported!(SamplePlaces, 1..=1);

/// The maximum number of pixels along an axis.
const MAX_PIXELS: usize = 1 << 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum SampleKind {
    /// The pixel that contains the sample.
    Nearest,
    /// The last pixel whose center is not after the sample, or the first pixel.
    Before,
    /// The pixel after that, or the last pixel.
    After,
    /// The interpolation weight between the two, from 0 to 1.
    Between,
}

impl SamplePlaces {
    /// Returns the value for sample `i`, in an axis of `from` pixels.
    fn value(&self, i: usize, from: usize) -> f64 {
        let last = from as f64 - 1.0;
        let edge = (i as f64 + 0.5) * from as f64 / self.to as f64;
        let center = match self.align_corners {
            true => i as f64 * last / self.steps(),
            false => (edge - 0.5).clamp(0.0, last),
        };
        match self.what {
            SampleKind::Nearest => edge.floor().min(last),
            SampleKind::Before => center.floor(),
            SampleKind::After => (center.floor() + 1.0).min(last),
            SampleKind::Between => center - center.floor(),
        }
    }

    /// Returns the number of steps from the first to the last sample, or 1 if they are the same.
    fn steps(&self) -> f64 {
        self.to.saturating_sub(1).max(1) as f64
    }
}

impl OpDef for SamplePlaces {
    fn name(&self) -> &str {
        "SamplePlaces"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        super::axis_of(&inputs[0].shape, self.axis)?;
        if self.to > MAX_PIXELS {
            return Err(Error::argument(format!("{} pixels exceed the maximum of {MAX_PIXELS}", self.to)));
        }
        if self.to > 0 && inputs[0].shape[self.axis].known() == Some(0) {
            return Err(Error::shape(format!("{} has no pixels to resize", inputs[0].shape)));
        }
        Ok(vec![Spec::new(self.dtype, [self.to])])
    }

    fn shape_only(&self, _: usize) -> bool {
        true
    }

    fn grad(&self, _: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![None])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let from = cx.input_sizes(0)[self.axis];
        let samples: Vec<f64> = (0..self.to).map(|i| self.value(i, from)).collect();
        Ok(vec![cx.constant(HostTensor::from_f64(self.dtype, [self.to], &samples)?)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let from = cx.input_sizes(0)[self.axis];
        Ok(cx.float_output(|i| self.value(i[0], from)))
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let x = cx.input(0);
        if let Some(from) = x.shape()[self.axis].known() {
            let values: Vec<f64> = (0..self.to).map(|i| self.value(i, from)).collect();
            return Ok(vec![cx.constant(HostTensor::from_f64(self.dtype, [self.to], &values)?)]);
        }
        let centers: Vec<f64> = (0..self.to).map(|i| i as f64 + 0.5).collect();
        let centers = cx.constant(HostTensor::from_f64(DType::F64, [self.to], &centers)?);
        let indices: Vec<f64> = (0..self.to).map(|i| i as f64).collect();
        let indices = cx.constant(HostTensor::from_f64(DType::F64, [self.to], &indices)?);
        let [zero, half, one, to, steps] =
            [0.0, 0.5, 1.0, self.to as f64, self.steps()].map(|v| cx.scalar(v, DType::F64));
        let (zero, half, one, to, steps) = (zero?, half?, one?, to?, steps?);
        let from = cx.size_of(&x, self.axis)?;
        let from = cx.cast(&from, DType::F64)?;
        let mut apply = |op: &str, a: &Value, b: &Value| cx.elementwise(op, &[a, b], &[], DType::F64);
        let last = apply("Sub", &from, &one)?;
        let edge = apply("Mul", &centers, &from)?;
        let edge = apply("Div", &edge, &to)?;
        let center = match self.align_corners {
            true => {
                let moved = apply("Mul", &indices, &last)?;
                apply("Div", &moved, &steps)?
            }
            false => {
                let center = apply("Sub", &edge, &half)?;
                let center = apply("Max", &center, &zero)?;
                apply("Min", &center, &last)?
            }
        };
        let rounded = if self.what == SampleKind::Nearest { &edge } else { &center };
        let floor = cx.elementwise("Floor", &[rounded], &[], DType::F64)?;
        let mut apply = |op: &str, a: &Value, b: &Value| cx.elementwise(op, &[a, b], &[], DType::F64);
        let place = match self.what {
            SampleKind::Nearest => apply("Min", &floor, &last)?,
            SampleKind::Before => floor,
            SampleKind::After => {
                let next = apply("Add", &floor, &one)?;
                apply("Min", &next, &last)?
            }
            SampleKind::Between => apply("Sub", &center, &floor)?,
        };
        Ok(vec![cx.cast(&place, self.dtype)?])
    }
}

impl Tensor {
    /// Resizes images `[batch, height, width, channels]` to this height and width by
    /// nearest-neighbor sampling.
    #[track_caller]
    pub fn resize_nearest(&self, size: [usize; 2]) -> Tensor {
        self.resized("ResizeNearest", Location::caller(), size, |x, axis, to| {
            let (what, dtype) = (SampleKind::Nearest, DType::I64);
            let places = SamplePlaces { axis, to, what, dtype, align_corners: false };
            x.gather(&Tensor::apply_one(places, &[x]), axis as isize)
        })
    }

    /// Resizes images `[batch, height, width, channels]` to this height and width by bilinear
    /// interpolation.
    #[track_caller]
    #[doc(alias = "interpolate")]
    pub fn resize_bilinear(&self, size: [usize; 2]) -> Tensor {
        self.resize_bilinear_with(size, ResizeOptions::default())
    }

    /// [`Tensor::resize_bilinear`] with options.
    #[track_caller]
    pub fn resize_bilinear_with(&self, size: [usize; 2], options: ResizeOptions) -> Tensor {
        let ResizeOptions { align_corners } = options;
        self.resized("ResizeBilinear", Location::caller(), size, |x, axis, to| {
            let sample =
                |what, dtype| Tensor::apply_one(SamplePlaces { axis, to, what, dtype, align_corners }, &[x]);
            let at = |kind| x.gather(&sample(kind, DType::I64), axis as isize);
            let (before, after) = (at(SampleKind::Before), at(SampleKind::After));
            let between = sample(SampleKind::Between, x.dtype());
            let between = (axis + 1..x.rank()).fold(between, |t, _| t.expand_dims(-1));
            &before + (after - &before) * between
        })
    }

    /// Resizes one axis after the other.
    #[track_caller]
    fn resized(
        &self,
        name: &str,
        caller: &'static Location<'static>,
        size: [usize; 2],
        along: impl Fn(&Tensor, usize, usize) -> Tensor,
    ) -> Tensor {
        if self.is_poison() {
            return self.clone();
        }
        if self.rank() != 4 || !self.dtype().is_float() {
            let why = "expected images [batch, height, width, channels] of floating-point elements";
            let found = format!("{why}, got {}{}", self.dtype(), self.shape());
            return self.fail(name, Error::shape(found));
        }
        composed(self, name, caller, || along(&along(self, 1, size[0]), 2, size[1]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;

    fn resize(name: &'static str, op: fn(&Tensor, [usize; 2]) -> Tensor) -> Case {
        case(name, Twice, move |draw| {
            let mut size = || draw.pick(&[1, 2, 3, 5, 4, 7]);
            let sizes = [size() % 4, size(), size(), size() % 4];
            let to = [size(), size() - 1];
            Trial::new(vec![Input::floats(draw, sizes, Any)], move |x| vec![op(&x[0].square(), to)])
        })
    }

    cases![
        resize("ResizeNearest", Tensor::resize_nearest)
            .empty("x.resize_nearest([2, 2])", "[0, 4, 4, 3]", "empty [0, 2, 2, 3]", |x| {
                x[0].resize_nearest([2, 2])
            })
            .empty(
                "x.resize_nearest([2, 2])",
                "[1, 0, 4, 3]",
                "error: [1, 0, 4, 3] has no pixels to resize",
                |x| x[0].resize_nearest([2, 2])
            ),
        resize("ResizeBilinear", Tensor::resize_bilinear).empty(
            "x.resize_bilinear([0, 2])",
            "[1, 4, 4, 3]",
            "empty [1, 0, 2, 3]",
            |x| x[0].resize_bilinear([0, 2])
        ),
        resize("ResizeBilinear of corners", |x, size| {
            x.resize_bilinear_with(size, ResizeOptions { align_corners: true })
        }),
    ];
}
