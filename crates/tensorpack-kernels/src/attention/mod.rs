//! Scaled dot-product attention and its gradient, block by block, without storing the scores
//! (Dao, "FlashAttention-2", 2023).
//!
//! The forward pass keeps a running maximum and a running sum per query, and stores the logarithm
//! of the sum of exponentials. The gradient computes the scores of each block again from it. Blocks
//! and the order of all sums depend on the sizes alone.

mod backward;
mod block_rows;
mod forward;

use crate::Isa;
use crate::gemm::block_product::{PANEL, Real, WHOLE};
use crate::partition;
use tensorpack_tensor::{CounterRng, DType, Result, check_extent};

/// Maximum number of queries in a block.
const QUERIES: usize = 64;
/// Maximum number of keys in a block.
const KEYS: usize = 128;
/// Chunks have at least about this many operations.
const SMALL_CHUNK: f64 = 2e6;
/// With fewer pairs of example and head than this, the keys of a gradient are split as well.
const ENOUGH_UNITS: usize = 16;

/// What an attention kernel computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttentionPass {
    /// Reads the operands; returns the result and the logarithms of the sums of exponentials
    /// `[batch, heads, queries]`, 0 where all keys are masked.
    Forward,
    /// Reads the operands, the two results and the gradient of the first; returns the gradients of
    /// queries, keys and values.
    Grad,
    /// Reads the same as `Grad`; returns the gradient of the scores, `[batch, heads, queries,
    /// keys]`, which is the gradient of a bias.
    ScoreGrad,
    /// Reads the seeds; returns the factors of dropout, `[batch, heads, queries, keys]`.
    DropoutFactors,
}

/// Attention of queries `[batch, queries, heads, width]` to keys `[batch, keys, kv_heads, width]`
/// with values `[batch, keys, kv_heads, value_width]`. All are dense.
///
/// The operands are queries, keys, values, then those that exist of: the key mask (bool, `[batch,
/// keys]`), the bias, and the seeds of dropout (`[batch, heads, 2]`, uniform numbers in `[0, 1)`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// What is computed.
    pub pass: AttentionPass,
    /// Number of examples.
    pub batch: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads, a divisor of `heads`; consecutive query heads share one.
    pub kv_heads: usize,
    /// Number of queries.
    pub queries: usize,
    /// Number of keys.
    pub keys: usize,
    /// Features of a query and of a key.
    pub width: usize,
    /// Features of a value.
    pub value_width: usize,
    /// The factor of the scores.
    pub scale: f64,
    /// Whether query `i` sees only keys up to `i`.
    pub causal: bool,
    /// Whether there is a key mask; keys that are false are ignored.
    pub mask: bool,
    /// The strides of a bias over `[batch, heads, queries, keys]`, in elements.
    pub bias: Option<[isize; 4]>,
    /// The rate of dropout.
    pub dropout: Option<f64>,
}

/// The operands of all passes that compute scores.
#[derive(Clone, Copy)]
struct Inputs<T> {
    queries: *const T,
    keys: *const T,
    values: *const T,
    /// Null without a mask.
    mask: *const u8,
    /// Null without a bias.
    bias: *const T,
    /// Null without dropout.
    seeds: *const T,
    /// The number of these operands.
    count: usize,
}

/// A rectangle of scores: queries and keys of one head of one example.
#[derive(Clone, Copy)]
struct ScoreBlock {
    example: usize,
    head: usize,
    query: usize,
    queries: usize,
    key: usize,
    keys: usize,
}

impl Attention {
    /// Checks that no product of the sizes overflows and that `kv_heads` divides `heads`.
    pub fn check(&self) -> Result<()> {
        use tensorpack_tensor::Error;
        if self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            let why = format!("{} key heads do not divide {} query heads", self.kv_heads, self.heads);
            return Err(Error::argument(why));
        }
        let width = self.width.max(self.value_width).saturating_add(WHOLE);
        // The gradient of the queries may be stored once per unit.
        check_extent("queries", &[self.batch, self.queries, self.heads, width, ENOUGH_UNITS])?;
        check_extent("keys", &[self.batch, self.keys, self.kv_heads, width])?;
        check_extent("blocks", &[QUERIES + KEYS, width.max(KEYS), 4])?;
        // A pass without scores in memory still numbers them.
        check_extent("scores", &[self.batch, self.heads, self.queries, self.keys])
    }

    /// Returns the number of phases.
    pub fn phases(&self) -> usize {
        if self.pass == AttentionPass::Grad && self.splits() > 1 { 2 } else { 1 }
    }

    /// Returns the number of chunks of a phase.
    pub fn chunks(&self, phase: usize) -> usize {
        match phase {
            0 => self.units().div_ceil(self.units_per_chunk()),
            _ => backward::sum_chunks(self),
        }
    }

    /// Returns the bytes of memory that all chunks share.
    pub fn shared_bytes(&self, dtype: DType) -> usize {
        if self.phases() == 1 { 0 } else { self.splits() * self.queries_len() * dtype.size() }
    }

    /// Returns the bytes of scratch memory each thread needs.
    pub fn scratch_bytes(&self, dtype: DType) -> usize {
        self.scratch_lens().iter().map(|len| (len * dtype.size()).next_multiple_of(64)).sum()
    }

    /// Returns the number of floating-point operations of the products, without those that a
    /// causal mask skips.
    pub fn flops(&self) -> f64 {
        let pairs = if self.causal {
            let corner = self.queries.min(self.keys) as f64;
            corner * (corner + 1.0) / 2.0 + (self.queries as f64 - corner) * self.keys as f64
        } else {
            self.queries as f64 * self.keys as f64
        };
        let [width, value_width] = [self.width as f64, self.value_width as f64];
        let per_pair = match self.pass {
            AttentionPass::Forward | AttentionPass::ScoreGrad => width + value_width,
            AttentionPass::Grad => 3.0 * width + 2.0 * value_width,
            AttentionPass::DropoutFactors => 0.0,
        };
        2.0 * (self.batch * self.heads) as f64 * pairs * per_pair
    }

    /// Runs one chunk of a phase. Supports f32 and f64. `reads` are the operands of the pass and
    /// `writes` its results, in the order of [`AttentionPass`].
    ///
    /// # Safety
    /// - [`Attention::check`] has passed, and the CPU supports `isa`.
    /// - Every operand is readable and every result writable in full and aligned for its type; a
    ///   bias is readable wherever its strides reach.
    /// - `shared` is valid for `shared_bytes` bytes; `scratch` has `scratch_bytes` bytes. Both are
    ///   aligned to 64 bytes.
    /// - All chunks of earlier phases have returned, and no two calls run the same chunk.
    #[allow(clippy::too_many_arguments, reason = "kernels take what they read and write")]
    pub unsafe fn run(
        &self,
        isa: Isa,
        dtype: DType,
        phase: usize,
        chunk: usize,
        reads: &[*const u8],
        writes: &[*mut u8],
        shared: *mut u8,
        scratch: &mut [u8],
    ) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match dtype {
                DType::F32 => self.chunk::<f32>(isa, phase, chunk, reads, writes, shared.cast(), scratch),
                DType::F64 => self.chunk::<f64>(isa, phase, chunk, reads, writes, shared.cast(), scratch),
                other => panic!("attention supports f32 and f64, not {other}"),
            }
        }
    }

    /// # Safety
    /// Same as [`Attention::run`].
    #[allow(clippy::too_many_arguments, reason = "as above")]
    unsafe fn chunk<T: Real>(
        &self,
        isa: Isa,
        phase: usize,
        chunk: usize,
        reads: &[*const u8],
        writes: &[*mut u8],
        shared: *mut T,
        scratch: &mut [u8],
    ) {
        if phase == 1 {
            // SAFETY: guaranteed by the caller.
            return unsafe { backward::sum_splits(self, chunk, shared, writes[0].cast()) };
        }
        let scratch = self.carve::<T>(scratch);
        let each = self.units_per_chunk();
        for unit in chunk * each..((chunk + 1) * each).min(self.units()) {
            // SAFETY: guaranteed by the caller; units write apart from each other.
            unsafe {
                match self.pass {
                    AttentionPass::Forward => forward::run(self, isa, unit, reads, writes, &scratch),
                    AttentionPass::Grad => backward::run(self, isa, unit, reads, writes, shared, &scratch),
                    AttentionPass::ScoreGrad => backward::scores(self, isa, unit, reads, writes, &scratch),
                    AttentionPass::DropoutFactors => {
                        block_rows::dropout_factors::<T>(self, isa, unit, reads, writes, &scratch)
                    }
                }
            }
        }
    }

    /// Returns the number of independent units of work: query blocks of heads, or parts of the keys
    /// of heads for the gradient.
    fn units(&self) -> usize {
        match self.pass {
            AttentionPass::Grad => self.batch * self.kv_heads * self.splits(),
            _ => self.batch * self.heads * self.query_blocks(),
        }
    }

    fn units_per_chunk(&self) -> usize {
        let each = self.flops() / self.units().max(1) as f64;
        ((SMALL_CHUNK / each.max(1.0)) as usize).clamp(1, 1024)
    }

    fn query_blocks(&self) -> usize {
        self.queries.div_ceil(QUERIES)
    }

    /// Returns the head, the example and the block of queries of a unit.
    fn query_unit(&self, unit: usize) -> (usize, usize, std::ops::Range<usize>) {
        let (pair, block) = (unit / self.query_blocks(), unit % self.query_blocks());
        let start = block * QUERIES;
        (pair / self.heads, pair % self.heads, start..(start + QUERIES).min(self.queries))
    }

    /// Returns the number of parts into which the gradient divides the keys of each head. Each part
    /// sums its own gradient of the queries.
    fn splits(&self) -> usize {
        let units = (self.batch * self.kv_heads).max(1);
        (ENOUGH_UNITS / units).clamp(1, self.keys.div_ceil(KEYS).max(1))
    }

    /// Returns the number of elements of the queries.
    fn queries_len(&self) -> usize {
        self.batch * self.queries * self.heads * self.width
    }

    /// Returns the number of keys that at least one of these queries sees.
    fn keys_seen(&self, queries: &std::ops::Range<usize>) -> usize {
        if self.causal { self.keys.min(queries.end) } else { self.keys }
    }

    /// Returns the elements of each part of the scratch memory; see [`Scratch`].
    fn scratch_lens(&self) -> [usize; 11] {
        let (queries, keys) = (self.queries.min(QUERIES), self.keys.min(KEYS));
        let panels = |width: usize| keys.next_multiple_of(PANEL) * width;
        let padded = |rows: usize, width: usize| match width.is_multiple_of(WHOLE) {
            true => 0,
            false => rows * width.next_multiple_of(WHOLE),
        };
        let [width, value_width] = [self.width, self.value_width];
        let scores = queries * keys;
        let random = if self.dropout.is_some() { keys } else { 0 };
        match self.pass {
            AttentionPass::Forward => [
                panels(width),
                0,
                scores,
                0,
                queries * value_width,
                0,
                padded(keys, value_width),
                0,
                0,
                2 * queries,
                random,
            ],
            AttentionPass::Grad => [
                panels(width),
                panels(value_width),
                scores,
                scores,
                keys * value_width,
                keys * width,
                padded(keys, width),
                padded(queries, width),
                padded(queries, value_width),
                queries,
                random,
            ],
            AttentionPass::ScoreGrad => {
                [panels(width), panels(value_width), scores, scores, 0, 0, 0, 0, 0, queries, random]
            }
            AttentionPass::DropoutFactors => [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, random],
        }
    }

    fn carve<T: Real>(&self, scratch: &mut [u8]) -> Scratch<T> {
        debug_assert!(scratch.len() >= self.scratch_lens().iter().map(|n| n * size_of::<T>()).sum::<usize>());
        let mut at = scratch.as_mut_ptr();
        let parts = self.scratch_lens().map(|len| {
            let part = at.cast::<T>();
            at = at.wrapping_add((len * size_of::<T>()).next_multiple_of(64));
            part
        });
        let [
            keys_t,
            values_t,
            scores,
            score_grads,
            value_sums,
            key_sums,
            key_rows,
            query_rows,
            grad_rows,
            statistics,
            random,
        ] = parts;
        Scratch {
            keys_t,
            values_t,
            scores,
            score_grads,
            value_sums,
            key_sums,
            key_rows,
            query_rows,
            grad_rows,
            statistics,
            random: random.cast(),
        }
    }

    /// Returns the operands that scores are computed from.
    fn inputs<T: Real>(&self, reads: &[*const u8]) -> Inputs<T> {
        let mut next = 3;
        let mut optional = |exists: bool| {
            next += usize::from(exists);
            if exists { reads[next - 1] } else { std::ptr::null() }
        };
        let mask = optional(self.mask);
        let bias = optional(self.bias.is_some()).cast();
        let seeds = optional(self.dropout.is_some()).cast();
        let [queries, keys, values] = [0, 1, 2].map(|i| reads[i].cast());
        Inputs { queries, keys, values, mask, bias, seeds, count: next }
    }

    /// Returns the offset of a query's row in the queries, whose rows are `heads * width` apart.
    fn query_row(&self, example: usize, head: usize, query: usize, width: usize) -> usize {
        ((example * self.queries + query) * self.heads + head) * width
    }

    /// Returns the offset of a key's row, for a query head.
    fn key_row(&self, example: usize, kv_head: usize, key: usize, width: usize) -> usize {
        ((example * self.keys + key) * self.kv_heads + kv_head) * width
    }

    /// Returns the number of query heads that share a key head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Returns the generator of a head's dropout.
    ///
    /// # Safety
    /// The seeds of all examples and heads must be readable.
    unsafe fn generator<T: Real>(&self, seeds: *const T, example: usize, head: usize) -> CounterRng {
        let at = 2 * (example * self.heads + head);
        // SAFETY: guaranteed by the caller.
        let words = unsafe { [*seeds.add(at), *seeds.add(at + 1)] };
        // The 24 bits of a uniform number.
        let bits = |v: T| (crate::scalar::element::To::<f64>::to(v) * f64::from(1u32 << 24)) as u32;
        CounterRng::from_key(words.map(bits))
    }
}

/// The scratch memory of one thread; [`Attention::scratch_lens`] lists the lengths.
struct Scratch<T> {
    /// A block of keys, packed as the columns of a right operand.
    keys_t: *mut T,
    /// A block of values, packed the same way.
    values_t: *mut T,
    /// A block of scores, then of weights; a row per query.
    scores: *mut T,
    /// A block of gradients of the weights, then of the scores.
    score_grads: *mut T,
    /// Sums of values: the result of a block of queries, or the gradient of a block of values.
    value_sums: *mut T,
    /// The gradient of a block of keys.
    key_sums: *mut T,
    /// Keys (or values, in the forward pass) with rows of whole vectors, if their own are not.
    key_rows: *mut T,
    /// Queries with rows of whole vectors.
    query_rows: *mut T,
    /// Gradients of the result with rows of whole vectors.
    grad_rows: *mut T,
    /// Maximum and sum of each query; or the term of its gradient that all keys share.
    statistics: *mut T,
    /// Random numbers of a row of scores.
    random: *mut f32,
}

/// Returns rows that are readable in whole vectors, and their stride: the rows themselves, or a
/// copy of them in `copy` if their width is no multiple of a vector.
///
/// # Safety
/// `rows` rows of `width` elements, `stride` apart, are readable; `copy` has room for them, padded,
/// if `width` is no multiple of [`WHOLE`].
unsafe fn whole_rows<T: Real>(
    src: *const T,
    stride: usize,
    rows: usize,
    width: usize,
    copy: *mut T,
) -> (*const T, usize) {
    if width.is_multiple_of(WHOLE) {
        return (src, stride);
    }
    let padded = width.next_multiple_of(WHOLE);
    for row in 0..rows {
        // SAFETY: a row of the source, and one of the copy.
        unsafe { std::ptr::copy_nonoverlapping(src.add(row * stride), copy.add(row * padded), width) }
    }
    (copy, padded)
}

/// Returns the blocks of a range of keys.
fn key_blocks(keys: std::ops::Range<usize>) -> impl Iterator<Item = (usize, usize)> {
    let end = keys.end;
    keys.step_by(KEYS).map(move |key| (key, (end - key).min(KEYS)))
}

/// Returns part `index` of all keys: whole blocks.
fn key_split(attention: &Attention, index: usize) -> std::ops::Range<usize> {
    let blocks = partition::part(attention.keys.div_ceil(KEYS), attention.splits(), index);
    blocks.start * KEYS..(blocks.end * KEYS).min(attention.keys)
}
