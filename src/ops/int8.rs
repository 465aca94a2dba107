//! Matrix products and convolutions of 8-bit integers, for inference: weights are quantized before,
//! activations at run time.
//!
//! A weight is a byte `b` that stands for `(b - 128) * scale`, with one scale for each output
//! channel. Activations become integers from -127 to 127 and a scale: the largest magnitude of a row
//! of a matrix, or of an image, over 127. Sums of integers are exact, so they are the same on every
//! CPU and for any number of threads.

use super::Window;
use super::conv2d::products;
use crate::graph::{OpDef, Spec};
use crate::kir::{self, Binary, Class, ContractKind, LowerCx, ReduceKind, Unary, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx};
use serde::{Deserialize, Serialize};
use tensorpack_tensor::{DType, Dim, Error, ErrorKind, Result, element_count};

/// The byte that stands for 0.
const ZERO: f64 = 128.0;
/// The integer that the largest activation becomes.
const LARGEST: f64 = 127.0;
/// Activations are not scaled up further than if their largest magnitude were this, which keeps
/// scales finite.
const SMALLEST: f64 = 1e-30;
/// Products are summed in groups of this many input channels.
pub(crate) const GROUP: usize = 4;
/// Maximum number of terms of a sum: more could overflow 32 bits.
pub(crate) const MAX_TERMS: usize = 1 << 16;

/// Checks the weights and scales of a layer with `inputs`, and returns the sizes of the weights.
fn weights(inputs: &[Spec], rank: usize) -> Result<Vec<usize>> {
    let (x, w, scale) = (&inputs[0], &inputs[1], &inputs[2]);
    if !matches!(x.dtype, DType::F32 | DType::F64) || w.dtype != DType::U8 || scale.dtype != x.dtype {
        return Err(Error::dtype(format!(
            "expected f32 or f64, weights in u8, and scales like the input, got {}, {} and {}",
            x.dtype, w.dtype, scale.dtype
        )));
    }
    let known = w.shape.known().filter(|sizes| sizes.len() == rank);
    let Some(sizes) = known else {
        return Err(Error::shape(format!("expected weights of {rank} known sizes, got {}", w.shape)));
    };
    let (terms, channels) = (element_count(&sizes[..rank - 1])?, sizes[rank - 2]);
    if terms > MAX_TERMS || !channels.is_multiple_of(GROUP) {
        return Err(Error::shape(format!(
            "weights of {} in u8 need a multiple of {GROUP} input channels and at most {MAX_TERMS} terms",
            w.shape
        )));
    }
    if scale.shape.known().as_deref() != Some(&sizes[rank - 1..]) {
        return Err(Error::shape(format!("the scales {} do not fit the weights {}", scale.shape, w.shape)));
    }
    Ok(sizes)
}

/// Emits activations as bytes, with one scale for all elements that differ in `reduced` dims only,
/// and these scales, with sizes of 1 there.
fn quantized(cx: &mut LowerCx<'_>, x: &View, reduced: &[bool]) -> (View, View) {
    let (dtype, class) = (x.dtype, Class::from_dtype(x.dtype));
    let largest = cx.reduce(ReduceKind::Max, dtype, &x.sizes, reduced, &[x], |b, x| {
        let size = b.unary(Unary::Abs, x[0]);
        let smallest = b.constant(SMALLEST, class);
        b.binary(Binary::Max, size, smallest)
    });
    let sizes: Vec<usize> = x.sizes.iter().zip(reduced).map(|(&n, r)| if *r { 1 } else { n }).collect();
    let largest = cx.reshape(&largest[0], &sizes);
    let bytes = cx.map_to(DType::U8, &x.sizes, &[x, &largest], |b, r| {
        let limit = b.constant(LARGEST, class);
        let factor = b.binary(Binary::Div, limit, r[1]);
        let scaled = b.binary(Binary::Mul, r[0], factor);
        let integer = b.unary(Unary::Round, scaled);
        let zero = b.constant(ZERO, class);
        b.binary(Binary::Add, integer, zero)
    });
    let scale = cx.map_to(dtype, &sizes, &[&largest], |b, r| {
        let limit = b.constant(LARGEST, class);
        b.binary(Binary::Div, r[0], limit)
    });
    (bytes, scale)
}

/// Emits output 0 from sums of integers and both scales.
fn rescaled(cx: &mut LowerCx<'_>, sums: &View, scale: &View, channel_scale: &View) -> View {
    let class = Class::from_dtype(cx.output_dtype(0));
    cx.map(&[sums, scale, channel_scale], |b, r| {
        let sum = b.cast(class, r[0]);
        let of_input = b.binary(Binary::Mul, sum, r[1]);
        b.binary(Binary::Mul, of_input, r[2])
    })
}

/// The activations of an evaluation as integers, with the scale of each element.
struct Quantized<'a> {
    x: &'a Array,
    /// The largest magnitude of each row or image.
    largest: Vec<f64>,
    /// The number of elements of each.
    each: usize,
}

impl<'a> Quantized<'a> {
    /// Quantizes runs of `each` elements.
    fn new(x: &'a Array, each: usize) -> Quantized<'a> {
        let values: Vec<f64> = x.values().map(|v| v.as_f64()).collect();
        let largest = |run: &[f64]| run.iter().fold(SMALLEST, |a, v| a.max(v.abs()));
        Quantized { x, largest: values.chunks(each.max(1)).map(largest).collect(), each: each.max(1) }
    }

    fn largest_at(&self, index: &[usize]) -> f64 {
        let flat = index.iter().zip(self.x.sizes()).fold(0, |at, (i, n)| at * n + i);
        self.largest[flat / self.each]
    }

    fn integer(&self, index: &[usize]) -> f64 {
        (self.x.float(index) * (LARGEST / self.largest_at(index))).round_ties_even()
    }
}

/// The refusal of the ONNX export.
fn no_onnx(name: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("{name} has no ONNX form"))
        .note("export the model without int8(), and quantize it with the tools of the runtime that reads it")
}

/// The product of the last dim of an input with a matrix of bytes; inputs are the activations, the
/// weights and their scales.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Int8MatMul;
crate::exported!(Int8MatMul, 3..=3);

impl OpDef for Int8MatMul {
    fn name(&self) -> &str {
        "Int8MatMul"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let (x, sizes) = (&inputs[0], weights(inputs, 2)?);
        let Some((&last, rows)) = x.shape.split_last() else {
            return Err(Error::shape("expected at least one dim, got a scalar"));
        };
        if last.known().is_some_and(|k| k != sizes[0]) {
            return Err(Error::shape(format!(
                "the inner sizes {last} and {} of {} and {} differ",
                sizes[0], x.shape, inputs[1].shape
            )));
        }
        let dims: Vec<Dim> = rows.iter().copied().chain([Dim::Known(sizes[1])]).collect();
        Ok(vec![Spec { dtype: x.dtype, shape: dims.into() }])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (x, w, channel_scale, out) = (cx.input(0), cx.input(1), cx.input(2), cx.output_sizes(0));
        let mut reduced = vec![false; x.sizes.len()];
        reduced[x.sizes.len() - 1] = true;
        let (bytes, scale) = quantized(cx, &x, &reduced);
        let kind = kir::MatMul {
            batch: 1,
            m: element_count(&out[..out.len() - 1])?,
            n: w.sizes[1],
            k: w.sizes[0],
            lhs_transposed: false,
            rhs_transposed: false,
            lhs_shared: false,
            rhs_shared: false,
        };
        let sums = cx.contract_in(DType::F32, ContractKind::MatMul(kind), &bytes, &w, &out);
        Ok(vec![rescaled(cx, &sums, &scale, &channel_scale)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let (x, w, scale) = (cx.input(0), cx.input(1), cx.input(2));
        let terms = w.sizes()[0];
        let quantized = Quantized::new(x, terms);
        Ok(cx.float_output(|i| {
            let (rows, col) = (&i[..i.len() - 1], i[i.len() - 1]);
            let at = |k: usize| [rows, &[k]].concat();
            let sum: f64 =
                (0..terms).map(|k| quantized.integer(&at(k)) * (w.int(&[k, col]) as f64 - ZERO)).sum();
            let of_input = if terms == 0 { 0.0 } else { quantized.largest_at(&at(0)) / LARGEST };
            sum * of_input * scale.float(&[col])
        }))
    }

    fn onnx(&self, _cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        Err(no_onnx(self.name()))
    }
}

/// The convolution of images with a filter of bytes; inputs are the images, the filter and its
/// scales.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Int8Conv2d(Window);
crate::exported!(Int8Conv2d, 3..=3);

impl OpDef for Int8Conv2d {
    fn name(&self) -> &str {
        "Int8Conv2d"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let (x, filter) = (&inputs[0], weights(inputs, 4)?);
        if x.shape.rank() != 4 || x.shape[3].known().is_some_and(|c| c != filter[2]) {
            return Err(Error::shape(format!(
                "expected images [batch, height, width, {}], got {}",
                filter[2], x.shape
            )));
        }
        Ok(vec![self.0.convolved(x, &filter, filter[3])?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (x, w, channel_scale, out) = (cx.input(0), cx.input(1), cx.input(2), cx.output_sizes(0));
        let kernel = self.0.kernel(&x.sizes, &w.sizes, &out)?;
        let (bytes, scale) = quantized(cx, &x, &[false, true, true, true]);
        let sums = cx.contract_in(DType::F32, ContractKind::Conv2d(kernel), &bytes, &w, &out);
        Ok(vec![rescaled(cx, &sums, &scale, &channel_scale)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let (x, w, scale) = (cx.input(0), cx.input(1), cx.input(2));
        let quantized = Quantized::new(x, x.sizes()[1..].iter().product());
        let sizes = cx.output_sizes(0);
        let at = |i: &[usize]| i.iter().zip(sizes).fold(0, |at, (i, n)| at * n + i);
        let mut sums = vec![0.0; sizes.iter().product()];
        products(&self.0, x.sizes(), w.sizes(), sizes, |i, k, o| {
            sums[at(o)] += quantized.integer(i) * (w.int(k) as f64 - ZERO);
        })?;
        Ok(cx.float_output(|o| match sums[at(o)] {
            0.0 => 0.0,
            sum => sum * (quantized.largest_at(&[o[0], 0, 0, 0]) / LARGEST) * scale.float(&[o[3]]),
        }))
    }

    fn onnx(&self, _cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        Err(no_onnx(self.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::op_cases::*;
    use crate::ops::Padding;
    use crate::ops::window::tests::draw_padding;

    /// Returns integers below 201 as activations that are quantized exactly in every type: they are
    /// integers, the largest of which is 127, and so the scale is 1. There are four channels more.
    fn activations(integers: &Tensor, like: &Tensor) -> Tensor {
        let none = vec![0; integers.rank()];
        let mut high = none.clone();
        high[integers.rank() - 1] = GROUP;
        (integers.cast(like.dtype()) - 227.0).pad(&none, &high, &none) + 127.0
    }

    cases![
        case("Int8MatMul", Never("inference only"), |draw| {
            let (m, k) = (draw.pick(&[1, 2, 7, 0, 13]), draw.pick(&[4, 8, 20]));
            let n = draw.pick(&[1, 3, 17, 70, 0]);
            let leading = if draw.below(2) == 0 { vec![m] } else { vec![2, m] };
            let inputs = vec![
                Input::new(draw, [leading, vec![k - GROUP]].concat(), Elements::Below(DType::I64, 201)),
                Input::new(draw, [k, n], Elements::Below(DType::U8, 256)).closed(),
                Input::floats(draw, [n], Positive).closed(),
            ];
            Trial::new(inputs, |x| {
                let y = Tensor::apply_one(Int8MatMul, &[&activations(&x[0], &x[2]), &x[1], &x[2]]);
                vec![y.relu()]
            })
        })
        .empty("Int8MatMul", "[0, 8], [8, 3], [3]", "empty [0, 3]", |x| {
            Tensor::apply_one(Int8MatMul, &[&x[0], &x[1].cast(DType::U8), &x[2]])
        }),
        case("Int8Conv2d", Never("inference only"), |draw| {
            let mut two = |low, high| [draw.between(low, high), draw.between(low, high)];
            let (mut n, kernel, stride, dilation) = (two(1, 6), two(1, 3), two(1, 3), two(1, 2));
            let reach = [0, 1].map(|i| (kernel[i] - 1) * dilation[i] + 1);
            let padding = draw_padding(draw, &mut n, reach, [4, 4]);
            let (inner, outer) = (draw.pick(&[4, 8, 12]), draw.pick(&[1, 2, 5, 17, 0]));
            let image = [draw.pick(&[1, 2, 0]), n[0], n[1], inner - GROUP];
            let filter = [kernel[0], kernel[1], inner, outer];
            let inputs = vec![
                Input::new(draw, image, Elements::Below(DType::I64, 201)),
                Input::new(draw, filter, Elements::Below(DType::U8, 256)).closed(),
                Input::floats(draw, [outer], Positive).closed(),
            ];
            let window = Window { stride, dilation, padding };
            Trial::new(inputs, move |x| {
                let op = Int8Conv2d(window);
                vec![Tensor::apply_one(op, &[&activations(&x[0], &x[2]), &x[1], &x[2]])]
            })
        })
        .empty("Int8Conv2d, SAME", "[0, 5, 5, 4], [3, 3, 4, 2], [2]", "empty [0, 5, 5, 2]", |x| {
            let window = Window { stride: [1; 2], dilation: [1; 2], padding: Padding::Same };
            Tensor::apply_one(Int8Conv2d(window), &[&x[0], &x[1].cast(DType::U8), &x[2]])
        }),
    ];
}
