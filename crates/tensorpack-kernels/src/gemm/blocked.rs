//! Blocked matrix multiplication: the vectorized computation of one chunk.
//!
//! A panel of the right operand, one tile wide and up to [`DEPTH`] steps deep, is packed and used
//! for all rows of the block. Packing is skipped if the block has few rows, or if the operand is
//! already stored in panels. The left operand is read in place where the steps of a row are
//! contiguous, which suits the micro-kernel as well as packed rows do; otherwise an earlier phase
//! has packed it, tile by tile.

use std::ops::{AddAssign, Range};

use crate::Block;
use crate::gemm::contract::Operands;
use crate::gemm::matmul::{DEPTH, MatMul, Part, Stage};
use crate::gemm::microkernel::{Prefetch, Tile, TileKernels, sum_partials};
use crate::gemm::pack::{self, PackElement};
use crate::partition;

/// Runs one chunk of a folded product.
///
/// # Safety
/// The CPU supports the instructions of `V`, and the conditions of
/// [`Contract::run_f32`](crate::Contract::run_f32) hold.
pub(crate) unsafe fn run<V: TileKernels<Element: PackElement + AddAssign>>(
    product: &MatMul,
    phase: usize,
    chunk: usize,
    mem: Operands<V::Element>,
    scratch: &mut [u8],
    finish: &mut dyn FnMut(Block),
) {
    let blocking = product.blocking();
    let shared = mem.shared.cast::<V::Element>();
    let out_len = product.batch * product.m * product.n;
    match MatMul::stage(&blocking, phase) {
        Stage::PackLhs => {
            let (lhs_batch, _, lhs_step) = product.lhs_strides();
            let p = product.packing(&blocking, chunk);
            let from = p.batch * lhs_batch + (p.depth.start + p.steps.start) * lhs_step + p.rows.start;
            let to = p.batch * lhs_batch + p.depth.start * product.m + p.rows.start * p.depth.len();
            for tile in partition::parts(p.rows.len(), tile_rows::<V>(product)) {
                let to = to + tile.start * p.depth.len() + p.steps.start * tile.len();
                let from = mem.lhs.wrapping_add(from + tile.start);
                // SAFETY: rows and steps of the operand, and the same part of the shared memory,
                // which has the operand's size.
                unsafe { pack::pack_tile(from, lhs_step, p.steps.len(), tile.len(), shared.wrapping_add(to)) }
            }
        }
        Stage::Multiply => {
            let part = product.part(&blocking, chunk);
            let lhs = if blocking.packs_lhs { shared.cast_const() } else { mem.lhs };
            let out = if blocking.slices > 1 { shared.wrapping_add(part.slice * out_len) } else { mem.out };
            let steps = partition::part(product.k, blocking.slices, part.slice);
            // SAFETY: each chunk has its own block of its own slice; the rest is guaranteed by the
            // caller.
            unsafe {
                multiply::<V>(
                    product,
                    &part,
                    steps,
                    blocking.packs_lhs,
                    Operands { lhs, out, ..mem },
                    scratch,
                )
            }
            if blocking.slices == 1 {
                finish(product.out_block(&part));
            }
        }
        Stage::AddSlices => {
            let block = product.sum_block(chunk);
            let elements = block.rows.start * product.n..block.rows.end * product.n;
            // SAFETY: all slices are complete, and this chunk owns these rows of the output.
            unsafe { sum_partials(shared, out_len, blocking.slices, mem.out, elements) }
            finish(block);
        }
    }
}

/// Returns the number of columns of every panel but the last.
fn tile_cols<V: TileKernels>(product: &MatMul) -> usize {
    // A wider panel would split the few rows into more tiles, and every tile reads the whole panel.
    let few = product.m <= 2 * V::max_rows(2, true);
    let widest = if product.rhs_panels || few { 2 * V::LANES } else { V::MAX_COLS };
    pack::width(product.n, V::LANES).min(widest)
}

/// Returns the maximum number of rows of a tile.
fn tile_rows<V: TileKernels>(product: &MatMul) -> usize {
    V::max_rows(tile_cols::<V>(product) / V::LANES, !product.lhs_transposed)
}

/// # Safety
/// Same as [`run`]; `mem.out` is the matrix that receives the part, and `mem.lhs` the left operand,
/// packed or not.
unsafe fn multiply<V: TileKernels<Element: PackElement>>(
    product: &MatMul,
    part: &Part,
    slice: Range<usize>,
    packed_lhs: bool,
    mem: Operands<V::Element>,
    scratch: &mut [u8],
) {
    let (lhs_batch, lhs_row, lhs_step) = product.lhs_strides();
    let (rhs_batch, rhs_step, rhs_col) = product.rhs_strides();
    let lhs = mem.lhs.wrapping_add(part.batch * lhs_batch);
    let rhs = mem.rhs.wrapping_add(part.batch * rhs_batch);
    let out = mem.out.wrapping_add((part.batch * product.m + part.rows.start) * product.n);
    let packed = scratch.as_mut_ptr().cast::<V::Element>();
    let tile_rows = tile_rows::<V>(product);
    let tiles = part.rows.len().div_ceil(tile_rows);
    let widest = tile_cols::<V>(product);
    for steps in partition::parts(slice.len(), DEPTH) {
        let first = slice.start + steps.start;
        for col in part.cols.clone().step_by(widest) {
            let cols = (part.cols.end - col).min(widest);
            let width = pack::width(cols, V::LANES);
            let panel = rhs.wrapping_add(first * rhs_step + product.rhs_column(col));
            // Packing does not pay if only one tile reads the panel, or if it is packed already.
            let in_place = product.rhs_panels
                || !product.rhs_transposed && cols == width && (tiles == 1 || product.n == width);
            // SAFETY: the panel is inside the operand, and `scratch` holds `DEPTH` rows of the
            // widest panel.
            unsafe {
                match (in_place, product.rhs_transposed) {
                    (true, _) => (),
                    (_, false) => pack::pack_rows(panel, rhs_step, steps.len(), cols, packed, width),
                    (_, true) => pack::pack_columns(panel, rhs_col, steps.len(), cols, packed, width),
                }
            }
            // Prefetch the next panel, of this chunk or its neighbor, from where it is stored: it
            // will be packed.
            let next = (product.n - (col + cols)).min(widest);
            let next_panel = rhs.wrapping_add(first * rhs_step + product.rhs_column(col + cols));
            for (i, rows) in partition::parts(part.rows.len(), tile_rows).enumerate() {
                let prefetch = match (in_place || next == 0, product.rhs_transposed) {
                    (true, _) => Prefetch::none(panel),
                    (_, false) => Prefetch::part(next_panel, [steps.len(), next], rhs_step, i, tiles),
                    (_, true) => Prefetch::part(next_panel, [next, steps.len()], rhs_col, i, tiles),
                };
                let (a, a_stride) = if packed_lhs {
                    (first * product.m + (part.rows.start + rows.start) * steps.len(), rows.len())
                } else {
                    let stride = if product.lhs_transposed { lhs_step } else { lhs_row };
                    (first * lhs_step + (part.rows.start + rows.start) * lhs_row, stride)
                };
                let c = out.wrapping_add(rows.start * product.n + col);
                // The output rows are not in cache, and there is time before they are written.
                pack::prefetch(c, product.n, rows.len(), cols);
                let tile = Tile {
                    images: 1,
                    segments: 1,
                    steps: steps.len(),
                    a: lhs.wrapping_add(a),
                    a_stride,
                    a_segment: 0,
                    a_image: 0,
                    b: if in_place { panel } else { packed },
                    b_step: if in_place { rhs_step } else { width },
                    b_segment: 0,
                    b_image: 0,
                    c,
                    c_row: product.n,
                    cols,
                    add: steps.start > 0,
                    prefetch,
                };
                // SAFETY: rows, columns and steps are inside the operands and the output.
                unsafe { tile.run::<V>(rows.len(), !product.lhs_transposed) }
            }
        }
    }
}
