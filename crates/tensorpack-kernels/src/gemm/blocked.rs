//! How a chunk of a matrix product is computed with vectors.
//!
//! A panel of the right operand, one tile wide, is packed, up to [`DEPTH`] steps of it, and used for all rows of the
//! block; few rows are not worth that, nor is a panel that is stored as one. The left operand is read in place where the
//! steps of a row lie side by side, which the inner kernel takes as well as packed rows; else an earlier phase has packed
//! it, tile by tile.

use std::ops::Range;

use crate::Block;
use crate::gemm::contract::Operands;
use crate::gemm::matmul::{DEPTH, MatMul, Part, Stage};
use crate::gemm::microkernel::{Ahead, Tile, TileKernels, sum_partials};
use crate::gemm::pack;
use crate::partition;

/// Runs a chunk of a folded product.
///
/// # Safety
/// The machine has the instructions of `V`, and as for [`Contract::run_f32`](crate::Contract::run_f32).
pub(crate) unsafe fn run<V: TileKernels>(
    product: &MatMul,
    phase: usize,
    chunk: usize,
    mem: Operands<f32>,
    scratch: &mut [u8],
    finish: &mut dyn FnMut(Block),
) {
    let cut = product.cut();
    let shared = mem.shared.cast::<f32>();
    let out_len = product.batch * product.m * product.n;
    match MatMul::stage(&cut, phase) {
        Stage::PackLhs => {
            let (lhs_batch, _, lhs_step) = product.lhs_strides();
            let p = product.packing(&cut, chunk);
            let from = p.batch * lhs_batch + (p.depth.start + p.steps.start) * lhs_step + p.rows.start;
            let to = p.batch * lhs_batch + p.depth.start * product.m + p.rows.start * p.depth.len();
            for tile in partition::parts(p.rows.len(), tile_rows::<V>(product)) {
                let to = to + tile.start * p.depth.len() + p.steps.start * tile.len();
                let from = mem.lhs.wrapping_add(from + tile.start);
                // SAFETY: rows and steps of the operand, and as much of the shared memory, which has its size.
                unsafe { pack::pack_tile(from, lhs_step, p.steps.len(), tile.len(), shared.wrapping_add(to)) }
            }
        }
        Stage::Multiply => {
            let part = product.part(&cut, chunk);
            let lhs = if cut.packs_lhs { shared.cast_const() } else { mem.lhs };
            let out = if cut.slices > 1 { shared.wrapping_add(part.slice * out_len) } else { mem.out };
            let steps = partition::part(product.k, cut.slices, part.slice);
            // SAFETY: each chunk has its own block of its own slice; the rest is passed on from the caller.
            unsafe {
                multiply::<V>(product, &part, steps, cut.packs_lhs, Operands { lhs, out, ..mem }, scratch)
            }
            if cut.slices == 1 {
                finish(product.out_block(&part));
            }
        }
        Stage::AddSlices => {
            let block = product.sum_block(chunk);
            let elements = block.rows.start * product.n..block.rows.end * product.n;
            // SAFETY: all slices are complete, and this chunk owns these rows of the output.
            unsafe { sum_partials(shared, out_len, cut.slices, mem.out, elements) }
            finish(block);
        }
    }
}

/// Columns of a panel, but for the last.
fn tile_cols<V: TileKernels>(product: &MatMul) -> usize {
    // Few rows would be cut into more tiles by a wider panel, each of which reads all of it.
    let few = product.m <= 2 * V::tiles(2, true).len();
    let widest = if product.rhs_panels || few { 2 * V::LANES } else { V::MAX_COLS };
    pack::width(product.n, V::LANES).min(widest)
}

/// Rows of a tile at most.
fn tile_rows<V: TileKernels>(product: &MatMul) -> usize {
    V::tiles(tile_cols::<V>(product) / V::LANES, !product.lhs_transposed).len()
}

/// # Safety
/// As for [`run`]; `mem.out` is the matrix that receives the part, and `mem.lhs` the left operand, packed or not.
unsafe fn multiply<V: TileKernels>(
    product: &MatMul,
    part: &Part,
    slice: Range<usize>,
    packed_lhs: bool,
    mem: Operands<f32>,
    scratch: &mut [u8],
) {
    let (lhs_batch, lhs_row, lhs_step) = product.lhs_strides();
    let (rhs_batch, rhs_step, rhs_col) = product.rhs_strides();
    let lhs = mem.lhs.wrapping_add(part.batch * lhs_batch);
    let rhs = mem.rhs.wrapping_add(part.batch * rhs_batch);
    let out = mem.out.wrapping_add((part.batch * product.m + part.rows.start) * product.n);
    let packed = scratch.as_mut_ptr().cast::<f32>();
    let tile_rows = tile_rows::<V>(product);
    let tiles = part.rows.len().div_ceil(tile_rows);
    let widest = tile_cols::<V>(product);
    for steps in partition::parts(slice.len(), DEPTH) {
        let first = slice.start + steps.start;
        for col in part.cols.clone().step_by(widest) {
            let cols = (part.cols.end - col).min(widest);
            let width = pack::width(cols, V::LANES);
            let panel = rhs.wrapping_add(first * rhs_step + product.rhs_column(col));
            // Packing is a waste if the panel serves one tile only, or is packed already.
            let in_place = product.rhs_panels
                || !product.rhs_transposed && cols == width && (tiles == 1 || product.n == width);
            // SAFETY: the panel is inside the operand, and `scratch` holds `DEPTH` rows of the widest.
            unsafe {
                match (in_place, product.rhs_transposed) {
                    (true, _) => (),
                    (_, false) => pack::pack_rows(panel, rhs_step, steps.len(), cols, packed, width),
                    (_, true) => pack::pack_columns(panel, rhs_col, steps.len(), cols, packed, width),
                }
            }
            // The next panel, for this chunk or its neighbour, as it is stored: it will be packed.
            let next = (product.n - (col + cols)).min(widest);
            let next_panel = rhs.wrapping_add(first * rhs_step + product.rhs_column(col + cols));
            for (i, rows) in partition::parts(part.rows.len(), tile_rows).enumerate() {
                let ahead = match (in_place || next == 0, product.rhs_transposed) {
                    (true, _) => Ahead::none(panel),
                    (_, false) => Ahead::part(next_panel, [steps.len(), next], rhs_step, i, tiles),
                    (_, true) => Ahead::part(next_panel, [next, steps.len()], rhs_col, i, tiles),
                };
                let (a, a_stride) = if packed_lhs {
                    (first * product.m + (part.rows.start + rows.start) * steps.len(), rows.len())
                } else {
                    let stride = if product.lhs_transposed { lhs_step } else { lhs_row };
                    (first * lhs_step + (part.rows.start + rows.start) * lhs_row, stride)
                };
                let c = out.wrapping_add(rows.start * product.n + col);
                // They are far away, and there is time until they are written.
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
                    ahead,
                };
                // SAFETY: rows, columns and steps are inside the operands and the output.
                unsafe { tile.run::<V>(rows.len(), !product.lhs_transposed) }
            }
        }
    }
}
