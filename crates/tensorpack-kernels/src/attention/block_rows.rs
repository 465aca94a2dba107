//! The elementwise work on the rows of a block of scores: scale, bias, masks, exponentials,
//! dropout.

use super::{Attention, Inputs, ScoreBlock, Scratch};
use crate::Isa;
use crate::gemm::block_product::Real;
use crate::random;
use crate::simd::per_isa::per_isa;

/// Elements that are reduced side by side, so that the compiler vectorizes the loop.
const LANES: usize = 16;

/// One row of a block: the scores of one query.
#[derive(Clone, Copy)]
pub(super) struct Row<T> {
    /// The products of the query with the keys; overwritten.
    scores: *mut T,
    keys: usize,
    scale: T,
    /// The bias of the first key, or null.
    bias: *const T,
    bias_step: isize,
    /// The mask of the first key, or null.
    mask: *const u8,
    /// The number of keys that the causal mask lets through.
    visible: usize,
    /// Uniform numbers, one for each key, or null.
    random: *const f32,
    dropout: Dropout<T>,
}

/// A weight is kept if its random number reaches the threshold, and then multiplied by the factor.
#[derive(Clone, Copy)]
struct Dropout<T> {
    threshold: f32,
    factor: T,
}

impl<T: Real> Dropout<T> {
    fn new(rate: f64) -> Dropout<T> {
        // Random numbers are multiples of 2^-24, and so is the threshold: it is exact in f32.
        let unit = f64::from(1u32 << 24);
        Dropout { threshold: ((rate * unit).ceil() / unit) as f32, factor: T::from_f64(1.0 / (1.0 - rate)) }
    }
}

impl Attention {
    /// Prepares row `i` of a block and draws its random numbers.
    ///
    /// # Safety
    /// Operands and scratch memory are those of a run, and the block is inside the scores.
    pub(super) unsafe fn row<T: Real>(
        &self,
        isa: Isa,
        inputs: &Inputs<T>,
        scratch: &Scratch<T>,
        block: &ScoreBlock,
        i: usize,
    ) -> Row<T> {
        let query = block.query + i;
        let visible = if self.causal { (query + 1).saturating_sub(block.key) } else { block.keys };
        let [batch_step, head_step, query_step, key_step] = self.bias.unwrap_or([0; 4]);
        let bias_at = block.example as isize * batch_step
            + block.head as isize * head_step
            + query as isize * query_step
            + block.key as isize * key_step;
        let mut random = std::ptr::null();
        if self.dropout.is_some() {
            // SAFETY: the seeds are readable, and the row of random numbers has room for a block.
            unsafe {
                let rng = self.generator(inputs.seeds, block.example, block.head);
                let first = (query * self.keys + block.key) as u64;
                random::fill::<f32>(isa, &rng, 0, first, scratch.random, block.keys);
            }
            random = scratch.random.cast_const();
        }
        Row {
            scores: scratch.scores.wrapping_add(i * block.keys),
            keys: block.keys,
            scale: T::from_f64(self.scale),
            bias: if self.bias.is_some() { inputs.bias.wrapping_offset(bias_at) } else { std::ptr::null() },
            bias_step: key_step,
            mask: if self.mask {
                inputs.mask.wrapping_add(block.example * self.keys + block.key)
            } else {
                std::ptr::null()
            },
            visible: visible.min(block.keys),
            random,
            dropout: Dropout::new(self.dropout.unwrap_or(0.0)),
        }
    }
}

/// Reduces a row in a fixed order: [`LANES`] partial results, then the rest one by one.
#[inline(always)]
fn fold<T: Real>(row: &[T], first: T, combine: impl Fn(T, T) -> T) -> T {
    let mut lanes = [first; LANES];
    let mut groups = row.chunks_exact(LANES);
    for group in &mut groups {
        for (lane, &v) in lanes.iter_mut().zip(group) {
            *lane = combine(*lane, v);
        }
    }
    let all = lanes.into_iter().fold(first, &combine);
    groups.remainder().iter().fold(all, |a, &v| combine(a, v))
}

/// Turns products into scores: scaled, with the bias, and minus infinity where masked.
///
/// # Safety
/// The pointers of the row are valid for its keys.
#[inline(always)]
#[expect(clippy::mut_from_ref, reason = "the row points at scores that it does not borrow")]
unsafe fn scores_body<T: Real>(row: &Row<T>) -> &mut [T] {
    // SAFETY: guaranteed by the caller, who has the scores to itself.
    let scores = unsafe { std::slice::from_raw_parts_mut(row.scores, row.keys) };
    scores.iter_mut().for_each(|s| *s = s.mul(row.scale));
    if !row.bias.is_null() && row.bias_step == 1 {
        // SAFETY: guaranteed by the caller.
        let bias = unsafe { std::slice::from_raw_parts(row.bias, row.keys) };
        scores.iter_mut().zip(bias).for_each(|(s, &b)| *s = s.add(b));
    } else if !row.bias.is_null() {
        for (j, s) in scores.iter_mut().enumerate() {
            // SAFETY: guaranteed by the caller.
            *s = s.add(unsafe { *row.bias.offset(j as isize * row.bias_step) });
        }
    }
    if !row.mask.is_null() {
        // SAFETY: guaranteed by the caller.
        let mask = unsafe { std::slice::from_raw_parts(row.mask, row.keys) };
        for (s, &m) in scores.iter_mut().zip(mask) {
            *s = if m != 0 { *s } else { T::LOWEST };
        }
    }
    scores[row.visible..].fill(T::LOWEST);
    scores
}

/// Returns the random numbers of a row.
///
/// # Safety
/// If the row has random numbers they are valid for its keys.
#[inline(always)]
unsafe fn random_of<T>(row: &Row<T>) -> Option<&[f32]> {
    // SAFETY: guaranteed by the caller.
    (!row.random.is_null()).then(|| unsafe { std::slice::from_raw_parts(row.random, row.keys) })
}

per_isa! {
    /// Turns a row of products into weights `exp(score - maximum)`, updates the running maximum and
    /// sum, and returns the factor by which earlier results of this query shrink.
    ///
    /// # Safety
    /// The pointers of the row are valid for its keys.
    pub(super) unsafe fn online_softmax<T: Real>(row: &Row<T>, top: &mut T, sum: &mut T) -> T = online_softmax_body
}

#[inline(always)]
unsafe fn online_softmax_body<T: Real, const FAST: bool>(row: &Row<T>, top: &mut T, sum: &mut T) -> T {
    // SAFETY: guaranteed by the caller.
    let (weights, random) = unsafe { (scores_body(row), random_of(row)) };
    let next = fold(weights, *top, T::max);
    if next == T::LOWEST {
        weights.fill(T::ZERO);
        return T::ONE;
    }
    for w in weights.iter_mut() {
        *w = w.sub(next).exp::<FAST>();
    }
    let shrink = top.sub(next).exp::<FAST>();
    *top = next;
    *sum = sum.mul(shrink).add(fold(weights, T::ZERO, T::add));
    if let Some(random) = random {
        let Dropout { threshold, factor } = row.dropout;
        for (w, &r) in weights.iter_mut().zip(random) {
            *w = if r >= threshold { w.mul(factor) } else { T::ZERO };
        }
    }
    shrink
}

per_isa! {
    /// Turns a row of products into the weights that multiplied the values, and `grads`, their
    /// gradients, into the gradients of the scores times `scale`.
    ///
    /// # Safety
    /// The pointers of the row and `grads` are valid for its keys.
    pub(super) unsafe fn score_grads<T: Real>(
        row: &Row<T>, grads: *mut T, log_sum: T, shared: T, scale: T
    ) = score_grads_body
}

#[inline(always)]
unsafe fn score_grads_body<T: Real, const FAST: bool>(
    row: &Row<T>,
    grads: *mut T,
    log_sum: T,
    shared: T,
    scale: T,
) {
    // SAFETY: guaranteed by the caller.
    let (weights, random) = unsafe { (scores_body(row), random_of(row)) };
    // SAFETY: guaranteed by the caller.
    let grads = unsafe { std::slice::from_raw_parts_mut(grads, row.keys) };
    for w in weights.iter_mut() {
        *w = w.sub(log_sum).exp::<FAST>();
    }
    match random {
        None => {
            for (w, g) in weights.iter_mut().zip(grads) {
                *g = w.mul(g.sub(shared)).mul(scale);
            }
        }
        Some(random) => {
            let Dropout { threshold, factor } = row.dropout;
            for ((w, g), &r) in weights.iter_mut().zip(grads).zip(random) {
                let keep = if r >= threshold { factor } else { T::ZERO };
                *g = w.mul(g.mul(keep).sub(shared)).mul(scale);
                *w = w.mul(keep);
            }
        }
    }
}

per_isa! {
    /// Returns the sum of products of two rows.
    ///
    /// # Safety
    /// Both are valid for `len` elements.
    pub(super) unsafe fn dot<T: Real>(a: *const T, b: *const T, len: usize) -> T = dot_body
}

#[inline(always)]
unsafe fn dot_body<T: Real, const FAST: bool>(a: *const T, b: *const T, len: usize) -> T {
    // SAFETY: guaranteed by the caller.
    let (a, b) = unsafe { (std::slice::from_raw_parts(a, len), std::slice::from_raw_parts(b, len)) };
    let mut lanes = [T::ZERO; LANES];
    let (mut a, mut b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    for (a, b) in (&mut a).zip(&mut b) {
        for ((lane, &a), &b) in lanes.iter_mut().zip(a).zip(b) {
            *lane = lane.add(a.mul(b));
        }
    }
    let all = fold(&lanes, T::ZERO, T::add);
    a.remainder().iter().zip(b.remainder()).fold(all, |sum, (&a, &b)| sum.add(a.mul(b)))
}

per_isa! {
    /// Multiplies a row by a factor, and stores it at `to`, which may be the row itself.
    ///
    /// # Safety
    /// Both are valid for `len` elements.
    pub(super) unsafe fn scale_row<T: Real>(from: *const T, factor: T, to: *mut T, len: usize) = scale_row_body
}

#[inline(always)]
unsafe fn scale_row_body<T: Real, const FAST: bool>(from: *const T, factor: T, to: *mut T, len: usize) {
    for i in 0..len {
        // SAFETY: guaranteed by the caller.
        unsafe { *to.add(i) = (*from.add(i)).mul(factor) }
    }
}

/// Writes the factors of dropout of a block of queries.
///
/// # Safety
/// Same as [`Attention::run`].
pub(super) unsafe fn dropout_factors<T: Real>(
    attention: &Attention,
    isa: Isa,
    unit: usize,
    reads: &[*const u8],
    writes: &[*mut u8],
    scratch: &Scratch<T>,
) {
    let (example, head, queries) = attention.query_unit(unit);
    let Dropout { threshold, factor } = Dropout::new(attention.dropout.unwrap_or(0.0));
    // SAFETY: guaranteed by the caller.
    let rng = unsafe { attention.generator::<T>(reads[0].cast(), example, head) };
    for query in queries {
        for (key, keys) in super::key_blocks(0..attention.keys) {
            let row = (example * attention.heads + head) * attention.queries + query;
            // SAFETY: keys of a row that belongs to this unit; the row of random numbers has room
            // for a block.
            unsafe {
                let first = (query * attention.keys + key) as u64;
                random::fill::<f32>(isa, &rng, 0, first, scratch.random, keys);
                let out = writes[0].cast::<T>().add(row * attention.keys + key);
                for j in 0..keys {
                    *out.add(j) = if *scratch.random.add(j) >= threshold { factor } else { T::ZERO };
                }
            }
        }
    }
}
