//! Attention and its gradient as StableHLO: products and a softmax whose statistics are f32 or
//! wider. The scores are stored.

use super::contract::{self, ProductPrecision};
use super::random;
use super::stablehlo::{Element, Value, Writer};
use crate::kir::{Attention, AttentionKind, FloatBits, MatMul};
use tensorpack_tensor::DType;

/// Prints attention, or what its gradient needs. Returns the outputs of the kind.
pub(super) fn write(
    w: &mut Writer,
    kind: AttentionKind,
    attention: &Attention,
    inputs: &[Value],
    precision: ProductPrecision,
) -> Vec<Value> {
    let a = AttentionWriter { attention, inputs, precision };
    let sums = attention.log_sums_len();
    if sums == 0 || attention.keys == 0 || attention.value_width == 0 {
        return a.degenerate(w, kind);
    }
    match kind {
        AttentionKind::Forward => a.forward(w).into(),
        AttentionKind::Grad => a.grads(w).into(),
        AttentionKind::ScoreGrad => {
            let (_, scores, _) = a.score_grads(w);
            vec![scores]
        }
        AttentionKind::DropoutFactors => {
            let element = inputs[0].element;
            vec![a.factors(w, &inputs[0], element)]
        }
    }
}

struct AttentionWriter<'a> {
    attention: &'a Attention,
    inputs: &'a [Value],
    precision: ProductPrecision,
}

impl AttentionWriter<'_> {
    /// The outputs where there are no queries, no keys or no values.
    fn degenerate(&self, w: &mut Writer, kind: AttentionKind) -> Vec<Value> {
        let a = self.attention;
        let lens: &[usize] = match kind {
            AttentionKind::Forward => &[a.out_len(), a.log_sums_len()],
            AttentionKind::Grad => &[a.queries_len(), a.keys_len(), a.values_len()],
            AttentionKind::ScoreGrad => &[crate::kir::elements(&a.score_sizes())],
            AttentionKind::DropoutFactors if a.log_sums_len() > 0 && a.keys > 0 => {
                let element = self.inputs[0].element;
                return vec![self.factors(w, &self.inputs[0], element)];
            }
            AttentionKind::DropoutFactors => &[0],
        };
        lens.iter().map(|&len| w.splat(0.0, self.inputs[0].element, &[len])).collect()
    }

    /// The sizes of a matrix per key head: all queries of the heads that share it.
    fn rows(&self) -> usize {
        self.attention.heads / self.attention.kv_heads * self.attention.queries
    }

    fn batch(&self) -> usize {
        self.attention.batch * self.attention.kv_heads
    }

    /// `[batch, queries, heads, width]` as `[batch * kv_heads, rows, width]`.
    fn query_matrix(&self, w: &mut Writer, x: &Value, width: usize) -> Value {
        let &Attention { batch, heads, queries, .. } = self.attention;
        let x = w.reshape(x, &[batch, queries, heads, width]);
        let x = w.transpose(&x, &[0, 2, 1, 3]);
        w.reshape(&x, &[self.batch(), self.rows(), width])
    }

    /// The inverse of [`AttentionWriter::query_matrix`].
    fn query_tensor(&self, w: &mut Writer, x: &Value, width: usize) -> Value {
        let &Attention { batch, heads, queries, .. } = self.attention;
        let x = w.reshape(x, &[batch, heads, queries, width]);
        w.transpose(&x, &[0, 2, 1, 3])
    }

    /// `[batch, keys, kv_heads, width]` as `[batch * kv_heads, keys, width]`.
    fn key_matrix(&self, w: &mut Writer, x: &Value, width: usize) -> Value {
        let &Attention { batch, kv_heads, keys, .. } = self.attention;
        let x = w.reshape(x, &[batch, keys, kv_heads, width]);
        let x = w.transpose(&x, &[0, 2, 1, 3]);
        w.reshape(&x, &[self.batch(), keys, width])
    }

    /// The inverse of [`AttentionWriter::key_matrix`].
    fn key_tensor(&self, w: &mut Writer, x: &Value, width: usize) -> Value {
        let &Attention { batch, kv_heads, keys, .. } = self.attention;
        let x = w.reshape(x, &[batch, kv_heads, keys, width]);
        w.transpose(&x, &[0, 2, 1, 3])
    }

    /// A product of two operands `[batch * kv_heads, ..]` of the same type, with an f32 result if
    /// that type is bf16.
    fn dot(&self, w: &mut Writer, lhs: &Value, rhs: &Value, [lhs_t, rhs_t]: [bool; 2]) -> Value {
        let (m, k) = if lhs_t { (lhs.sizes[2], lhs.sizes[1]) } else { (lhs.sizes[1], lhs.sizes[2]) };
        let n = if rhs_t { rhs.sizes[1] } else { rhs.sizes[2] };
        if lhs.is_empty() || rhs.is_empty() {
            return w.splat(0.0, lhs.element, &[self.batch(), m, n]);
        }
        let product = MatMul {
            batch: self.batch(),
            m,
            n,
            k,
            lhs_transposed: lhs_t,
            rhs_transposed: rhs_t,
            lhs_shared: false,
            rhs_shared: false,
        };
        contract::wide_matmul(w, &product, lhs, rhs, self.precision)
    }

    fn score_sizes(&self) -> [usize; 4] {
        self.attention.score_sizes()
    }

    /// A number per query, repeated for all keys.
    fn per_query(&self, w: &mut Writer, x: &Value) -> Value {
        let [batch, heads, queries, _] = self.score_sizes();
        let x = w.reshape(x, &[batch, heads, queries]);
        w.broadcast(&x, &[0, 1, 2], &self.score_sizes())
    }

    /// The position of the optional input number `i` of mask, bias and seeds.
    fn optional(&self, i: usize) -> usize {
        let a = self.attention;
        3 + [a.mask, a.bias].iter().take(i).filter(|exists| **exists).count()
    }

    /// The masked scores `[batch, heads, queries, keys]`.
    fn scores(&self, w: &mut Writer) -> Value {
        let a = self.attention;
        let sizes = self.score_sizes();
        let q = self.query_matrix(w, &self.inputs[0], a.width);
        let k = self.key_matrix(w, &self.inputs[1], a.width);
        let scores = self.dot(w, &q, &k, [false, true]);
        let scores = w.reshape(&scores, &sizes);
        let scores = w.widened(&scores);
        let scale = w.splat(a.scale.value(), scores.element, &sizes);
        let mut scores = w.like("multiply", &[&scores, &scale]);
        if a.bias {
            let bias = w.convert(&self.inputs[self.optional(1)], scores.element);
            scores = w.like("add", &[&scores, &bias]);
        }
        let lowest = w.splat(f64::NEG_INFINITY, scores.element, &sizes);
        if a.mask {
            let mask = w.reshape(&self.inputs[self.optional(0)], &[a.batch, a.keys]);
            let mask = w.broadcast(&mask, &[0, 3], &sizes);
            scores = w.select(&mask, &scores, &lowest);
        }
        if a.causal {
            let [query, key] = [2, 3].map(|d| w.iota(d, DType::I32, &sizes));
            let seen = w.compare("LE", &key, &query);
            scores = w.select(&seen, &scores, &lowest);
        }
        scores
    }

    /// The factors of dropout, the bits of the CPU's: Philox with a key per head.
    fn factors(&self, w: &mut Writer, seeds: &Value, element: Element) -> Value {
        let [batch, heads, queries, keys] = self.score_sizes();
        let rate = self.attention.dropout.map_or(0.0, FloatBits::value);
        let seeds = w.reshape(seeds, &[batch * heads, 2]);
        let unit = f64::from(1u32 << 24);
        let number = random::uniform_rows(w, &seeds, queries * keys);
        let number = w.reshape(&number, &self.score_sizes());
        let threshold = w.splat((rate * unit).ceil() / unit, number.element, &number.sizes);
        let kept = w.compare("GE", &number, &threshold);
        let [factor, zero] = [1.0 / (1.0 - rate), 0.0].map(|f| w.splat(f, element, &number.sizes));
        w.select(&kept, &factor, &zero)
    }

    /// Multiplies by the factors of dropout, if there are any.
    fn dropped(&self, w: &mut Writer, x: &Value, factors: Option<&Value>) -> Value {
        factors.map_or_else(|| x.clone(), |f| w.like("multiply", &[x, f]))
    }

    fn own_factors(&self, w: &mut Writer, element: Element) -> Option<Value> {
        self.attention.dropout?;
        Some(self.factors(w, &self.inputs[self.optional(2)], element))
    }

    fn forward(&self, w: &mut Writer) -> [Value; 2] {
        let a = self.attention;
        let scores = self.scores(w);
        let of_rows = |w: &mut Writer, name: &str, first: f64, x: &Value| {
            let first = w.splat(first, x.element, &[]);
            w.reduce(name, x, &first, &[3])
        };
        let top = of_rows(w, "maximum", f64::NEG_INFINITY, &scores);
        let lowest = w.splat(f64::NEG_INFINITY, top.element, &top.sizes);
        let [zero, one] = [0.0, 1.0].map(|n| w.splat(n, top.element, &top.sizes));
        // All keys are masked.
        let none = w.compare("EQ", &top, &lowest);
        let top = w.select(&none, &zero, &top);
        let shift = self.per_query(w, &top);
        let below = w.like("subtract", &[&scores, &shift]);
        let powers = w.like("exponential", &[&below]);
        let sum = of_rows(w, "add", 0.0, &powers);
        let sum = w.select(&none, &one, &sum);
        let log = w.like("log", &[&sum]);
        let log_sums = w.like("add", &[&log, &top]);
        let total = self.per_query(w, &sum);
        let weights = w.like("divide", &[&powers, &total]);
        let factors = self.own_factors(w, weights.element);
        let weights = self.dropped(w, &weights, factors.as_ref());
        let weights = w.reshape(&weights, &[self.batch(), self.rows(), a.keys]);
        let weights = w.convert(&weights, self.inputs[2].element);
        let v = self.key_matrix(w, &self.inputs[2], a.value_width);
        let out = self.dot(w, &weights, &v, [false, false]);
        [self.query_tensor(w, &out, a.value_width), log_sums]
    }

    /// Returns the weights after dropout, the gradients of the scores, and the gradients of the
    /// result as matrices.
    fn score_grads(&self, w: &mut Writer) -> (Value, Value, Value) {
        let a = self.attention;
        let [out, log_sums, dy] = [3, 2, 1].map(|i| &self.inputs[self.inputs.len() - i]);
        let scores = self.scores(w);
        let shift = self.per_query(w, log_sums);
        let below = w.like("subtract", &[&scores, &shift]);
        let weights = w.like("exponential", &[&below]);
        let dy = self.query_matrix(w, dy, a.value_width);
        let v = self.key_matrix(w, &self.inputs[2], a.value_width);
        let grads = self.dot(w, &dy, &v, [false, true]);
        let grads = w.reshape(&grads, &self.score_sizes());
        let factors = self.own_factors(w, weights.element);
        let grads = self.dropped(w, &grads, factors.as_ref());
        let out = self.query_matrix(w, out, a.value_width);
        let [wide_out, wide_dy] = [&out, &dy].map(|x| w.convert(x, weights.element));
        let products = w.like("multiply", &[&wide_out, &wide_dy]);
        let zero = w.splat(0.0, products.element, &[]);
        let shared = w.reduce("add", &products, &zero, &[2]);
        let shared = self.per_query(w, &shared);
        let centered = w.like("subtract", &[&grads, &shared]);
        let scores = w.like("multiply", &[&weights, &centered]);
        (self.dropped(w, &weights, factors.as_ref()), scores, dy)
    }

    fn grads(&self, w: &mut Writer) -> [Value; 3] {
        let a = self.attention;
        let (weights, scores, dy) = self.score_grads(w);
        let scale = w.splat(a.scale.value(), scores.element, &scores.sizes);
        let scores = w.like("multiply", &[&scores, &scale]);
        let [weights, scores] = [&weights, &scores].map(|x| {
            let x = w.reshape(x, &[self.batch(), self.rows(), a.keys]);
            w.convert(&x, dy.element)
        });
        let q = self.query_matrix(w, &self.inputs[0], a.width);
        let k = self.key_matrix(w, &self.inputs[1], a.width);
        let dq = self.dot(w, &scores, &k, [false, false]);
        let dk = self.dot(w, &scores, &q, [true, false]);
        let dv = self.dot(w, &weights, &dy, [true, false]);
        [
            self.query_tensor(w, &dq, a.width),
            self.key_tensor(w, &dk, a.width),
            self.key_tensor(w, &dv, a.value_width),
        ]
    }
}
