//! The gradient: a block of keys against all queries, whose scores are computed again.

use super::block_rows::{dot, score_grads};
use super::forward::products;
use super::{Attention, Inputs, QUERIES, ScoreBlock, Scratch, key_blocks, key_split, whole_rows};
use crate::Isa;
use crate::gemm::block_product::{BlockProduct, PANEL, Real};
use crate::partition;

/// Elements of the queries' gradient that one chunk of the last phase sums.
const SUM_CHUNK: usize = 1 << 14;

/// The results of the forward pass and the gradient of the first.
#[derive(Clone, Copy)]
struct Results<T> {
    out: *const T,
    log_sums: *const T,
    grads: *const T,
}

impl<T> Results<T> {
    fn new(inputs: &Inputs<T>, reads: &[*const u8]) -> Results<T> {
        let [out, log_sums, grads] = [0, 1, 2].map(|i| reads[inputs.count + i].cast());
        Results { out, log_sums, grads }
    }
}

/// Computes the gradients of one unit: a part of the keys and values of one head.
///
/// # Safety
/// Same as [`Attention::run`].
pub(super) unsafe fn run<T: Real>(
    attention: &Attention,
    isa: Isa,
    unit: usize,
    reads: &[*const u8],
    writes: &[*mut u8],
    shared: *mut T,
    scratch: &Scratch<T>,
) {
    let &Attention { heads, kv_heads, width, value_width, .. } = attention;
    let inputs = attention.inputs::<T>(reads);
    let results = Results::new(&inputs, reads);
    let splits = attention.splits();
    let (pair, split) = (unit / splits, unit % splits);
    let (example, kv_head) = (pair / kv_heads, pair % kv_heads);
    let group = attention.group();
    let group_heads = kv_head * group..(kv_head + 1) * group;
    // Each part of the keys has its own gradient of the queries; the last phase sums them.
    let query_grads = match splits {
        1 => writes[0].cast::<T>(),
        _ => shared.wrapping_add(split * attention.queries_len()),
    };
    for query in 0..attention.queries {
        let row = attention.query_row(example, group_heads.start, query, width);
        // SAFETY: the rows of the heads of this group, which belong to this unit.
        unsafe { std::slice::from_raw_parts_mut(query_grads.add(row), group * width).fill(T::ZERO) }
    }
    for (key, keys) in key_blocks(key_split(attention, split)) {
        let key_rows = inputs.keys.wrapping_add(attention.key_row(example, kv_head, key, width));
        let value_rows = inputs.values.wrapping_add(attention.key_row(example, kv_head, key, value_width));
        // SAFETY: the rows of this block are inside the operands, and the scratch memory has room
        // for a block (`scratch_lens`).
        let (whole_keys, whole_keys_step) = unsafe {
            T::pack_transposed(isa, key_rows, kv_heads * width, width, keys, scratch.keys_t);
            T::pack_transposed(isa, value_rows, kv_heads * value_width, value_width, keys, scratch.values_t);
            std::slice::from_raw_parts_mut(scratch.key_sums, keys * width).fill(T::ZERO);
            std::slice::from_raw_parts_mut(scratch.value_sums, keys * value_width).fill(T::ZERO);
            whole_rows(key_rows, kv_heads * width, keys, width, scratch.key_rows)
        };
        for head in group_heads.clone() {
            // Queries before the first key of the block do not see it.
            let first = if attention.causal { key / QUERIES * QUERIES } else { 0 };
            for query in (first..attention.queries).step_by(QUERIES) {
                let queries = (attention.queries - query).min(QUERIES);
                // Keys after the last query of the block are not seen; those of the block before
                // them are packed all the same.
                let keys = if attention.causal { keys.min(query + queries - key) } else { keys };
                let block = ScoreBlock { example, head, query, queries, key, keys };
                let query_at = attention.query_row(example, head, query, width);
                let grad_at = attention.query_row(example, head, query, value_width);
                // SAFETY: the queries of this block are inside the operands; the rest as above.
                unsafe {
                    gradients_of_scores(
                        attention,
                        isa,
                        &inputs,
                        &results,
                        scratch,
                        &block,
                        T::from_f64(attention.scale),
                    );
                    // The weights and the gradients of the scores, keys in rows.
                    let transposed = |a: *mut T, b: (*const T, usize), n: usize, c: *mut T| BlockProduct {
                        m: keys,
                        n,
                        k: queries,
                        a: a.cast_const(),
                        a_row: 1,
                        a_step: keys,
                        b: b.0,
                        b_step: b.1,
                        b_panel: PANEL,
                        c,
                        c_row: n,
                        add: true,
                    };
                    let grads = results.grads.add(grad_at);
                    let grads =
                        whole_rows(grads, heads * value_width, queries, value_width, scratch.grad_rows);
                    T::multiply(isa, &transposed(scratch.scores, grads, value_width, scratch.value_sums));
                    let rows = inputs.queries.add(query_at);
                    let rows = whole_rows(rows, heads * width, queries, width, scratch.query_rows);
                    T::multiply(isa, &transposed(scratch.score_grads, rows, width, scratch.key_sums));
                    let to_queries = BlockProduct {
                        m: queries,
                        n: width,
                        k: keys,
                        a: scratch.score_grads.cast_const(),
                        a_row: keys,
                        a_step: 1,
                        b: whole_keys,
                        b_step: whole_keys_step,
                        b_panel: PANEL,
                        c: query_grads.add(query_at),
                        c_row: heads * width,
                        add: true,
                    };
                    T::multiply(isa, &to_queries);
                }
            }
        }
        let sums = [(scratch.key_sums, writes[1], width), (scratch.value_sums, writes[2], value_width)];
        for (from, to, width) in sums {
            for i in 0..keys {
                let row = attention.key_row(example, kv_head, key + i, width);
                // SAFETY: a row of this unit's keys or values, and the sum for it.
                unsafe { std::ptr::copy_nonoverlapping(from.add(i * width), to.cast::<T>().add(row), width) }
            }
        }
    }
}

/// Leaves the weights of a block in `scratch.scores`, and the gradients of its scores, times
/// `scale`, in `scratch.score_grads`.
///
/// # Safety
/// Operands and scratch memory are those of a run, the block's keys and values are packed in the
/// scratch memory, and the block is inside the scores.
unsafe fn gradients_of_scores<T: Real>(
    attention: &Attention,
    isa: Isa,
    inputs: &Inputs<T>,
    results: &Results<T>,
    scratch: &Scratch<T>,
    block: &ScoreBlock,
    scale: T,
) {
    let &Attention { heads, width, value_width, .. } = attention;
    let &ScoreBlock { example, head, query, queries, keys, .. } = block;
    let rows = inputs.queries.wrapping_add(attention.query_row(example, head, query, width));
    let grads = results.grads.wrapping_add(attention.query_row(example, head, query, value_width));
    let out = results.out.wrapping_add(attention.query_row(example, head, query, value_width));
    let log_sums = results.log_sums.wrapping_add((example * heads + head) * attention.queries + query);
    // SAFETY: guaranteed by the caller.
    unsafe {
        let stride = heads * value_width;
        T::multiply(isa, &products(block, rows, heads * width, width, scratch.keys_t, scratch.scores));
        T::multiply(isa, &products(block, grads, stride, value_width, scratch.values_t, scratch.score_grads));
        for i in 0..queries {
            // The sum over all keys of weight times gradient, which the softmax subtracts.
            let shared = dot(isa, grads.add(i * stride), out.add(i * stride), value_width);
            let row = attention.row(isa, inputs, scratch, block, i);
            score_grads(isa, &row, scratch.score_grads.add(i * keys), *log_sums.add(i), shared, scale);
        }
    }
}

/// Writes the gradients of the scores of one unit: a block of queries of one head.
///
/// # Safety
/// Same as [`Attention::run`].
pub(super) unsafe fn scores<T: Real>(
    attention: &Attention,
    isa: Isa,
    unit: usize,
    reads: &[*const u8],
    writes: &[*mut u8],
    scratch: &Scratch<T>,
) {
    let &Attention { kv_heads, width, value_width, .. } = attention;
    let inputs = attention.inputs::<T>(reads);
    let results = Results::new(&inputs, reads);
    let (example, head, queries) = attention.query_unit(unit);
    let kv_head = head / attention.group();
    let row = (example * attention.heads + head) * attention.queries + queries.start;
    let out = writes[0].cast::<T>().wrapping_add(row * attention.keys);
    for (key, keys) in key_blocks(0..attention.keys) {
        let block = ScoreBlock { example, head, query: queries.start, queries: queries.len(), key, keys };
        let key_rows = inputs.keys.wrapping_add(attention.key_row(example, kv_head, key, width));
        let value_rows = inputs.values.wrapping_add(attention.key_row(example, kv_head, key, value_width));
        // SAFETY: the rows of this block are inside the operands and the result, and the scratch
        // memory has room for a block (`scratch_lens`).
        unsafe {
            T::pack_transposed(isa, key_rows, kv_heads * width, width, keys, scratch.keys_t);
            T::pack_transposed(isa, value_rows, kv_heads * value_width, value_width, keys, scratch.values_t);
            gradients_of_scores(attention, isa, &inputs, &results, scratch, &block, T::ONE);
            for i in 0..queries.len() {
                let from = scratch.score_grads.add(i * keys);
                std::ptr::copy_nonoverlapping(from, out.add(i * attention.keys + key), keys);
            }
        }
    }
}

/// Returns the number of chunks of the last phase.
pub(super) fn sum_chunks(attention: &Attention) -> usize {
    attention.queries_len().div_ceil(SUM_CHUNK)
}

/// Sums a chunk of the queries' gradients over the parts of the keys.
///
/// # Safety
/// Same as [`Attention::run`].
pub(super) unsafe fn sum_splits<T: Real>(
    attention: &Attention,
    chunk: usize,
    partial: *const T,
    out: *mut T,
) {
    let len = attention.queries_len();
    let range = partition::part(len, sum_chunks(attention), chunk);
    // SAFETY: this chunk's part of the result, and of the gradient of each part of the keys.
    unsafe {
        let out = std::slice::from_raw_parts_mut(out.add(range.start), range.len());
        std::ptr::copy_nonoverlapping(partial.add(range.start), out.as_mut_ptr(), range.len());
        for split in 1..attention.splits() {
            let more = std::slice::from_raw_parts(partial.add(split * len + range.start), range.len());
            out.iter_mut().zip(more).for_each(|(o, &m)| *o = o.add(m));
        }
    }
}
