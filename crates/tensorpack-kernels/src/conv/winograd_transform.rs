//! Winograd convolution F(2x2, 3x3): tiles and transforms.
//!
//! Each 2x2 tile of outputs reads a 4x4 tile of the input. After the input and filter transforms
//! the convolution is 16 independent matrix products, one per element of the 4x4 tile: `tiles x
//! in_channels` by `in_channels x out_channels`. That is 16 multiplications per tile and pair of
//! channels instead of 36. The transforms use only additions and halving, so small integers stay
//! exact; the rounding error is that of a few more additions.
//!
//! A *plane* holds one of the 16 elements of all transformed tiles.

use crate::conv::correlation::Correlation;

/// Elements of a 4x4 input tile, and planes of the transformed data.
pub(crate) const PLANES: usize = 16;
/// Outputs along each side of a tile.
pub(crate) const TILE: usize = 2;

/// A convolution, or its input gradient, whose output is divided into 2x2 tiles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WinogradTiles {
    pub(crate) work: Correlation,
    /// Tiles along each axis of an image.
    pub(crate) count: [usize; 2],
    /// The first input pixel that the first tile reads, along each axis.
    first: [isize; 2],
}

impl WinogradTiles {
    /// Returns the tiles of `work`, which has 3x3 filters, stride 1 and dilation 1.
    pub(crate) fn new(work: &Correlation) -> WinogradTiles {
        WinogradTiles {
            work: *work,
            count: work.out_size().map(|n| n.div_ceil(TILE)),
            first: [0, 1].map(|axis| work.axis(axis, 0).offset),
        }
    }

    /// Returns the number of tile rows in the whole batch.
    pub(crate) fn rows(&self) -> usize {
        self.work.conv.batch * self.count[0]
    }

    /// Returns the input pixels that tile `x` of tile row `row` reads; `zeros` stands for pixels
    /// beyond the edges.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn pixels(
        &self,
        row: usize,
        x: usize,
        data: *const f32,
        zeros: *const f32,
    ) -> [*const f32; PLANES] {
        let ([height, width], channels) = (self.work.in_size(), self.work.in_channels());
        let (image, y) = (row / self.count[0], row % self.count[0]);
        let first = [y, x].map(|i| (i * TILE) as isize);
        let first = [first[0] + self.first[0], first[1] + self.first[1]];
        let at = |y: isize, x: isize| {
            let pixel = ((image * height) as isize + y) * width as isize + x;
            data.wrapping_offset(pixel * channels as isize)
        };
        let inside =
            |y: isize, x: isize| (0..height as isize).contains(&y) && (0..width as isize).contains(&x);
        if inside(first[0], first[1]) && inside(first[0] + 3, first[1] + 3) {
            let corner = at(first[0], first[1]);
            return std::array::from_fn(|i| corner.wrapping_add((i / 4 * width + i % 4) * channels));
        }
        std::array::from_fn(|i| {
            let (y, x) = (first[0] + (i / 4) as isize, first[1] + (i % 4) as isize);
            if inside(y, x) { at(y, x) } else { zeros }
        })
    }
}

/// Returns the stride between planes of `tiles` tiles: one cache line more than they take, because
/// planes a power of two apart would evict each other from the cache.
pub(crate) fn plane(tiles: usize, channels: usize) -> usize {
    (tiles * channels).next_multiple_of(16) + 16
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod transforms {
    use std::arch::x86_64::{__m256, __m512};

    use super::*;
    use crate::gemm::contract::Bias;
    use crate::simd::Simd;

    /// The Winograd transforms for one instruction set.
    pub(crate) struct Transforms {
        /// Transforms a 3x3 filter (`len` floats per tap, whole vectors) into 16 planes, `plane`
        /// floats apart.
        pub(crate) filter: unsafe fn(*const f32, usize, *mut f32, usize),
        /// Transforms a 4x4 input tile of `channels` channels into 16 planes.
        pub(crate) input: unsafe fn(&[*const f32; PLANES], usize, *mut f32, usize),
        /// Transforms 16 planes of products into a 2x2 output tile.
        pub(crate) output: unsafe fn(&OutputTile, *const f32, usize),
        /// Transforms a 2x2 tile of the output gradient into 16 planes.
        pub(crate) gradient: unsafe fn(&[*const f32; 4], usize, *mut f32, usize),
        /// Transforms 16 planes of summed products into the gradient of a 3x3 filter.
        pub(crate) taps: unsafe fn(&Partials, *mut f32, usize),
    }

    /// A 2x2 output tile; at the edges only the first `size` pixels along each axis exist.
    pub(crate) struct OutputTile {
        pub(crate) first: *mut f32,
        pub(crate) row: usize,
        pub(crate) pixel: usize,
        pub(crate) size: [usize; 2],
        pub(crate) cols: usize,
        /// Bias and activation applied to each pixel.
        pub(crate) bias: Bias<f32>,
    }

    /// A row of a transformed filter gradient, as several partial sums.
    pub(crate) struct Partials {
        pub(crate) first: *const f32,
        /// The strides between planes, and between partial sums.
        pub(crate) plane: usize,
        pub(crate) part: usize,
        pub(crate) parts: usize,
        pub(crate) cols: usize,
    }

    // Below, whatever works with vectors is a function that is always inlined, never a closure: the
    // compiler may leave a closure as a function of its own, without the instruction set of its
    // caller, and then every operation on a vector is a call.

    #[inline(always)]
    unsafe fn filter_line<V: Simd<Element = f32>>(g: [V; 3], half: V) -> [V; 4] {
        // SAFETY: the caller has the instructions.
        unsafe {
            let (outer, middle) = (g[0].add(g[2]).mul(half), g[1].mul(half));
            [g[0], outer.add(middle), outer.sub(middle), g[2]]
        }
    }

    #[inline(always)]
    unsafe fn input_line<V: Simd<Element = f32>>(d: [V; 4]) -> [V; 4] {
        // SAFETY: the caller has the instructions.
        unsafe { [d[0].sub(d[2]), d[1].add(d[2]), d[2].sub(d[1]), d[1].sub(d[3])] }
    }

    #[inline(always)]
    unsafe fn output_line<V: Simd<Element = f32>>(m: [V; 4]) -> [V; 2] {
        // SAFETY: the caller has the instructions.
        unsafe { [m[0].add(m[1]).add(m[2]), m[1].sub(m[2]).sub(m[3])] }
    }

    #[inline(always)]
    unsafe fn gradient_line<V: Simd<Element = f32>>(d: [V; 2]) -> [V; 4] {
        // SAFETY: the caller has the instructions.
        unsafe { [d[0], d[0].add(d[1]), d[0].sub(d[1]), V::zero().sub(d[1])] }
    }

    #[inline(always)]
    unsafe fn taps_line<V: Simd<Element = f32>>(u: [V; 4], half: V) -> [V; 3] {
        // SAFETY: the caller has the instructions.
        unsafe {
            let (sum, difference) = (u[1].add(u[2]).mul(half), u[1].sub(u[2]).mul(half));
            [u[0].add(sum), difference, u[3].add(sum)]
        }
    }

    /// Writes the columns of a transformed tile to its 16 planes. Unrolled by hand, so that all
    /// stay in registers.
    #[inline(always)]
    unsafe fn store_tile<V: Simd<Element = f32>>(
        columns: [[V; 4]; 4],
        to: *mut f32,
        plane: usize,
        lanes: usize,
    ) {
        macro_rules! planes {
            ($($plane:literal)*) => {$(
                // SAFETY: guaranteed by the caller.
                unsafe { columns[$plane % 4][$plane / 4].store_first(to.add($plane * plane), lanes) };
            )*};
        }
        planes!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    }

    #[inline(always)]
    unsafe fn filter<V: Simd<Element = f32>>(taps: *const f32, len: usize, to: *mut f32, plane: usize) {
        for at in (0..len).step_by(V::LANES) {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let half = V::splat(&0.5);
                let row = |y: usize| {
                    let tap = |x: usize| V::load(taps.add((3 * y + x) * len + at));
                    filter_line([tap(0), tap(1), tap(2)], half)
                };
                let rows = [row(0), row(1), row(2)];
                let column = |x: usize| filter_line([rows[0][x], rows[1][x], rows[2][x]], half);
                store_tile([column(0), column(1), column(2), column(3)], to.add(at), plane, V::LANES);
            }
        }
    }

    /// Loads the first lanes of four pixels, from channel `at` on.
    #[inline(always)]
    unsafe fn load_pixels<V: Simd<Element = f32>>(
        pixels: [*const f32; 4],
        at: usize,
        lanes: usize,
    ) -> [V; 4] {
        let [a, b, c, d] = pixels;
        // SAFETY: guaranteed by the caller.
        unsafe {
            [
                V::load_first(a.add(at), lanes),
                V::load_first(b.add(at), lanes),
                V::load_first(c.add(at), lanes),
                V::load_first(d.add(at), lanes),
            ]
        }
    }

    /// Loads row `y` of the products of a tile from its planes.
    #[inline(always)]
    unsafe fn load_products<V: Simd<Element = f32>>(from: *const f32, plane: usize, y: usize) -> [V; 4] {
        // SAFETY: guaranteed by the caller.
        unsafe {
            [
                V::load(from.add(4 * y * plane)),
                V::load(from.add((4 * y + 1) * plane)),
                V::load(from.add((4 * y + 2) * plane)),
                V::load(from.add((4 * y + 3) * plane)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn input<V: Simd<Element = f32>>(
        pixels: &[*const f32; PLANES],
        channels: usize,
        to: *mut f32,
        plane: usize,
    ) {
        for at in (0..channels).step_by(V::LANES) {
            let lanes = (channels - at).min(V::LANES);
            // SAFETY: guaranteed by the caller.
            unsafe {
                let [p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14, p15] = *pixels;
                let a = input_line(load_pixels::<V>([p0, p1, p2, p3], at, lanes));
                let b = input_line(load_pixels::<V>([p4, p5, p6, p7], at, lanes));
                let c = input_line(load_pixels::<V>([p8, p9, p10, p11], at, lanes));
                let d = input_line(load_pixels::<V>([p12, p13, p14, p15], at, lanes));
                let columns = [
                    input_line([a[0], b[0], c[0], d[0]]),
                    input_line([a[1], b[1], c[1], d[1]]),
                    input_line([a[2], b[2], c[2], d[2]]),
                    input_line([a[3], b[3], c[3], d[3]]),
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
                let d = output_line(load_products::<V>(from, plane, 3));
                let left = output_line([a[0], b[0], c[0], d[0]]);
                put_tile(tile, at, [left, output_line([a[1], b[1], c[1], d[1]])]);
            }
        }
    }

    /// Writes the columns of an output tile, from channel `at` on, with bias and activation.
    ///
    /// # Safety
    /// The CPU supports the instructions of `V`, and the pixels and the bias are valid.
    #[inline(always)]
    pub(crate) unsafe fn put_tile<V: Simd<Element = f32>>(
        tile: &OutputTile,
        at: usize,
        columns: [[V; 2]; 2],
    ) {
        let (lanes, bias) = ((tile.cols - at).min(V::LANES), tile.bias);
        // SAFETY: guaranteed by the caller.
        unsafe {
            let add = if bias.add.is_null() { V::zero() } else { V::load_first(bias.add.add(at), lanes) };
            put_pixel(tile, at, columns[0][0], add, 0, 0);
            put_pixel(tile, at, columns[1][0], add, 0, 1);
            put_pixel(tile, at, columns[0][1], add, 1, 0);
            put_pixel(tile, at, columns[1][1], add, 1, 1);
        }
    }

    /// Writes one pixel of an output tile, if it is inside the image.
    ///
    /// # Safety
    /// Same as [`put_tile`].
    #[inline(always)]
    unsafe fn put_pixel<V: Simd<Element = f32>>(
        tile: &OutputTile,
        at: usize,
        sum: V,
        add: V,
        y: usize,
        x: usize,
    ) {
        if y < tile.size[0] && x < tile.size[1] {
            let lanes = (tile.cols - at).min(V::LANES);
            // SAFETY: guaranteed by the caller.
            unsafe {
                // Adding a zero where there is no bias would turn -0 into 0.
                let sum = if tile.bias.add.is_null() { sum } else { sum.add(add) };
                let sum = if tile.bias.relu { sum.relu() } else { sum };
                sum.store_first(tile.first.add(y * tile.row + x * tile.pixel + at), lanes);
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
                let pixel = |p: usize| V::load_first(pixels[p].add(at), lanes);
                let rows = [gradient_line([pixel(0), pixel(1)]), gradient_line([pixel(2), pixel(3)])];
                let column = |x: usize| gradient_line([rows[0][x], rows[1][x]]);
                store_tile([column(0), column(1), column(2), column(3)], to.add(at), plane, V::LANES);
            }
        }
    }

    /// Adds up the partial sums of row `y` of the planes at `from`.
    #[inline(always)]
    unsafe fn add_parts<V: Simd<Element = f32>>(sums: &Partials, from: *const f32, y: usize) -> [V; 4] {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mut row = load_products::<V>(from, sums.plane, y);
            for part in 1..sums.parts {
                let more = load_products::<V>(from.add(part * sums.part), sums.plane, y);
                row = [row[0].add(more[0]), row[1].add(more[1]), row[2].add(more[2]), row[3].add(more[3])];
            }
            row
        }
    }

    #[inline(always)]
    unsafe fn taps<V: Simd<Element = f32>>(sums: &Partials, to: *mut f32, tap: usize) {
        for at in (0..sums.cols).step_by(V::LANES) {
            let lanes = (sums.cols - at).min(V::LANES);
            // SAFETY: guaranteed by the caller; the parts have whole vectors.
            unsafe {
                let half = V::splat(&0.5);
                let from = sums.first.add(at);
                let a = taps_line(add_parts::<V>(sums, from, 0), half);
                let b = taps_line(add_parts::<V>(sums, from, 1), half);
                let c = taps_line(add_parts::<V>(sums, from, 2), half);
                let d = taps_line(add_parts::<V>(sums, from, 3), half);
                let columns = [
                    taps_line([a[0], b[0], c[0], d[0]], half),
                    taps_line([a[1], b[1], c[1], d[1]], half),
                    taps_line([a[2], b[2], c[2], d[2]], half),
                ];
                for (x, column) in columns.into_iter().enumerate() {
                    for (y, value) in column.into_iter().enumerate() {
                        value.store_first(to.add((3 * y + x) * tap + at), lanes);
                    }
                }
            }
        }
    }

    macro_rules! transforms {
        ($name:ident, $vector:ty, $features:literal) => {
            pub(crate) static $name: Transforms = {
                #[target_feature(enable = $features)]
                unsafe fn filter_transform(taps: *const f32, len: usize, to: *mut f32, plane: usize) {
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
                unsafe fn taps_transform(sums: &Partials, to: *mut f32, tap: usize) {
                    // SAFETY: guaranteed by the caller.
                    unsafe { taps::<$vector>(sums, to, tap) }
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
}
