//! Scaled dot-product attention (Vaswani et al., 2017) and its gradient.

use super::{composed, float_input, same_spec};
use crate::graph::{Autocast, GradCx, OpDef, Spec, Tensor};
use crate::kir::{self, AttentionKind, FloatBits, LowerCx, View};
use crate::onnx::{Attr, ExportCx, Value};
use crate::reference::{Array, EvaluateCx, Indices, Scalar};
use serde::{Deserialize, Serialize};
use std::panic::Location;
use tensorpack_tensor::{CounterRng, DType, Dim, Error, ErrorKind, HostTensor, Result, Shape};

/// Options of [`Tensor::attention`]. By default every query attends to every key, and the scores
/// are divided by the square root of the number of features.
///
/// ```
/// # use tensorpack::prelude::*;
/// # let graph = Graph::new();
/// # let [q, k, v] = ["q", "k", "v"]
/// #     .map(|name| graph.placeholder(&TensorSpec::f32(name, [None, Some(5), Some(2), Some(4)])));
/// # let lengths = graph.placeholder(&TensorSpec::i32("lengths", [None]));
/// let options = AttentionOptions::default().causal().lengths(&lengths);
/// let y = q.attention(&k, &v, &options);
/// ```
#[derive(Clone, Debug, Default)]
pub struct AttentionOptions {
    scale: Option<f64>,
    causal: bool,
    lengths: Option<Tensor>,
    key_mask: Option<Tensor>,
    bias: Option<Tensor>,
    dropout: f64,
}

impl AttentionOptions {
    /// Sets the factor of the scores; defaults to `1 / sqrt(features)`.
    #[must_use]
    pub fn scale(self, scale: f64) -> AttentionOptions {
        AttentionOptions { scale: Some(scale), ..self }
    }

    /// Applies a causal mask: query `i` attends to keys `0..=i`.
    #[must_use]
    pub fn causal(self) -> AttentionOptions {
        AttentionOptions { causal: true, ..self }
    }

    /// Masks padding: example `b` has `lengths[b]` keys, and those after them have weight 0. Their keys
    /// and values must be finite, because 0 times infinity is NaN. `lengths` is an integer tensor
    /// `[batch]`. A run in which a length is negative or larger than the number of keys is an error.
    #[must_use]
    pub fn lengths(self, lengths: &Tensor) -> AttentionOptions {
        AttentionOptions { lengths: Some(lengths.clone()), ..self }
    }

    /// Gives the keys for which `mask`, a bool tensor `[batch, keys]`, is false weight 0. They and their
    /// values must be finite.
    #[must_use]
    pub fn key_mask(self, mask: &Tensor) -> AttentionOptions {
        AttentionOptions { key_mask: Some(mask.clone()), ..self }
    }

    /// Adds `bias`, which broadcasts to `[batch, heads, queries, keys]`, to the scaled scores. An
    /// element of minus infinity masks a pair of query and key.
    #[must_use]
    pub fn bias(self, bias: &Tensor) -> AttentionOptions {
        AttentionOptions { bias: Some(bias.clone()), ..self }
    }

    /// Drops each weight with probability `rate` and divides the others by `1 - rate`; defaults to
    /// 0. Every run draws new numbers.
    #[must_use]
    pub fn dropout(self, rate: f64) -> AttentionOptions {
        AttentionOptions { dropout: rate, ..self }
    }
}

/// The attributes that attention and its gradients share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Form {
    scale: Option<FloatBits>,
    causal: bool,
    mask: bool,
    bias: bool,
    dropout: Option<FloatBits>,
}

/// The positions of the inputs. The gradients read three more: the result, the sums of exponentials
/// and the gradient of the result.
#[derive(Clone, Copy, Debug)]
struct Inputs {
    mask: Option<usize>,
    bias: Option<usize>,
    seeds: Option<usize>,
    count: usize,
}

impl Form {
    fn inputs(&self) -> Inputs {
        let mut count = 3;
        let mut next = |exists: bool| {
            count += usize::from(exists);
            exists.then_some(count - 1)
        };
        let (mask, bias) = (next(self.mask), next(self.bias));
        let seeds = next(self.dropout.is_some());
        Inputs { mask, bias, seeds, count }
    }

    /// Writes attention as products and a softmax: opset 21 has no operation for it.
    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let unsupported = |why: &str| Err(Error::new(ErrorKind::Unsupported, why));
        if self.dropout.is_some() {
            return unsupported("attention with dropout has no ONNX form");
        }
        if cx.is_used(1) {
            return unsupported("the gradient of attention has no ONNX form");
        }
        let [q, k, v] = [0, 1, 2].map(|i| cx.input(i));
        let dtype = q.dtype();
        let sizes = [q.shape()[2], k.shape()[2], q.shape()[3]].map(|d| d.known());
        let [Some(heads), Some(kv_heads), Some(width)] = sizes else {
            return unsupported("attention needs known numbers of heads and features");
        };
        let (queries, keys) = (q.shape()[1], k.shape()[1]);
        let scale = cx.scalar(self.scale(width), dtype)?;
        let q = cx.elementwise("Mul", &[&q, &scale], &[], dtype)?;
        // [batch, heads, time, features]
        let mut head_first = |x: &Value| -> Result<Value> {
            let x = cx.transpose(x, &[0, 2, 1, 3]);
            let shape = x.shape().clone();
            if shape[1] == Dim::Known(heads) {
                return Ok(x);
            }
            let groups = cx.unsqueeze(&x, &[2])?;
            let counts = cx.ints(&[1, 1, (heads / kv_heads.max(1)) as i64, 1, 1])?;
            let mut dims = groups.shape().to_vec();
            dims[2] = Dim::Known(heads / kv_heads.max(1));
            let repeated = cx.node("Expand", &[&groups, &counts], &[], dtype, dims)?;
            let dims = vec![shape[0], Dim::Known(heads), shape[2], shape[3]];
            cx.reshape(&repeated, &dims.into(), &[&x])
        };
        let (k, v) = (head_first(&k)?, head_first(&v)?);
        let q = cx.transpose(&q, &[0, 2, 1, 3]);
        let shape: Shape = vec![q.shape()[0], Dim::Known(heads), queries, keys].into();
        let k = cx.transpose(&k, &[0, 1, 3, 2]);
        let mut scores = cx.node("MatMul", &[&q, &k], &[], dtype, shape.clone())?;
        if let Some(i) = self.inputs().bias {
            scores = cx.elementwise("Add", &[&scores, &cx.input(i)], &[], dtype)?;
        }
        let never = cx.scalar(f64::NEG_INFINITY, dtype)?;
        if let Some(i) = self.inputs().mask {
            let mask = cx.unsqueeze(&cx.input(i), &[1, 2])?;
            scores = cx.elementwise("Where", &[&mask, &scores, &never], &[], dtype)?;
        }
        if self.causal {
            let mut range = |x: &Value, axis: usize| {
                let size = cx.size_of(x, axis)?;
                let size = cx.reshape(&size, &Shape::scalar(), &[])?;
                let (zero, one) = (cx.scalar(0.0, DType::I64)?, cx.scalar(1.0, DType::I64)?);
                cx.node("Range", &[&zero, &size, &one], &[], DType::I64, vec![x.shape()[axis]])
            };
            let (query, key) = (range(&q, 2)?, range(&k, 3)?);
            let query = cx.unsqueeze(&query, &[1])?;
            let earlier = cx.elementwise("LessOrEqual", &[&key, &query], &[], DType::Bool)?;
            scores = cx.elementwise("Where", &[&earlier, &scores, &never], &[], dtype)?;
        }
        let last = [("axis", Attr::Int(-1))];
        let mut weights;
        if self.mask || self.bias {
            // Where all keys are masked the result is zero, but a softmax of infinities is NaN.
            // In 16 bits, the lowest f32 is minus infinity.
            let lowest = match dtype {
                DType::F16 => f64::from(half::f16::MIN),
                DType::Bf16 => f64::from(half::bf16::MIN),
                _ => f64::from(f32::MIN),
            };
            let lowest = cx.scalar(lowest, dtype)?;
            let alive = cx.elementwise("Greater", &[&scores, &lowest], &[], DType::Bool)?;
            let finite = cx.elementwise("Where", &[&alive, &scores, &lowest], &[], dtype)?;
            weights = cx.node("Softmax", &[&finite], &last, dtype, shape.clone())?;
            let alive = cx.cast(&alive, dtype)?;
            weights = cx.elementwise("Mul", &[&weights, &alive], &[], dtype)?;
        } else {
            weights = cx.node("Softmax", &[&scores], &last, dtype, shape.clone())?;
        }
        let dims = vec![shape[0], shape[1], shape[2], v.shape()[3]];
        let y = cx.node("MatMul", &[&weights, &v], &[], dtype, dims)?;
        let y = cx.transpose(&y, &[0, 2, 1, 3]);
        Ok(vec![y.clone(), y])
    }

    /// Returns the factor of the scores.
    fn scale(&self, width: usize) -> f64 {
        let default = || if width == 0 { 1.0 } else { 1.0 / (width as f64).sqrt() };
        self.scale.map_or_else(default, FloatBits::value)
    }

    /// Checks the operands and returns the type and shape of the result and of the sums of
    /// exponentials.
    fn infer(&self, inputs: &[Spec], more: usize) -> Result<[Spec; 2]> {
        let at = self.inputs();
        if inputs.len() != at.count + more {
            return Err(Error::argument(format!(
                "expected {} inputs, got {}",
                at.count + more,
                inputs.len()
            )));
        }
        let rate = self.dropout.map_or(0.0, FloatBits::value);
        if !(0.0..1.0).contains(&rate) {
            return Err(Error::argument(format!("the dropout rate is {rate}, but must be in 0..1")));
        }
        if let Some(scale) = self.scale.map(FloatBits::value).filter(|s| !s.is_finite()) {
            return Err(Error::argument(format!("the scale is {scale}, but must be finite")));
        }
        let [q, k, v] = [&inputs[0], &inputs[1], &inputs[2]];
        float_input(q)?;
        if let Some(other) = [k, v].into_iter().find(|x| x.dtype != q.dtype) {
            return Err(Error::dtype(format!("element types {} and {} differ", q.dtype, other.dtype)));
        }
        let shapes = || format!("queries {}, keys {} and values {}", q.shape, k.shape, v.shape);
        if [q, k, v].iter().any(|x| x.shape.rank() != 4) {
            return Err(Error::shape(format!("expected [batch, time, heads, features], got {}", shapes())));
        }
        let batch = agree([q.shape[0], k.shape[0], v.shape[0]], "batch", &shapes)?;
        agree([q.shape[3], k.shape[3]], "features", &shapes)?;
        let keys = agree([k.shape[1], v.shape[1]], "keys", &shapes)?;
        let kv_heads = agree([k.shape[2], v.shape[2]], "key heads", &shapes)?;
        let (Some(heads), Some(kv_heads)) = (q.shape[2].known(), kv_heads.known()) else {
            return Err(Error::shape(format!("the numbers of heads must be known: {}", shapes())));
        };
        if kv_heads == 0 || heads % kv_heads != 0 {
            let why = format!("{kv_heads} key heads do not divide {heads} query heads: {}", shapes());
            return Err(Error::shape(why));
        }
        let heads = Dim::Known(heads);
        if let Some(mask) = at.mask.map(|i| &inputs[i]) {
            let expected = Spec { dtype: DType::Bool, shape: vec![batch, keys].into() };
            same_spec(mask, &expected).map_err(|e| e.note("the key mask is bool, [batch, keys]"))?;
        }
        if let Some(bias) = at.bias.map(|i| &inputs[i]) {
            let scores: Shape = vec![batch, heads, q.shape[1], keys].into();
            let fits = |(&own, &of): (&Dim, &Dim)| match (own.known(), of.known()) {
                (Some(own), Some(of)) => own == 1 || own == of,
                _ => true,
            };
            if bias.dtype != q.dtype
                || bias.shape.rank() != 4
                || !bias.shape.iter().zip(scores.iter()).all(fits)
            {
                return Err(Error::shape(format!(
                    "a bias {}{} cannot be broadcast to the scores {}{scores}",
                    bias.dtype, bias.shape, q.dtype
                )));
            }
        }
        let wide = wide(q.dtype);
        if let Some(seeds) = at.seeds.map(|i| &inputs[i]) {
            let shape = vec![batch, heads, Dim::Known(2)].into();
            same_spec(seeds, &Spec { dtype: wide, shape })?;
        }
        let out = Spec { dtype: q.dtype, shape: vec![batch, q.shape[1], heads, v.shape[3]].into() };
        let log_sums = Spec { dtype: wide, shape: vec![batch, heads, q.shape[1]].into() };
        if more > 0 {
            same_spec(&inputs[at.count], &out)?;
            same_spec(&inputs[at.count + 1], &log_sums)?;
            same_spec(&inputs[at.count + 2], &out)?;
        }
        Ok([out, log_sums])
    }

    fn lower(&self, cx: &mut LowerCx<'_>, kind: AttentionKind) -> Result<Vec<View>> {
        let (q, k, v) = (cx.input_sizes(0), cx.input_sizes(1), cx.input_sizes(2));
        let attention = kir::Attention {
            batch: q[0],
            heads: q[2],
            kv_heads: k[2],
            queries: q[1],
            keys: k[1],
            width: q[3],
            value_width: v[3],
            scale: FloatBits::new(self.scale(q[3])),
            causal: self.causal,
            mask: self.mask,
            bias: self.bias,
            dropout: self.dropout,
        };
        let mut inputs: Vec<View> = (0..cx.input_count()).map(|i| cx.input(i)).collect();
        if let Some(i) = self.inputs().bias {
            // Convert before broadcasting: a converted tensor is stored.
            let bias = match inputs[i].dtype {
                narrow if narrow.is_narrow_float() => {
                    cx.map_to(DType::F32, &inputs[i].sizes.clone(), &[&inputs[i]], |_, r| r[0])
                }
                _ => inputs[i].clone(),
            };
            inputs[i] = bias.broadcast_to(&attention.score_sizes());
        }
        Ok(cx.attention(kind, attention, &inputs))
    }

    /// Computes the weights of one query by definition.
    fn row(&self, cx: &EvaluateCx<'_>, [b, h, i]: [usize; 3]) -> Row {
        let (at, q, k) = (self.inputs(), cx.input(0), cx.input(1));
        let (keys, width, heads) = (k.sizes()[1], k.sizes()[3], q.sizes()[2]);
        let kv_head = h / (heads / k.sizes()[2]);
        let scale = self.scale(width);
        let score = |j: usize| {
            let masked = at.mask.is_some_and(|m| cx.input(m).int(&[b, j]) == 0);
            if masked || (self.causal && j > i) {
                return f64::NEG_INFINITY;
            }
            let product = cx.sum((0..width).map(|c| q.float(&[b, i, h, c]) * k.float(&[b, j, kv_head, c])));
            product * scale + at.bias.map_or(0.0, |m| cx.input(m).broadcast_at(&[b, h, i, j]).as_f64())
        };
        let scores: Vec<f64> = (0..keys).map(score).collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let factors = match at.seeds {
            None => vec![1.0; keys],
            Some(s) => {
                let rate = self.dropout.map_or(0.0, FloatBits::value);
                let keep = dropout(cx.input(s), [b, h], rate);
                (0..keys).map(|j| keep(i * keys + j)).collect()
            }
        };
        if scores.iter().all(|s| *s == f64::NEG_INFINITY) {
            return Row { kv_head, weights: vec![0.0; keys], factors, log_sum: 0.0 };
        }
        let total = cx.sum(scores.iter().map(|s| (s - top).exp()));
        let weights = scores.iter().map(|s| (s - top).exp() / total).collect();
        Row { kv_head, weights, factors, log_sum: top + total.ln() }
    }

    /// Computes the gradients of the scores of one query.
    ///
    /// The mean of the gradients of the weights is taken from the result, which the forward pass may
    /// have rounded to 16 bits: that is part of the definition, because no engine stores the weights.
    fn row_grads(&self, cx: &EvaluateCx<'_>, row: &Row, [b, h, i]: [usize; 3]) -> Vec<f64> {
        let count = self.inputs().count;
        let (v, out, dy) = (cx.input(2), cx.input(count), cx.input(count + 2));
        let width = v.sizes()[3];
        if row.weights.len() == 1 {
            return vec![0.0];
        }
        let of_weight = |j: usize| {
            let terms = (0..width).map(|c| dy.float(&[b, i, h, c]) * v.float(&[b, j, row.kv_head, c]));
            row.factors[j] * cx.sum(terms)
        };
        let mean = cx.sum((0..width).map(|c| dy.float(&[b, i, h, c]) * out.float(&[b, i, h, c])));
        row.weights.iter().enumerate().map(|(j, w)| w * (of_weight(j) - mean)).collect()
    }
}

/// Returns zeros in place of the gradient of scores of a single key: its weight is 1 whatever the
/// score, and what a kernel computes is only rounding.
fn zeros_like(cx: &mut LowerCx<'_>, grad: &View) -> Result<View> {
    let zero = cx.constant(HostTensor::zeros(grad.dtype, Vec::<usize>::new())?);
    Ok(zero.broadcast_to(&grad.sizes))
}

/// The weights of one query, before dropout, and the factors of dropout.
struct Row {
    kv_head: usize,
    weights: Vec<f64>,
    factors: Vec<f64>,
    log_sum: f64,
}

/// Returns the factor of dropout of each score of one head, by its number.
fn dropout(seeds: &Array, [b, h]: [usize; 2], rate: f64) -> impl Fn(usize) -> f64 {
    let key = [0, 1].map(|w| (seeds.float(&[b, h, w]) * f64::from(1u32 << 24)) as u32);
    let rng = CounterRng::from_key(key);
    move |n| if rng.uniform(0, n as u64) >= rate { 1.0 / (1.0 - rate) } else { 0.0 }
}

/// Returns the type that statistics and random numbers have: f32 for bf16 and f16.
fn wide(dtype: DType) -> DType {
    dtype.widened()
}

/// Checks that dims agree as far as they are known, and returns the one that is known best.
fn agree<const N: usize>(dims: [Dim; N], what: &str, shapes: &dyn Fn() -> String) -> Result<Dim> {
    let mut known = dims.iter().filter_map(|d| d.known());
    let Some(first) = known.next() else { return Ok(dims[0]) };
    match known.find(|&n| n != first) {
        None => Ok(Dim::Known(first)),
        Some(other) => {
            let why = format!("the numbers of {what} differ, {first} and {other}: {}", shapes());
            Err(Error::shape(why))
        }
    }
}

/// Attention: the result, and the logarithms of the sums of exponentials for the gradient.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Attention(Form);
crate::exported!(Attention, 3..=6);

impl OpDef for Attention {
    fn name(&self) -> &str {
        "Attention"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        self.0.infer(inputs, 0).map(Vec::from)
    }

    fn autocast(&self, i: usize) -> Autocast {
        if Some(i) == self.0.inputs().seeds { Autocast::Keep } else { Autocast::Narrow }
    }

    fn output_count(&self) -> usize {
        2
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let mut grads = vec![None; cx.input_count()];
        let Some(dy) = cx.output_grad(0) else { return Ok(grads) };
        let mut inputs: Vec<&Tensor> = (0..cx.input_count()).map(|i| cx.input(i)).collect();
        inputs.extend([cx.output(0), cx.output(1), dy]);
        if (0..3).any(|i| cx.needs(i)) {
            let made = Tensor::apply(AttentionGrad(self.0), &inputs);
            grads.iter_mut().zip(made).for_each(|(g, made)| *g = Some(made));
        }
        if let Some(i) = self.0.inputs().bias.filter(|&i| cx.needs(i)) {
            let scores = Tensor::apply_one(AttentionScoreGrad(self.0), &inputs);
            grads[i] = Some(scores.sum_like(cx.input(i)));
        }
        Ok(grads)
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        self.0.lower(cx, AttentionKind::Forward)
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let v = cx.input(2);
        let [mut out, mut log_sums] = [0, 1].map(|i| Array::zeros(cx.output_dtype(i), cx.output_sizes(i)));
        for at in Indices::new(cx.output_sizes(1)) {
            let [b, h, i] = [at[0], at[1], at[2]];
            let row = self.0.row(cx, [b, h, i]);
            log_sums.set(&at, Scalar::Float(row.log_sum));
            for c in 0..v.sizes()[3] {
                let factors = row.weights.iter().zip(&row.factors).enumerate();
                let terms = factors.map(|(j, (w, f))| w * f * v.float(&[b, j, row.kv_head, c]));
                out.set(&[b, i, h, c], Scalar::Float(cx.sum(terms)));
            }
        }
        Ok(vec![out, log_sums])
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        self.0.onnx(cx)
    }
}

/// The gradients of attention with respect to queries, keys and values.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct AttentionGrad(Form);
crate::exported!(AttentionGrad, 6..=9);

impl OpDef for AttentionGrad {
    fn name(&self) -> &str {
        "AttentionGrad"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        self.0.infer(inputs, 3)?;
        Ok(inputs[..3].to_vec())
    }

    fn output_count(&self) -> usize {
        3
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let second = SecondOrder::new(self.0, cx);
        let [a, b, c] = [0, 1, 2].map(|i| cx.output_grad(i));
        second.grads([a, b, c], None)
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let mut grads = self.0.lower(cx, AttentionKind::Grad)?;
        if cx.input_sizes(1)[1] == 1 {
            grads[0] = zeros_like(cx, &grads[0])?;
            grads[1] = zeros_like(cx, &grads[1])?;
        }
        Ok(grads)
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let at = self.0.inputs();
        let (q, k, dy) = (cx.input(0), cx.input(1), cx.input(at.count + 2));
        let scale = self.0.scale(q.sizes()[3]);
        let mut sums = [0, 1, 2].map(|i| cx.running_sums(cx.output_dtype(i), cx.output_sizes(i)));
        for row_at in Indices::new(cx.input_sizes(at.count + 1)) {
            let [b, h, i] = [row_at[0], row_at[1], row_at[2]];
            let row = self.0.row(cx, [b, h, i]);
            let grads = self.0.row_grads(cx, &row, [b, h, i]);
            for (j, grad) in grads.into_iter().enumerate() {
                let key = |c: usize| [b, j, row.kv_head, c];
                for c in 0..q.sizes()[3] {
                    sums[0].add(&[b, i, h, c], Scalar::Float(scale * grad * k.float(&key(c))));
                    sums[1].add(&key(c), Scalar::Float(scale * grad * q.float(&[b, i, h, c])));
                }
                for c in 0..dy.sizes()[3] {
                    let weight = row.weights[j] * row.factors[j];
                    sums[2].add(&key(c), Scalar::Float(weight * dy.float(&[b, i, h, c])));
                }
            }
        }
        Ok(sums.iter().map(|s| s.array()).collect())
    }
}

/// The gradient of attention with respect to the scores: that of a bias. It is as large as the
/// scores.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct AttentionScoreGrad(Form);
crate::exported!(AttentionScoreGrad, 6..=9);

impl OpDef for AttentionScoreGrad {
    fn name(&self) -> &str {
        "AttentionScoreGrad"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let [out, _] = self.0.infer(inputs, 3)?;
        let shape = vec![out.shape[0], out.shape[2], out.shape[1], inputs[1].shape[1]].into();
        Ok(vec![Spec { dtype: out.dtype, shape }])
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        SecondOrder::new(self.0, cx).grads([None; 3], Some(cx.dy()))
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let grads = self.0.lower(cx, AttentionKind::ScoreGrad)?;
        match cx.input_sizes(1)[1] {
            1 => Ok(vec![zeros_like(cx, &grads[0])?]),
            _ => Ok(grads),
        }
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let mut scores = Array::zeros(cx.output_dtype(0), cx.output_sizes(0));
        for at in Indices::new(cx.input_sizes(self.0.inputs().count + 1)) {
            let [b, h, i] = [at[0], at[1], at[2]];
            let row = self.0.row(cx, [b, h, i]);
            for (j, grad) in self.0.row_grads(cx, &row, [b, h, i]).into_iter().enumerate() {
                scores.set(&[b, h, i, j], Scalar::Float(grad));
            }
        }
        Ok(vec![scores])
    }
}

/// The factors of dropout, `[batch, heads, queries, keys]`, for gradients of gradients: input 0 are
/// the seeds; of the queries and the keys only the shape is used.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct AttentionDropout(FloatBits);
crate::exported!(AttentionDropout, 3..=3);

impl OpDef for AttentionDropout {
    fn name(&self) -> &str {
        "AttentionDropout"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let form = Form { scale: None, causal: false, mask: false, bias: false, dropout: Some(self.0) };
        let [seeds, q, k] = [&inputs[0], &inputs[1], &inputs[2]];
        form.infer(&[q.clone(), k.clone(), k.clone(), seeds.clone()], 0)?;
        let shape = vec![q.shape[0], q.shape[2], q.shape[1], k.shape[1]].into();
        Ok(vec![Spec { dtype: q.dtype, shape }])
    }

    fn shape_only(&self, i: usize) -> bool {
        i > 0
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![None; cx.input_count()])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (q, k, seeds) = (cx.input_sizes(1), cx.input_sizes(2), cx.input(0));
        let attention = kir::Attention {
            batch: q[0],
            heads: q[2],
            kv_heads: q[2].max(1),
            queries: q[1],
            keys: k[1],
            width: 0,
            value_width: 0,
            scale: FloatBits::new(1.0),
            causal: false,
            mask: false,
            bias: false,
            dropout: Some(self.0),
        };
        Ok(cx.attention(AttentionKind::DropoutFactors, attention, &[seeds]))
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let keys = cx.output_sizes(0)[3];
        Ok(cx.float_output(|i| dropout(cx.input(0), [i[0], i[1]], self.0.value())(i[2] * keys + i[3])))
    }
}

/// Gradients of the gradients, composed of ordinary operations; they store the scores.
///
/// With scores `S`, weights `P = softmax(S)`, factors `F` of dropout, `E = F (dO V^T)` and `dS =
/// P (E - rowsum(P E))`, the first gradients are `dQ = scale dS K`, `dK = scale dS^T Q` and `dV =
/// (P F)^T dO`. Everything here is laid out `[batch, heads, time, features]`.
struct SecondOrder<'a> {
    form: Form,
    cx: &'a GradCx<'a>,
    /// The query heads per key head.
    group: usize,
    kv_heads: usize,
    dtype: DType,
}

impl<'a> SecondOrder<'a> {
    fn new(form: Form, cx: &'a GradCx<'a>) -> SecondOrder<'a> {
        let heads = |i: usize| cx.input(i).shape()[2].known().unwrap_or(1);
        let dtype = wide(cx.input(0).dtype());
        SecondOrder { form, cx, group: heads(0) / heads(1), kv_heads: heads(1), dtype }
    }

    /// Returns queries with the heads first, in the type of the computation.
    fn heads_first(&self, x: &Tensor) -> Tensor {
        let x = x.transpose(&[0, 2, 1, 3]);
        if x.dtype() == self.dtype { x } else { x.cast(self.dtype) }
    }

    /// Returns keys with the heads first, repeated for all query heads.
    fn repeated(&self, x: &Tensor) -> Tensor {
        let x = self.heads_first(x);
        match self.group {
            1 => x,
            group => x.expand_dims(2).broadcast_to(&[-1, -1, group as isize, -1, -1]).merge_dims(1, 2),
        }
    }

    /// Returns a gradient of queries in their own layout and type.
    fn to_queries(&self, x: &Tensor) -> Tensor {
        x.transpose(&[0, 2, 1, 3]).cast(self.cx.input(0).dtype())
    }

    /// Returns a gradient of keys in their own layout and type, summed over the heads that share
    /// them.
    fn to_keys(&self, x: &Tensor) -> Tensor {
        let x = match self.group {
            1 => x.clone(),
            group => x.split_dim(1, &[self.kv_heads as isize, group as isize]).sum_axes(&[2]),
        };
        self.to_queries(&x)
    }

    /// Returns the gradients of all inputs, given those of `dQ`, `dK` and `dV`, and of `dS`.
    fn grads(
        &self,
        [a, b, c]: [Option<&Tensor>; 3],
        of_scores: Option<&Tensor>,
    ) -> Result<Vec<Option<Tensor>>> {
        let (cx, at) = (self.cx, self.form.inputs());
        let width = cx.input(0).shape()[3].known().ok_or_else(|| {
            Error::shape("the second derivative of attention needs a known number of features")
        })?;
        let scale = self.form.scale(width);
        let (q, k, v) =
            (self.heads_first(cx.input(0)), self.repeated(cx.input(1)), self.repeated(cx.input(2)));
        let dy = self.heads_first(cx.input(at.count + 2));
        let (a, b, c) =
            (a.map(|a| self.heads_first(a)), b.map(|b| self.repeated(b)), c.map(|c| self.repeated(c)));
        let weights = self.weights(&q, &k, scale);
        let factors = at.seeds.zip(self.form.dropout).map(|(i, rate)| {
            let factors = Tensor::apply_one(AttentionDropout(rate), &[cx.input(i), cx.input(0), cx.input(1)]);
            if factors.dtype() == self.dtype { factors } else { factors.cast(self.dtype) }
        });
        let dropped = |x: Tensor| factors.as_ref().map_or_else(|| x.clone(), |f| &x * f);
        let of_rows = |x: &Tensor| x.sum_keep(&[-1]);
        let add = |x: Option<Tensor>, y: Tensor| Some(x.map_or_else(|| y.clone(), |x| x + &y));

        let of_weights = dropped(dy.matmul(&v.matrix_transpose()));
        let centered = &of_weights - of_rows(&(&weights * &of_weights));
        let scores = &weights * &centered;
        // The gradient of dS.
        let mut g: Option<Tensor> = of_scores.map(|s| s.cast(self.dtype));
        let (mut to_q, mut to_k, mut to_v, mut to_dy) = (None, None, None, None);
        if let Some(a) = &a {
            g = add(g, a.matmul(&k.matrix_transpose()) * scale);
            to_k = add(to_k, scores.matrix_transpose().matmul(a) * scale);
        }
        if let Some(b) = &b {
            g = add(g, q.matmul(&b.matrix_transpose()) * scale);
            to_q = add(to_q, scores.matmul(b) * scale);
        }
        // The gradient of the weights.
        let mut w = None;
        if let Some(g) = &g {
            let sum = of_rows(&(g * &weights));
            let of_e = dropped(&weights * (g - &sum));
            w = add(w, g * &centered - &of_weights * &sum);
            to_dy = add(to_dy, of_e.matmul(&v));
            to_v = add(to_v, of_e.matrix_transpose().matmul(&dy));
        }
        if let Some(c) = &c {
            w = add(w, dropped(dy.matmul(&c.matrix_transpose())));
            to_dy = add(to_dy, dropped(weights.clone()).matmul(c));
        }
        let mut to_bias = None;
        if let Some(w) = w {
            let s = &weights * (&w - of_rows(&(&weights * &w)));
            to_q = add(to_q, s.matmul(&k) * scale);
            to_k = add(to_k, s.matrix_transpose().matmul(&q) * scale);
            to_bias = Some(s);
        }
        let mut grads = vec![None; cx.input_count()];
        grads[0] = to_q.map(|x| self.to_queries(&x));
        grads[1] = to_k.map(|x| self.to_keys(&x));
        grads[2] = to_v.map(|x| self.to_keys(&x));
        if let Some(i) = at.bias {
            grads[i] = to_bias.map(|x| x.cast(cx.input(i).dtype()).sum_like(cx.input(i)));
        }
        // The result and the sums of exponentials are functions of the others.
        grads[at.count + 2] = to_dy.map(|x| self.to_queries(&x));
        Ok(grads)
    }

    /// Returns the weights before dropout; zero where masked.
    fn weights(&self, q: &Tensor, k: &Tensor, scale: f64) -> Tensor {
        let at = self.form.inputs();
        let mut scores = q.matmul(&k.matrix_transpose()) * scale;
        if let Some(i) = at.bias {
            scores = scores + self.cx.input(i).cast(self.dtype);
        }
        let mut visible = scores.not_equal(f64::NEG_INFINITY);
        if let Some(i) = at.mask {
            visible = visible.logical_and(&self.cx.input(i).expand_dims(1).expand_dims(1));
        }
        if self.form.causal {
            let [query, key] = [-2, -1].map(|axis| scores.iota_like(axis, DType::I64));
            visible = visible.logical_and(&key.less_equal(&query));
        }
        // A softmax does not depend on what is subtracted from the scores. The sums of exponentials
        // are at hand, and unlike the maximum they exist if there are no keys.
        let shift = self.cx.input(at.count + 1).stop_gradient().expand_dims(3);
        let powers = visible.select(&(&scores - shift), &scores.zero()).exp();
        let powers = visible.select(&powers, &powers.zero());
        let sum = powers.sum_keep(&[-1]);
        // All keys are masked.
        let none = sum.equal(0.0);
        powers / none.select(&sum.one(), &sum)
    }
}

impl Tensor {
    /// Returns scaled dot-product attention, `softmax(q k^T scale + bias) v` for every head, where
    /// `self` are the queries `[batch, queries, heads, features]`. Keys are `[batch, keys, kv_heads,
    /// features]` and values `[batch, keys, kv_heads, value_features]`; the result is `[batch,
    /// queries, heads, value_features]`.
    ///
    /// `kv_heads` may be a divisor of `heads`: then consecutive query heads share a key head
    /// (grouped-query attention). A query whose keys are all masked gives zeros.
    ///
    /// The CPU engine never stores the scores, in the forward pass and in the gradient: memory
    /// grows linearly with the number of queries and keys. The gradient of a bias is an exception;
    /// it is as large as the scores. So are gradients of gradients, which are composed of ordinary
    /// operations. On XLA the scores are stored.
    #[track_caller]
    #[doc(alias = "scaled_dot_product_attention")]
    pub fn attention(&self, keys: &Tensor, values: &Tensor, options: &AttentionOptions) -> Tensor {
        let AttentionOptions { scale, causal, lengths, key_mask, bias, dropout } = options;
        let given = [Some(keys), Some(values), lengths.as_ref(), key_mask.as_ref(), bias.as_ref()];
        if self.is_poison() || given.into_iter().flatten().any(Tensor::is_poison) {
            return Tensor::poison(self.graph());
        }
        composed(self, "Attention", Location::caller(), || {
            if self.rank() != 4 || keys.rank() != 4 {
                let why = format!(
                    "expected [batch, time, heads, features], got queries {} and keys {}",
                    self.shape(),
                    keys.shape()
                );
                return self.fail("Attention", Error::shape(why));
            }
            if !(0.0..1.0).contains(dropout) {
                let why = format!("the dropout rate is {dropout}, but must be in 0..1");
                return self.fail("Attention", Error::argument(why));
            }
            let padding = lengths.as_ref().map(|lengths| {
                // Only the shape of the sum is used.
                let position = keys.sum_axes(&[2, 3]).iota_like(1, DType::I64);
                position.less(&lengths.lengths_within("Attention", keys).expand_dims(1))
            });
            let mask = match (padding, key_mask) {
                (Some(padding), Some(mask)) => {
                    Some(padding.logical_and(&mask.with_dims_of(keys, 2, "a key mask [batch, keys]")))
                }
                (padding, mask) => padding.or_else(|| mask.clone()),
            };
            let bias = bias.as_ref().map(|b| (b.rank()..4).fold(b.clone(), |b, _| b.expand_dims(0)));
            let seeds = (*dropout > 0.0).then(|| {
                let heads = self.sum_axes(&[1, 3]).expand_dims(2).broadcast_to(&[-1, -1, 2]);
                heads.random_uniform_like(wide(self.dtype()))
            });
            let form = Form {
                scale: scale.map(FloatBits::new),
                causal: *causal,
                mask: mask.is_some(),
                bias: bias.is_some(),
                dropout: seeds.is_some().then(|| FloatBits::new(*dropout)),
            };
            let mut inputs = vec![self, keys, values];
            inputs.extend(mask.as_ref().into_iter().chain(&bias).chain(&seeds));
            Tensor::apply(Attention(form), &inputs).swap_remove(0)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;

    /// Sizes of one trial, and the inputs q, k and v.
    struct Drawn {
        sizes: [usize; 4],
        inputs: Vec<Input>,
    }

    fn drawn(draw: &mut Draw<'_>) -> Drawn {
        // Large enough for several blocks, or small: the reference and the differences take long.
        let large = draw.below(12) == 11;
        let batch = if large { 1 } else { draw.pick(&[1, 2, 3, 0]) };
        let (kv_heads, group) = (if large { 1 } else { draw.between(1, 2) }, draw.between(1, 2));
        let heads = kv_heads * group;
        let [queries, keys] = match large {
            true => [draw.pick(&[67, 5]), draw.pick(&[131, 19])],
            false => [draw.pick(&[1, 2, 3, 5, 7, 0]), draw.pick(&[1, 2, 3, 5, 7, 0])],
        };
        let [width, value_width] = match large {
            true => [2, draw.pick(&[1, 3])],
            false => [draw.pick(&[1, 2, 3, 5, 16]), draw.pick(&[1, 2, 3, 5, 17])],
        };
        let inputs = vec![
            Input::floats(draw, [batch, queries, heads, width], Any),
            Input::floats(draw, [batch, keys, kv_heads, width], Any),
            Input::floats(draw, [batch, keys, kv_heads, value_width], Any),
        ];
        Drawn { sizes: [batch, heads, queries, keys], inputs }
    }

    fn options(draw: &mut Draw<'_>) -> AttentionOptions {
        let options = AttentionOptions::default();
        let options = if draw.below(2) == 1 { options.causal() } else { options };
        if draw.below(3) == 2 { options.scale(0.3) } else { options }
    }

    cases![
        case("Attention", Twice, |draw| {
            let (drawn, options) = (drawn(draw), options(draw));
            Trial::new(drawn.inputs, move |x| vec![x[0].attention(&x[1], &x[2], &options)])
        })
        .empty("q.attention(k, v)", "[0, 3, 2, 4], [0, 5, 2, 4], [0, 5, 2, 4]", "empty [0, 3, 2, 4]", |x| {
            x[0].attention(&x[1], &x[2], &AttentionOptions::default())
        })
        .empty("q.attention(k, v)", "[2, 0, 2, 4], [2, 5, 2, 4], [2, 5, 2, 4]", "empty [2, 0, 2, 4]", |x| {
            x[0].attention(&x[1], &x[2], &AttentionOptions::default())
        })
        .empty(
            "q.attention(k, v)",
            "[2, 3, 2, 4], [2, 0, 2, 4], [2, 0, 2, 4]",
            "zeros [2, 3, 2, 4]",
            |x| { x[0].attention(&x[1], &x[2], &AttentionOptions::default()) }
        ),
        case("Attention with lengths", Twice, |draw| {
            let (mut drawn, options) = (drawn(draw), options(draw));
            let [batch, _, _, keys] = drawn.sizes;
            let dtype = draw.pick(&[DType::I32, DType::I64]);
            drawn.inputs.push(Input::new(draw, [batch], Elements::Below(dtype, keys + 1)));
            Trial::new(drawn.inputs, move |x| {
                vec![x[0].attention(&x[1], &x[2], &options.clone().lengths(&x[3]))]
            })
        }),
        case("Attention with a key mask", Twice, |draw| {
            let (mut drawn, options) = (drawn(draw), options(draw));
            let [batch, _, _, keys] = drawn.sizes;
            drawn.inputs.push(Input::new(draw, [batch, keys], Elements::Bools));
            Trial::new(drawn.inputs, move |x| {
                vec![x[0].attention(&x[1], &x[2], &options.clone().key_mask(&x[3]))]
            })
        }),
        case("Attention with a bias", Twice, |draw| {
            let (mut drawn, options) = (drawn(draw), options(draw));
            let bias = draw.broadcasting(&drawn.sizes);
            drawn.inputs.push(Input::floats(draw, bias, Any));
            Trial::new(drawn.inputs, move |x| {
                vec![x[0].attention(&x[1], &x[2], &options.clone().bias(&x[3]))]
            })
        }),
        case("Attention with dropout", Twice, |draw| {
            let (mut drawn, options) = (drawn(draw), options(draw));
            let [batch, heads, _, keys] = drawn.sizes;
            drawn.inputs.push(Input::new(draw, [batch, keys], Elements::Bools));
            drawn.inputs.push(Input::floats(draw, drawn.sizes, Any));
            // Seeds that are the same in every run, for finite differences.
            drawn.inputs.push(Input::new(draw, [batch, heads, 2], Elements::Below(DType::I32, 1 << 24)));
            let form = Form {
                scale: options.scale.map(FloatBits::new),
                causal: options.causal,
                mask: true,
                bias: true,
                dropout: Some(FloatBits::new(0.3)),
            };
            Trial::new(drawn.inputs, move |x| {
                let seeds = x[5].cast(x[0].dtype()) * (1.0 / f64::from(1u32 << 24));
                let inputs = [&x[0], &x[1], &x[2], &x[3], &x[4], &seeds];
                vec![Tensor::apply(Attention(form), &inputs).swap_remove(0)]
            })
        }),
        case("Attention with drawn dropout", Never("every run draws new numbers"), |draw| {
            let (drawn, options) = (drawn(draw), options(draw));
            Trial::new(drawn.inputs, move |x| {
                vec![x[0].attention(&x[1], &x[2], &options.clone().dropout(0.3))]
            })
        }),
    ];
}
