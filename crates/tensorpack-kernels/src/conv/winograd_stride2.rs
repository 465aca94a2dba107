//! Winograd convolution F(2x2, 2x2) for 4x4 filters with stride 2, and their input gradients.
//!
//! Along each axis, the even taps of such a filter read every other input, and the odd taps those in
//! between: with stride 2, a 4x4 filter is the sum of four 2x2 filters with stride 1, one for each
//! *phase* of the input. In an input gradient (a transposed convolution) the phases are those of the
//! output. A 2x2 tile of outputs of a 2x2 filter reads a 3x3 tile of inputs and takes 9 products for
//! each pair of channels instead of 16. The transforms use only additions, so small integers stay
//! exact.
//!
//! A *plane* holds one of the 9 elements of all transformed tiles. In a convolution the phases of a
//! tile follow each other in it, so that one product adds them up. In an input gradient the phases
//! are computed one after another.

use std::ops::Range;

use crate::Block;
use crate::conv::conv2d::Conv2d;
use crate::conv::correlation::{Correlation, PACK_COLS};
use crate::conv::winograd_tiles::plane;
use crate::partition;

/// Elements of a 3x3 input tile, and planes of a phase.
pub(crate) const PLANES: usize = 9;
/// Taps of the filter along each axis, and its stride.
pub(crate) const TAPS: usize = 4;
const STRIDE: usize = 2;
/// Outputs of a phase along each side of a tile.
pub(crate) const TILE: usize = 2;
/// Phases of both axes together.
pub(crate) const PHASES: usize = 4;
/// Tiles per chunk.
const CHUNK_TILES: usize = 64;
/// Bytes of the transformed tiles that are multiplied at a time.
const TILE_BYTES: usize = 768 << 10;
/// Enough chunks for all threads.
const ENOUGH_CHUNKS: usize = 16;
/// Fewest panels of a block of columns: each block transforms the input again.
const FEWEST_PANELS: usize = 2;

/// Returns whether the algorithm applies: 4x4 filters, stride 2, dilation 1.
pub(crate) fn applies(c: &Conv2d) -> bool {
    (c.kernel, c.stride, c.dilation) == ([TAPS; 2], [STRIDE; 2], [1; 2])
}

/// A convolution, or its input gradient, divided into tiles and chunks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WinogradStride2 {
    work: Correlation,
    /// Tiles along each axis of an image: 2x2 outputs of every phase.
    count: [usize; 2],
    /// Groups of tile rows, and blocks of columns (output channels).
    groups: usize,
    col_blocks: usize,
}

/// One phase along one axis.
#[derive(Clone, Copy, Debug)]
struct Phase {
    /// Tile `t` reads inputs `first + tile_step * t + step * c` for `c` in 0..3.
    first: isize,
    tile_step: usize,
    step: usize,
    /// The two taps of its filter.
    taps: [usize; 2],
    /// Tile `t` computes outputs `out_first + out_step * (2 * t + e)` for `e` in 0..2; there are
    /// `outs` in the image.
    out_first: usize,
    out_step: usize,
    outs: usize,
}

impl WinogradStride2 {
    /// Divides `work` into tiles and chunks.
    pub(crate) fn new(work: &Correlation) -> WinogradStride2 {
        let count = work.out_size().map(|n| n.div_ceil(WinogradStride2::tile(work)));
        let rows = work.conv.batch * count[0];
        let groups = rows.div_ceil((CHUNK_TILES / count[1].max(1)).max(1));
        let panels = work.out_channels().div_ceil(PACK_COLS);
        let col_blocks = ENOUGH_CHUNKS.div_ceil(groups.max(1)).min(panels / FEWEST_PANELS).max(1);
        WinogradStride2 { work: *work, count, groups, col_blocks }
    }

    /// Returns the outputs along each side of a tile: of an input gradient, those of two phases.
    pub(crate) fn tile(work: &Correlation) -> usize {
        if work.backward { STRIDE * TILE } else { TILE }
    }

    /// Returns the phases of the input that one product adds up, and those of the output.
    fn phases(&self) -> (usize, usize) {
        if self.work.backward { (1, PHASES) } else { (PHASES, 1) }
    }

    /// Returns phase 0 or 1 of an axis.
    fn phase(&self, axis: usize, phase: usize) -> Phase {
        let pad = self.work.conv.pad_low[axis];
        let out_size = self.work.out_size()[axis];
        if !self.work.backward {
            return Phase {
                first: phase as isize - pad as isize,
                tile_step: STRIDE * TILE,
                step: STRIDE,
                taps: [phase, phase + STRIDE],
                out_first: 0,
                out_step: 1,
                outs: out_size,
            };
        }
        // Tap k takes output o to input 2 * o + k - pad. Inputs 2 * u + phase have taps of one
        // parity, the first of which reads output u + offset, and the second the one before.
        let parity = (phase + pad) % STRIDE;
        let offset = (phase + pad) / STRIDE;
        Phase {
            first: offset as isize - 1,
            tile_step: TILE,
            step: 1,
            taps: [parity + STRIDE, parity],
            out_first: phase,
            out_step: STRIDE,
            outs: out_size.saturating_sub(phase).div_ceil(STRIDE),
        }
    }

    pub(crate) fn chunks(&self) -> usize {
        self.groups * self.col_blocks
    }

    /// Returns the taps of a phase, row by row: of each, its position along both axes.
    pub(crate) fn taps(&self, phase: usize) -> [[usize; 2]; 4] {
        let (y, x) = (self.phase(0, phase / 2).taps, self.phase(1, phase % 2).taps);
        std::array::from_fn(|i| [y[i / 2], x[i % 2]])
    }

    /// Returns the number of tiles in the whole batch.
    pub(crate) fn tiles(&self) -> usize {
        self.work.conv.batch * self.count[0] * self.count[1]
    }

    /// Returns the image of a tile, and its position in it: row and column of tiles.
    pub(crate) fn position(&self, tile: usize) -> (usize, usize, usize) {
        let (row, x) = (tile / self.count[1], tile % self.count[1]);
        (row / self.count[0], row % self.count[0], x)
    }

    /// Returns the tile rows of a chunk, counted over all images.
    fn rows(&self, chunk: usize) -> Range<usize> {
        partition::part(self.work.conv.batch * self.count[0], self.groups, chunk % self.groups)
    }

    /// Returns the columns of a chunk. Chunks with the same columns follow each other.
    fn cols(&self, chunk: usize) -> Range<usize> {
        let outputs = self.work.out_channels();
        let panels = partition::part(outputs.div_ceil(PACK_COLS), self.col_blocks, chunk / self.groups);
        panels.start * PACK_COLS..(panels.end * PACK_COLS).min(outputs)
    }

    /// Returns the block of the output that a chunk computes.
    pub(crate) fn block(&self, chunk: usize) -> Block {
        let [height, width] = self.work.out_size();
        let tile = WinogradStride2::tile(&self.work);
        let pixel =
            |row: usize| (row / self.count[0] * height + (row % self.count[0] * tile).min(height)) * width;
        let rows = self.rows(chunk);
        Block { rows: pixel(rows.start)..pixel(rows.end), cols: self.cols(chunk) }
    }

    /// Returns the number of elements of the transformed filter.
    pub(crate) fn shared_len(&self) -> usize {
        PHASES * PLANES * self.work.in_channels() * self.work.out_channels().next_multiple_of(PACK_COLS)
    }

    fn tiles_at_once(&self) -> usize {
        let bytes = PLANES * self.phases().0 * self.work.in_channels() * size_of::<f32>();
        (TILE_BYTES / bytes.max(1)).clamp(14, CHUNK_TILES)
    }

    /// Returns the number of elements of scratch memory: zeros for a pixel beyond the edges, then a
    /// chunk's transformed tiles and their products; or the taps of some columns of the filter.
    pub(crate) fn scratch_len(&self) -> usize {
        let (at_once, inputs) = (self.tiles_at_once(), self.work.in_channels());
        let tiles = PLANES * (plane(at_once, self.phases().0 * inputs) + plane(at_once, PACK_COLS));
        (TAPS * TAPS * inputs * PACK_COLS).max(inputs.next_multiple_of(16) + tiles)
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod fast {
    use std::arch::x86_64::{__m256, __m512};

    use super::*;
    use crate::conv::kernel_table::WinogradKernels;
    use crate::conv::winograd_transform::{OutputTile, put_tile};
    use crate::gemm::contract::Operands;
    use crate::gemm::microkernel::{Prefetch, Tile};
    use crate::gemm::pack;
    use crate::simd::Simd;

    /// The transforms of F(2x2, 2x2) for one instruction set.
    pub(crate) struct Transforms {
        /// Transforms the four taps of a phase (`len` floats each, whole vectors) into 9 planes,
        /// `plane` floats apart.
        filter: unsafe fn(&[*const f32; 4], usize, *mut f32, usize),
        /// Transforms a 3x3 input tile of `channels` channels into 9 planes.
        pub(crate) input: unsafe fn(&[*const f32; PLANES], usize, *mut f32, usize),
        /// Transforms 9 planes of products into a 2x2 output tile.
        output: unsafe fn(&OutputTile, *const f32, usize),
        /// Transforms a 2x2 tile of the output gradient into 9 planes.
        pub(crate) gradient: unsafe fn(&[*const f32; 4], usize, *mut f32, usize),
        /// Transforms 9 planes of sums, `plane` floats apart, into `cols` columns of the gradient
        /// of four taps.
        pub(crate) taps: unsafe fn(*const f32, usize, usize, &[*mut f32; 4]),
    }

    // Functions instead of closures, as in `winograd_transform`.

    #[inline(always)]
    unsafe fn filter_line<V: Simd<Element = f32>>(g: [V; 2]) -> [V; 3] {
        // SAFETY: the caller has the instructions.
        unsafe { [g[0], g[0].add(g[1]), g[1]] }
    }

    #[inline(always)]
    unsafe fn input_line<V: Simd<Element = f32>>(d: [V; 3]) -> [V; 3] {
        // SAFETY: the caller has the instructions.
        unsafe { [d[0].sub(d[1]), d[1], d[1].sub(d[2])] }
    }

    #[inline(always)]
    unsafe fn output_line<V: Simd<Element = f32>>(m: [V; 3]) -> [V; 2] {
        // SAFETY: the caller has the instructions.
        unsafe { [m[0].add(m[1]), m[1].sub(m[2])] }
    }

    #[inline(always)]
    unsafe fn gradient_line<V: Simd<Element = f32>>(d: [V; 2]) -> [V; 3] {
        // SAFETY: the caller has the instructions.
        unsafe { [d[0], d[0].add(d[1]), V::zero().sub(d[1])] }
    }

    #[inline(always)]
    unsafe fn taps_line<V: Simd<Element = f32>>(u: [V; 3]) -> [V; 2] {
        // SAFETY: the caller has the instructions.
        unsafe { [u[0].add(u[1]), u[1].add(u[2])] }
    }

    /// Loads the first lanes of three pixels, from channel `at` on.
    #[inline(always)]
    unsafe fn load_pixels<V: Simd<Element = f32>>(
        pixels: [*const f32; 3],
        at: usize,
        lanes: usize,
    ) -> [V; 3] {
        let [a, b, c] = pixels;
        // SAFETY: guaranteed by the caller.
        unsafe {
            [
                V::load_first(a.add(at), lanes),
                V::load_first(b.add(at), lanes),
                V::load_first(c.add(at), lanes),
            ]
        }
    }

    /// Loads row `y` of the products of a tile from its planes.
    #[inline(always)]
    unsafe fn load_products<V: Simd<Element = f32>>(from: *const f32, plane: usize, y: usize) -> [V; 3] {
        // SAFETY: guaranteed by the caller.
        unsafe {
            [
                V::load(from.add(3 * y * plane)),
                V::load(from.add((3 * y + 1) * plane)),
                V::load(from.add((3 * y + 2) * plane)),
            ]
        }
    }

    /// Writes the columns of a transformed tile to its 9 planes. Unrolled by hand, so that all stay
    /// in registers.
    #[inline(always)]
    unsafe fn store_tile<V: Simd<Element = f32>>(
        columns: [[V; 3]; 3],
        to: *mut f32,
        plane: usize,
        lanes: usize,
    ) {
        macro_rules! planes {
            ($($plane:literal)*) => {$(
                // SAFETY: guaranteed by the caller.
                unsafe { columns[$plane % 3][$plane / 3].store_first(to.add($plane * plane), lanes) };
            )*};
        }
        planes!(0 1 2 3 4 5 6 7 8);
    }

    #[inline(always)]
    unsafe fn filter<V: Simd<Element = f32>>(taps: &[*const f32; 4], len: usize, to: *mut f32, plane: usize) {
        for at in (0..len).step_by(V::LANES) {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let a = filter_line([V::load(taps[0].add(at)), V::load(taps[1].add(at))]);
                let b = filter_line([V::load(taps[2].add(at)), V::load(taps[3].add(at))]);
                let columns =
                    [filter_line([a[0], b[0]]), filter_line([a[1], b[1]]), filter_line([a[2], b[2]])];
                store_tile(columns, to.add(at), plane, V::LANES);
            }
        }
    }

    #[inline(always)]
    unsafe fn input<V: Simd<Element = f32>>(
        pixels: &[*const f32; PLANES],
        channels: usize,
        to: *mut f32,
        plane: usize,
    ) {
        let [p0, p1, p2, p3, p4, p5, p6, p7, p8] = *pixels;
        for at in (0..channels).step_by(V::LANES) {
            let lanes = (channels - at).min(V::LANES);
            // SAFETY: guaranteed by the caller.
            unsafe {
                let a = input_line(load_pixels::<V>([p0, p1, p2], at, lanes));
                let b = input_line(load_pixels::<V>([p3, p4, p5], at, lanes));
                let c = input_line(load_pixels::<V>([p6, p7, p8], at, lanes));
                let columns = [
                    input_line([a[0], b[0], c[0]]),
                    input_line([a[1], b[1], c[1]]),
                    input_line([a[2], b[2], c[2]]),
                ];
                store_tile(columns, to.add(at), plane, lanes);
            }
        }
    }

    #[inline(always)]
    unsafe fn output<V: Simd<Element = f32>>(tile: &OutputTile, from: *const f32, plane: usize) {
        for at in (0..tile.cols).step_by(V::LANES) {
            // SAFETY: guaranteed by the caller; rows of products are whole vectors.
            unsafe {
                let from = from.add(at);
                let a = output_line(load_products::<V>(from, plane, 0));
                let b = output_line(load_products::<V>(from, plane, 1));
                let c = output_line(load_products::<V>(from, plane, 2));
                let left = output_line([a[0], b[0], c[0]]);
                put_tile(tile, at, [left, output_line([a[1], b[1], c[1]])]);
            }
        }
    }

    #[inline(always)]
    unsafe fn gradient<V: Simd<Element = f32>>(
        pixels: &[*const f32; 4],
        channels: usize,
        to: *mut f32,
        plane: usize,
    ) {
        for at in (0..channels).step_by(V::LANES) {
            let lanes = (channels - at).min(V::LANES);
            // SAFETY: guaranteed by the caller; the planes have room for whole vectors.
            unsafe {
                let [a, b, c] = load_pixels::<V>([pixels[0], pixels[1], pixels[2]], at, lanes);
                let d = V::load_first(pixels[3].add(at), lanes);
                let (a, b) = (gradient_line([a, b]), gradient_line([c, d]));
                let columns =
                    [gradient_line([a[0], b[0]]), gradient_line([a[1], b[1]]), gradient_line([a[2], b[2]])];
                store_tile(columns, to.add(at), plane, V::LANES);
            }
        }
    }

    #[inline(always)]
    unsafe fn taps<V: Simd<Element = f32>>(from: *const f32, plane: usize, cols: usize, to: &[*mut f32; 4]) {
        for at in (0..cols).step_by(V::LANES) {
            let lanes = (cols - at).min(V::LANES);
            // SAFETY: guaranteed by the caller; rows of sums are whole vectors.
            unsafe {
                let from = from.add(at);
                let a = taps_line(load_products::<V>(from, plane, 0));
                let b = taps_line(load_products::<V>(from, plane, 1));
                let c = taps_line(load_products::<V>(from, plane, 2));
                let (left, right) = (taps_line([a[0], b[0], c[0]]), taps_line([a[1], b[1], c[1]]));
                left[0].store_first(to[0].add(at), lanes);
                right[0].store_first(to[1].add(at), lanes);
                left[1].store_first(to[2].add(at), lanes);
                right[1].store_first(to[3].add(at), lanes);
            }
        }
    }

    macro_rules! transforms {
        ($name:ident, $vector:ty, $features:literal) => {
            pub(crate) static $name: Transforms = {
                #[target_feature(enable = $features)]
                unsafe fn filter_transform(taps: &[*const f32; 4], len: usize, to: *mut f32, plane: usize) {
                    // SAFETY: guaranteed by the caller.
                    unsafe { filter::<$vector>(taps, len, to, plane) }
                }
                #[target_feature(enable = $features)]
                unsafe fn input_transform(
                    pixels: &[*const f32; PLANES],
                    len: usize,
                    to: *mut f32,
                    plane: usize,
                ) {
                    // SAFETY: guaranteed by the caller.
                    unsafe { input::<$vector>(pixels, len, to, plane) }
                }
                #[target_feature(enable = $features)]
                unsafe fn output_transform(tile: &OutputTile, from: *const f32, plane: usize) {
                    // SAFETY: guaranteed by the caller.
                    unsafe { output::<$vector>(tile, from, plane) }
                }
                #[target_feature(enable = $features)]
                unsafe fn gradient_transform(
                    pixels: &[*const f32; 4],
                    len: usize,
                    to: *mut f32,
                    plane: usize,
                ) {
                    // SAFETY: guaranteed by the caller.
                    unsafe { gradient::<$vector>(pixels, len, to, plane) }
                }
                #[target_feature(enable = $features)]
                unsafe fn taps_transform(from: *const f32, plane: usize, cols: usize, to: &[*mut f32; 4]) {
                    // SAFETY: guaranteed by the caller.
                    unsafe { taps::<$vector>(from, plane, cols, to) }
                }
                Transforms {
                    filter: filter_transform,
                    input: input_transform,
                    output: output_transform,
                    gradient: gradient_transform,
                    taps: taps_transform,
                }
            };
        };
    }
    transforms!(AVX512, __m512, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");
    transforms!(AVX2, __m256, "avx2,fma");

    impl WinogradStride2 {
        /// Transforms one group of columns of the filter: panel after panel, and in each the planes
        /// of all phases.
        ///
        /// # Safety
        /// The filter `w` is valid, `shared` and `scratch` have the required sizes, the CPU
        /// supports the instructions of `V`.
        pub(crate) unsafe fn pack<V: WinogradKernels>(
            &self,
            group: usize,
            w: *const f32,
            shared: *mut f32,
            scratch: &mut [u8],
        ) {
            let work = &self.work;
            let (inputs, outputs) = (work.in_channels(), work.out_channels());
            let cols = group * PACK_COLS..((group + 1) * PACK_COLS).min(outputs);
            let taps = scratch.as_mut_ptr().cast::<f32>();
            let (adds, _) = self.phases();
            for col in cols.clone().step_by(2 * V::LANES) {
                let here = (cols.end - col).min(2 * V::LANES);
                let width = pack::width(here, V::LANES);
                let len = inputs * width;
                // SAFETY: one tap of the filter after another, and its part of the scratch memory;
                // the panels of each phase have room for its planes.
                unsafe {
                    for tap in 0..TAPS * TAPS {
                        let (from, to) = (w.add(tap * inputs * outputs), taps.add(tap * len));
                        match work.backward {
                            false => pack::pack_rows(from.add(col), outputs, inputs, here, to, width),
                            true => {
                                pack::pack_columns(from.add(col * inputs), inputs, inputs, here, to, width)
                            }
                        }
                    }
                    let panel = shared.add(col * PHASES * PLANES * inputs);
                    for phase in 0..PHASES {
                        let four = self
                            .taps(phase)
                            .map(|[y, x]| taps.wrapping_add((y * TAPS + x) * len).cast_const());
                        // Phases that are added up follow each other in every plane.
                        let first = if adds > 1 { phase * len } else { phase * PLANES * len };
                        (V::STRIDE2.filter)(&four, len, panel.add(first), adds * len);
                    }
                }
            }
        }

        /// Computes the outputs of one chunk.
        ///
        /// # Safety
        /// Same as [`crate::Contract::run_f32`], on a CPU that supports the instructions of `V`;
        /// the filter is packed.
        pub(crate) unsafe fn run<V: WinogradKernels>(
            &self,
            chunk: usize,
            mem: Operands<f32>,
            scratch: &mut [u8],
            finish: &mut dyn FnMut(Block),
        ) {
            let (inputs, out_cols) = (self.work.in_channels(), self.cols(chunk));
            let rows = self.rows(chunk);
            let first_tile = rows.start * self.count[1];
            let (adds, outs) = self.phases();
            let depth = adds * inputs;
            let zeros = scratch.as_mut_ptr().cast::<f32>();
            // SAFETY: the scratch memory begins with room for a pixel.
            unsafe { zeros.write_bytes(0, inputs) };
            let images = zeros.wrapping_add(inputs.next_multiple_of(16));
            for part in partition::parts(rows.len() * self.count[1], self.tiles_at_once()) {
                let (tiles, image_plane) = (part.len(), plane(part.len(), depth));
                let first_tile = first_tile + part.start;
                let products = images.wrapping_add(PLANES * image_plane);
                // The phases of the output one after another: each has its own transformed tiles.
                for phase in 0..outs {
                    for (tile, add) in (0..tiles).flat_map(|tile| (0..adds).map(move |add| (tile, add))) {
                        let pixels = self.pixels(phase + add, first_tile + tile, mem.lhs, zeros);
                        let to = images.wrapping_add(tile * depth + add * inputs);
                        // SAFETY: the pixels are the image's, or zeros; each tile has its own part
                        // of the scratch memory.
                        unsafe { (V::STRIDE2.input)(&pixels, inputs, to, image_plane) }
                    }
                    for col in out_cols.clone().step_by(2 * V::LANES) {
                        let cols = (out_cols.end - col).min(2 * V::LANES);
                        let panel_width = pack::width(cols, V::LANES);
                        let product_plane = plane(tiles, panel_width);
                        let panel = col * PHASES * PLANES * inputs + phase * PLANES * depth * panel_width;
                        let panel = mem.shared.cast::<f32>().wrapping_add(panel);
                        for plane in 0..PLANES {
                            let b = panel.wrapping_add(plane * depth * panel_width);
                            let tile = Tile {
                                images: 1,
                                segments: 1,
                                steps: depth,
                                a: images.wrapping_add(plane * image_plane),
                                a_stride: depth,
                                a_segment: 0,
                                a_image: 0,
                                b,
                                b_step: panel_width,
                                b_segment: 0,
                                b_image: 0,
                                c: products.wrapping_add(plane * product_plane),
                                c_row: panel_width,
                                cols: panel_width,
                                add: false,
                                prefetch: Prefetch::none(b),
                            };
                            // SAFETY: tiles and filter are transformed, and the scratch memory has
                            // room for the products.
                            unsafe { tile.run::<V>(tiles, true) }
                        }
                        for tile in 0..tiles {
                            let at = self.output_tile(phase, first_tile + tile, col, cols, mem);
                            // SAFETY: a tile of the output, and its products.
                            unsafe {
                                (V::STRIDE2.output)(&at, products.add(tile * panel_width), product_plane);
                            }
                        }
                    }
                }
            }
            finish(self.block(chunk));
        }

        /// Returns the input pixels that a phase of a tile reads; `zeros` stands for pixels beyond
        /// the edges.
        pub(crate) fn pixels(
            &self,
            phase: usize,
            tile: usize,
            data: *const f32,
            zeros: *const f32,
        ) -> [*const f32; PLANES] {
            let ([height, width], channels) = (self.work.in_size(), self.work.in_channels());
            let (image, y, x) = self.position(tile);
            let (down, across) = (self.phase(0, phase / 2), self.phase(1, phase % 2));
            let at = |p: &Phase, tile: usize, c: usize, size: usize| {
                let at = p.first + (tile * p.tile_step + c * p.step) as isize;
                (0..size as isize).contains(&at).then_some(at as usize)
            };
            std::array::from_fn(|i| match (at(&down, y, i / 3, height), at(&across, x, i % 3, width)) {
                (Some(y), Some(x)) => data.wrapping_add(((image * height + y) * width + x) * channels),
                _ => zeros,
            })
        }

        /// Returns some columns of a phase of a tile of the output.
        fn output_tile(
            &self,
            phase: usize,
            tile: usize,
            col: usize,
            cols: usize,
            mem: Operands<f32>,
        ) -> OutputTile {
            let ([height, width], outputs) = (self.work.out_size(), self.work.out_channels());
            let (image, y, x) = self.position(tile);
            let (down, across) = (self.phase(0, phase / 2), self.phase(1, phase % 2));
            let (first_y, first_x) =
                (down.out_first + down.out_step * TILE * y, across.out_first + across.out_step * TILE * x);
            let pixel = (image * height + first_y) * width + first_x;
            OutputTile {
                first: mem.out.wrapping_add(pixel * outputs + col),
                row: down.out_step * width * outputs,
                pixel: across.out_step * outputs,
                size: [
                    down.outs.saturating_sub(TILE * y).min(TILE),
                    across.outs.saturating_sub(TILE * x).min(TILE),
                ],
                cols,
                bias: mem.bias.at(col),
            }
        }
    }
}
