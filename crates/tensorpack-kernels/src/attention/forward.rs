//! The forward pass of a block of queries.

use super::block_rows::{online_softmax, scale_row};
use super::{Attention, ScoreBlock, Scratch, key_blocks, whole_rows};
use crate::Isa;
use crate::gemm::block_product::{BlockProduct, PANEL, Real};

/// Computes the results of one unit: a block of queries of one head.
///
/// # Safety
/// Same as [`Attention::run`].
pub(super) unsafe fn run<T: Real>(
    attention: &Attention,
    isa: Isa,
    unit: usize,
    reads: &[*const u8],
    writes: &[*mut u8],
    scratch: &Scratch<T>,
) {
    let &Attention { heads, kv_heads, width, value_width, .. } = attention;
    let inputs = attention.inputs::<T>(reads);
    let (out, log_sums) = (writes[0].cast::<T>(), writes[1].cast::<T>());
    let (example, head, queries) = attention.query_unit(unit);
    let kv_head = head / attention.group();
    let count = queries.len();
    let (tops, sums) = (scratch.statistics, scratch.statistics.wrapping_add(count));
    for i in 0..count {
        // SAFETY: the statistics have room for two numbers per query.
        unsafe {
            *tops.add(i) = T::LOWEST;
            *sums.add(i) = T::ZERO;
        }
    }
    let query_rows = inputs.queries.wrapping_add(attention.query_row(example, head, queries.start, width));
    for (key, keys) in key_blocks(0..attention.keys_seen(&queries)) {
        let block = ScoreBlock { example, head, query: queries.start, queries: count, key, keys };
        let key_rows = inputs.keys.wrapping_add(attention.key_row(example, kv_head, key, width));
        let value_rows = inputs.values.wrapping_add(attention.key_row(example, kv_head, key, value_width));
        // SAFETY: the rows of this block are inside the operands, and the scratch memory has room
        // for a block (`scratch_lens`).
        unsafe {
            T::pack_transposed(isa, key_rows, kv_heads * width, width, keys, scratch.keys_t);
            T::multiply(isa, &scores(attention, &block, query_rows, scratch.keys_t, scratch.scores));
            for i in 0..count {
                let row = attention.row(isa, &inputs, scratch, &block, i);
                let shrink = online_softmax(isa, &row, &mut *tops.add(i), &mut *sums.add(i));
                if key > 0 && shrink != T::ONE {
                    let sum = scratch.value_sums.add(i * value_width);
                    scale_row(isa, sum, shrink, sum, value_width);
                }
            }
            let (b, b_step) =
                whole_rows(value_rows, kv_heads * value_width, keys, value_width, scratch.key_rows);
            let weighted = BlockProduct {
                m: count,
                n: value_width,
                k: keys,
                a: scratch.scores,
                a_row: keys,
                a_step: 1,
                b,
                b_step,
                b_panel: PANEL,
                c: scratch.value_sums,
                c_row: value_width,
                add: key > 0,
            };
            T::multiply(isa, &weighted);
        }
    }
    for (i, query) in queries.enumerate() {
        // SAFETY: rows that belong to this unit alone.
        unsafe {
            let to = out.add(attention.query_row(example, head, query, value_width));
            let log_sum = log_sums.add((example * heads + head) * attention.queries + query);
            let sum = *sums.add(i);
            if sum == T::ZERO {
                // No key is visible.
                std::slice::from_raw_parts_mut(to, value_width).fill(T::ZERO);
                *log_sum = T::ZERO;
            } else {
                let from = scratch.value_sums.add(i * value_width);
                scale_row(isa, from, T::ONE.div(sum), to, value_width);
                *log_sum = (*tops.add(i)).add(sum.log::<false>());
            }
        }
    }
}

/// Returns the product of a block of queries with a block of packed keys (or of gradients with
/// packed values).
pub(super) fn scores<T>(
    attention: &Attention,
    block: &ScoreBlock,
    rows: *const T,
    packed: *const T,
    scores: *mut T,
) -> BlockProduct<T> {
    products(block, rows, attention.heads * attention.width, attention.width, packed, scores)
}

/// Returns the products of rows of `width` elements, `stride` apart, with a packed block.
pub(super) fn products<T>(
    block: &ScoreBlock,
    rows: *const T,
    stride: usize,
    width: usize,
    packed: *const T,
    out: *mut T,
) -> BlockProduct<T> {
    BlockProduct {
        m: block.queries,
        n: block.keys,
        k: width,
        a: rows,
        a_row: stride,
        a_step: 1,
        b: packed,
        b_step: PANEL,
        b_panel: width * PANEL,
        c: out,
        c_row: block.keys,
        add: false,
    }
}
