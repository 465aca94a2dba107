//! Winograd convolution: the transforms of [tiles](crate::conv::winograd_tiles), each for all
//! channels of a tile. They apply the [transforms of a line](crate::conv::winograd_lines) to the rows
//! of the tile and then to its columns.

use std::arch::x86_64::{__m256, __m512};

use super::winograd_lines::{F2, F4, Lines};
use super::winograd_tiles::{InputTile, TileSize};
use crate::gemm::contract::Bias;
use crate::simd::Simd;

/// Taps of a filter along each axis.
const TAPS: usize = 3;

/// The transforms of one tile size for one instruction set.
pub(crate) struct Transforms {
    /// Transforms a 3x3 filter (`len` floats per tap, whole vectors) into planes, `plane` floats
    /// apart.
    pub(crate) filter: unsafe fn(*const f32, usize, *mut f32, usize),
    /// Transforms an input tile into planes.
    pub(crate) input: unsafe fn(&InputTile, *mut f32, usize),
    /// Transforms planes of products into an output tile.
    pub(crate) output: unsafe fn(&OutputTile, *const f32, usize),
    /// Transforms a tile of the output gradient into planes.
    pub(crate) gradient: unsafe fn(&InputTile, *mut f32, usize),
    /// Transforms planes of summed products into the gradient of a 3x3 filter.
    pub(crate) taps: unsafe fn(&Partials, *mut f32, usize),
}

/// The transforms of both tile sizes for one instruction set.
pub(crate) struct TransformTable {
    two: Transforms,
    four: Transforms,
}

impl TransformTable {
    /// Returns the transforms of tiles of this size.
    pub(crate) fn of(&self, size: TileSize) -> &Transforms {
        match size {
            TileSize::Two => &self.two,
            TileSize::Four => &self.four,
        }
    }
}

/// A tile of outputs; at the edges only the first `size` pixels along each axis exist.
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
// compiler may leave a closure as a function of its own, without the instruction set of its caller,
// and then every operation on a vector is a call.

/// A loop over `0..N`, where N is at most 6, unrolled by hand: otherwise the compiler keeps arrays of
/// vectors in memory and copies them.
macro_rules! unroll {
    ($i:ident < $n:ident, $body:block) => {
        unroll!($i < $n, $body, 0 1 2 3 4 5)
    };
    ($i:ident < $n:ident, $body:block, $($k:literal)*) => {{$(
        if $k < $n {
            let $i: usize = $k;
            $body
        }
    )*}};
}

/// Returns column `x` of some rows.
#[inline(always)]
fn column<V: Copy, const ROWS: usize, const COLS: usize>(rows: &[[V; COLS]; ROWS], x: usize) -> [V; ROWS] {
    let mut column = [rows[0][x]; ROWS];
    unroll!(y < ROWS, { column[y] = rows[y][x] });
    column
}

/// Loads row `y` of a tile of `N` pixels along each side, from channel `at` on. With `WHOLE`, all
/// pixels and lanes exist; otherwise those that do not are zero.
#[inline(always)]
unsafe fn load_row<V: Simd<Element = f32>, const N: usize, const WHOLE: bool>(
    tile: &InputTile,
    y: usize,
    at: usize,
) -> [V; N] {
    let from = tile.first.wrapping_add(y * tile.row + at);
    // SAFETY: guaranteed by the caller; nothing is read from pixels beyond the edges.
    unsafe {
        let mut row = [V::zero(); N];
        if WHOLE {
            unroll!(x < N, { row[x] = V::load(from.wrapping_add(x * tile.pixel)) });
        } else if tile.ys.contains(&y) {
            let lanes = (tile.channels - at).min(V::LANES);
            unroll!(x < N, {
                let lanes = if tile.xs.contains(&x) { lanes } else { 0 };
                row[x] = V::load_first(from.wrapping_add(x * tile.pixel), lanes);
            });
        }
        row
    }
}

/// Loads `N` vectors, `stride` floats apart.
#[inline(always)]
unsafe fn load<V: Simd<Element = f32>, const N: usize>(from: *const f32, stride: usize) -> [V; N] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut loaded = [V::zero(); N];
        unroll!(i < N, { loaded[i] = V::load(from.add(i * stride)) });
        loaded
    }
}

/// Stores the first lanes of `N` vectors, `stride` floats apart.
#[inline(always)]
unsafe fn store<V: Simd<Element = f32>, const N: usize>(
    values: [V; N],
    to: *mut f32,
    stride: usize,
    lanes: usize,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        unroll!(i < N, { values[i].store_first(to.add(i * stride), lanes) });
    }
}

#[inline(always)]
unsafe fn filter<V: Simd<Element = f32>, F: Lines<TILE, SIDE>, const TILE: usize, const SIDE: usize>(
    taps: *const f32,
    len: usize,
    to: *mut f32,
    plane: usize,
) {
    for at in (0..len).step_by(V::LANES) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mut rows = [[V::zero(); SIDE]; TAPS];
            unroll!(y < TAPS, { rows[y] = F::filter(load(taps.add(TAPS * y * len + at), len)) });
            unroll!(x < SIDE, {
                store(F::filter(column(&rows, x)), to.add(x * plane + at), SIDE * plane, V::LANES);
            });
        }
    }
}

#[inline(always)]
unsafe fn input<V: Simd<Element = f32>, F: Lines<TILE, SIDE>, const TILE: usize, const SIDE: usize>(
    tile: &InputTile,
    to: *mut f32,
    plane: usize,
) {
    let whole = tile.ys.len() == SIDE && tile.xs.len() == SIDE && tile.channels.is_multiple_of(V::LANES);
    // SAFETY: guaranteed by the caller.
    unsafe {
        match whole {
            true => input_tile::<V, F, TILE, SIDE, true>(tile, to, plane),
            false => input_tile::<V, F, TILE, SIDE, false>(tile, to, plane),
        }
    }
}

#[inline(always)]
unsafe fn input_tile<
    V: Simd<Element = f32>,
    F: Lines<TILE, SIDE>,
    const TILE: usize,
    const SIDE: usize,
    const WHOLE: bool,
>(
    tile: &InputTile,
    to: *mut f32,
    plane: usize,
) {
    for at in (0..tile.channels).step_by(V::LANES) {
        let lanes = if WHOLE { V::LANES } else { (tile.channels - at).min(V::LANES) };
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mut rows = [[V::zero(); SIDE]; SIDE];
            unroll!(y < SIDE, { rows[y] = F::input(load_row::<V, SIDE, WHOLE>(tile, y, at)) });
            unroll!(x < SIDE, {
                store(F::input(column(&rows, x)), to.add(x * plane + at), SIDE * plane, lanes);
            });
        }
    }
}

#[inline(always)]
unsafe fn output<V: Simd<Element = f32>, F: Lines<TILE, SIDE>, const TILE: usize, const SIDE: usize>(
    tile: &OutputTile,
    from: *const f32,
    plane: usize,
) {
    for at in (0..tile.cols).step_by(V::LANES) {
        // SAFETY: guaranteed by the caller; rows of products are whole vectors.
        unsafe {
            let mut rows = [[V::zero(); TILE]; SIDE];
            unroll!(y < SIDE, { rows[y] = F::output(load(from.add(y * SIDE * plane + at), plane)) });
            let mut columns = [[V::zero(); TILE]; TILE];
            unroll!(x < TILE, { columns[x] = F::output(column(&rows, x)) });
            put_tile(tile, at, columns);
        }
    }
}

/// Writes the columns of an output tile, from channel `at` on, with bias and activation.
///
/// # Safety
/// The CPU supports the instructions of `V`, and the pixels and the bias are valid.
#[inline(always)]
pub(crate) unsafe fn put_tile<V: Simd<Element = f32>, const TILE: usize>(
    tile: &OutputTile,
    at: usize,
    columns: [[V; TILE]; TILE],
) {
    let (lanes, bias) = ((tile.cols - at).min(V::LANES), tile.bias);
    let mut columns = columns;
    // SAFETY: guaranteed by the caller; pixels beyond the edges are not written.
    unsafe {
        // Adding a zero where there is no bias would turn -0 into 0.
        if !bias.add.is_null() {
            let add = V::load_first(bias.add.add(at), lanes);
            unroll!(x < TILE, { unroll!(y < TILE, { columns[x][y] = columns[x][y].add(add) }) });
        }
        if bias.relu {
            unroll!(x < TILE, { unroll!(y < TILE, { columns[x][y] = columns[x][y].relu() }) });
        }
        unroll!(y < TILE, {
            let row = tile.first.wrapping_add(y * tile.row + at);
            if y < tile.size[0] {
                unroll!(x < TILE, {
                    if x < tile.size[1] {
                        columns[x][y].store_first(row.add(x * tile.pixel), lanes);
                    }
                });
            }
        });
    }
}

#[inline(always)]
unsafe fn gradient<V: Simd<Element = f32>, F: Lines<TILE, SIDE>, const TILE: usize, const SIDE: usize>(
    tile: &InputTile,
    to: *mut f32,
    plane: usize,
) {
    for at in (0..tile.channels).step_by(V::LANES) {
        // SAFETY: guaranteed by the caller; the planes have room for whole vectors.
        unsafe {
            let mut rows = [[V::zero(); SIDE]; TILE];
            unroll!(y < TILE, { rows[y] = F::gradient(load_row::<V, TILE, false>(tile, y, at)) });
            unroll!(x < SIDE, {
                store(F::gradient(column(&rows, x)), to.add(x * plane + at), SIDE * plane, V::LANES);
            });
        }
    }
}

#[inline(always)]
unsafe fn taps<V: Simd<Element = f32>, F: Lines<TILE, SIDE>, const TILE: usize, const SIDE: usize>(
    sums: &Partials,
    to: *mut f32,
    tap: usize,
) {
    for at in (0..sums.cols).step_by(V::LANES) {
        let lanes = (sums.cols - at).min(V::LANES);
        // SAFETY: guaranteed by the caller; the parts have whole vectors.
        unsafe {
            let mut rows = [[V::zero(); TAPS]; SIDE];
            unroll!(y < SIDE, {
                let from = sums.first.add(y * SIDE * sums.plane + at);
                let mut sum: [V; SIDE] = load(from, sums.plane);
                for part in 1..sums.parts {
                    let more: [V; SIDE] = load(from.add(part * sums.part), sums.plane);
                    unroll!(i < SIDE, { sum[i] = sum[i].add(more[i]) });
                }
                rows[y] = F::taps(sum);
            });
            unroll!(x < TAPS, { store(F::taps(column(&rows, x)), to.add(x * tap + at), TAPS * tap, lanes) });
        }
    }
}

macro_rules! transforms {
    ($lines:ty, $vector:ty, $features:literal) => {{
        #[target_feature(enable = $features)]
        unsafe fn filter_transform(taps: *const f32, len: usize, to: *mut f32, plane: usize) {
            // SAFETY: guaranteed by the caller.
            unsafe { filter::<$vector, $lines, _, _>(taps, len, to, plane) }
        }
        #[target_feature(enable = $features)]
        unsafe fn input_transform(tile: &InputTile, to: *mut f32, plane: usize) {
            // SAFETY: guaranteed by the caller.
            unsafe { input::<$vector, $lines, _, _>(tile, to, plane) }
        }
        #[target_feature(enable = $features)]
        unsafe fn output_transform(tile: &OutputTile, from: *const f32, plane: usize) {
            // SAFETY: guaranteed by the caller.
            unsafe { output::<$vector, $lines, _, _>(tile, from, plane) }
        }
        #[target_feature(enable = $features)]
        unsafe fn gradient_transform(tile: &InputTile, to: *mut f32, plane: usize) {
            // SAFETY: guaranteed by the caller.
            unsafe { gradient::<$vector, $lines, _, _>(tile, to, plane) }
        }
        #[target_feature(enable = $features)]
        unsafe fn taps_transform(sums: &Partials, to: *mut f32, tap: usize) {
            // SAFETY: guaranteed by the caller.
            unsafe { taps::<$vector, $lines, _, _>(sums, to, tap) }
        }
        Transforms {
            filter: filter_transform,
            input: input_transform,
            output: output_transform,
            gradient: gradient_transform,
            taps: taps_transform,
        }
    }};
}

macro_rules! transform_table {
    ($name:ident, $vector:ty, $features:literal) => {
        pub(crate) static $name: TransformTable = TransformTable {
            two: transforms!(F2, $vector, $features),
            four: transforms!(F4, $vector, $features),
        };
    };
}
transform_table!(AVX512, __m512, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");
transform_table!(AVX2, __m256, "avx2,fma");
