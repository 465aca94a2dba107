//! The general micro-kernel of all contractions: accumulates a tile of the output, some rows by one
//! to four vectors, in registers and writes it once.
//!
//! The sum has three nested loops, over images, segments and steps, each with its own stride in
//! both operands. So a convolution is a single sum, too: a segment is a run of neighboring pixels.
//! Each step multiplies one element of `a` per row by the vectors of `b`. In `a` either the steps
//! are contiguous (`along_k`) or the rows are; knowing which saves address arithmetic in the loop.

use std::arch::asm;
use std::arch::x86_64::{__m256, __m256d, __m512, __m512d, _MM_HINT_T1, _mm_prefetch};
use std::ops::AddAssign;

use crate::partition;
use crate::simd::{Pairs256, Pairs512, Simd};

/// A sum of products for some rows and up to [`TileKernels::MAX_COLS`] columns; lengths and strides
/// are in elements.
#[derive(Clone, Copy)]
pub(crate) struct Tile<T = f32> {
    pub(crate) images: usize,
    pub(crate) segments: usize,
    pub(crate) steps: usize,
    pub(crate) a: *const T,
    /// The stride from row to row with `along_k`, otherwise from step to step; the other stride is
    /// 1.
    pub(crate) a_stride: usize,
    pub(crate) a_segment: usize,
    pub(crate) a_image: usize,
    /// Readable in whole vectors, even past `cols`.
    pub(crate) b: *const T,
    pub(crate) b_step: usize,
    pub(crate) b_segment: usize,
    pub(crate) b_image: usize,
    pub(crate) c: *mut T,
    pub(crate) c_row: usize,
    /// Columns of `c`, at least 1.
    pub(crate) cols: usize,
    /// Whether to add to `c` instead of overwriting it.
    pub(crate) add: bool,
    /// Memory to prefetch meanwhile.
    pub(crate) prefetch: Prefetch<T>,
}

/// Memory to prefetch into the L2 cache while a tile is computed: one address in every [`UNROLL`]
/// steps, `step` elements apart, up to `last`. All prefetches at once would delay the loads of the
/// tile itself.
#[derive(Clone, Copy)]
pub(crate) struct Prefetch<T = f32> {
    from: *const T,
    step: usize,
    last: *const T,
}

impl<T> Prefetch<T> {
    /// Prefetches only `near`, which is in cache already. Prefetching an invalid address would be
    /// slow.
    pub(crate) fn none(near: *const T) -> Prefetch<T> {
        Prefetch { from: near, step: 0, last: near }
    }

    /// Prefetches the share of tile `tile` of `tiles` in a matrix of `rows` rows of `cols`
    /// elements, `stride` apart. The tiles go down columns of one cache line each, one column after
    /// another.
    pub(crate) fn part(
        matrix: *const T,
        [rows, cols]: [usize; 2],
        stride: usize,
        tile: usize,
        tiles: usize,
    ) -> Prefetch<T> {
        let per_line = LINE_BYTES / size_of::<T>();
        let share = partition::part(rows * cols.div_ceil(per_line), tiles, tile);
        if share.is_empty() {
            return Prefetch::none(matrix);
        }
        let (line, row) = (share.start / rows, share.start % rows);
        let last = (row + share.len()).min(rows) - 1;
        let at = |row: usize| matrix.wrapping_add(line * per_line + row * stride);
        Prefetch { from: at(row), step: stride, last: at(last) }
    }
}

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// A tile kernel for a fixed number of rows and vectors.
pub(crate) type TileFn<T = f32> = unsafe fn(&Tile<T>);

/// The tile kernels written for one instruction set.
pub(crate) trait TileKernels: 'static {
    /// The type of elements in memory.
    type Element: Copy + 'static;
    /// Elements per vector.
    const LANES: usize;
    /// Maximum number of columns of a tile.
    const MAX_COLS: usize;

    /// Returns the maximum number of rows of a tile of `vectors` vectors.
    fn max_rows(vectors: usize, along_k: bool) -> usize;

    /// Computes a tile of 1 to `max_rows` rows.
    ///
    /// # Safety
    /// Same as [`Tile::run`].
    unsafe fn run_tile(tile: &Tile<Self::Element>, rows: usize, along_k: bool);
}

/// Implements the tile kernels of a vector type with a table of them.
macro_rules! impl_tile_kernels {
    ($vector:ty, $table:ident, $vectors:literal) => {
        impl TileKernels for $vector {
            type Element = <$vector as Simd>::Element;
            const LANES: usize = <$vector as Simd>::LANES;
            const MAX_COLS: usize = $vectors * <$vector as Simd>::LANES;

            fn max_rows(vectors: usize, along_k: bool) -> usize {
                $table[usize::from(along_k)][vectors - 1].len()
            }

            unsafe fn run_tile(tile: &Tile<Self::Element>, rows: usize, along_k: bool) {
                let vectors = tile.cols.div_ceil(<$vector as Simd>::LANES);
                // SAFETY: guaranteed by the caller.
                unsafe { $table[usize::from(along_k)][vectors - 1][rows - 1](tile) }
            }
        }
    };
}
impl_tile_kernels!(__m512, AVX512, 4);
impl_tile_kernels!(Pairs512, AVX512_BF16, 4);
impl_tile_kernels!(__m256, AVX2, 2);
impl_tile_kernels!(__m512d, AVX512_F64, 4);
impl_tile_kernels!(__m256d, AVX2_F64, 2);

impl<T: Copy> Tile<T> {
    /// Computes `rows` rows, in nearly equal tiles.
    ///
    /// # Safety
    /// The CPU supports the instructions of `V`; `cols` is at most `V::MAX_COLS`; every element
    /// that the sizes and strides reach is valid, and no other thread uses those of `c`.
    pub(crate) unsafe fn run<V: TileKernels<Element = T>>(&self, rows: usize, along_k: bool) {
        if rows == 0 {
            return;
        }
        for part in partition::parts(rows, V::max_rows(self.cols.div_ceil(V::LANES), along_k)) {
            let mut tile = *self;
            let a_row = if along_k { self.a_stride } else { 1 };
            tile.a = self.a.wrapping_add(part.start * a_row);
            tile.c = self.c.wrapping_add(part.start * self.c_row);
            // SAFETY: guaranteed by the caller; the kernel touches only the rows of its part.
            unsafe { V::run_tile(&tile, part.len(), along_k) }
        }
    }
}

/// Steps between two updates of the addresses.
const UNROLL: usize = 4;

/// One step: `acc[row] += a[row] * b`. One address register serves three rows, since addressing
/// modes add one or two row strides for free.
#[inline(always)]
unsafe fn step<V: Simd, const ROWS: usize, const VECTORS: usize>(
    acc: &mut [[V; VECTORS]; ROWS],
    a: &[*const V::Element; 5],
    a_row: usize,
    a_offset: usize,
    b: *const V::Element,
) {
    // SAFETY: the caller's tile reaches this step of every row, and a whole number of vectors of
    // `b`.
    unsafe {
        let mut bv = [V::zero(); VECTORS];
        for (v, bv) in bv.iter_mut().enumerate() {
            *bv = V::load(b.add(v * V::LANES));
        }
        // Unrolled by hand: the compiler does not unroll the larger tiles, and would keep their
        // sums in memory.
        macro_rules! rows {
            ($($row:literal)*) => {$(
                if $row < ROWS {
                    let av = V::splat(a[$row / 3].wrapping_add($row % 3 * a_row).add(a_offset));
                    for v in 0..VECTORS {
                        acc[$row][v] = acc[$row][v].fma(av, bv[v]);
                    }
                }
            )*};
        }
        rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13);
    }
}

/// Hides from the compiler how the addresses were computed. Otherwise it derives them from one
/// another or hoists loads out of the step, and has no registers for either.
#[inline(always)]
#[expect(clippy::pointers_in_nomem_asm_block, reason = "there is no instruction")]
pub(crate) fn hide_addresses<T>(a: &mut [*const T]) {
    for a in a {
        // SAFETY: emits no instruction.
        unsafe { asm!("/* {} */", inout(reg) * a, options(pure, nomem, nostack, preserves_flags)) }
    }
}

#[inline(always)]
fn advance<T>(a: &mut [*const T], by: usize) {
    for a in a {
        *a = a.wrapping_add(by);
    }
}

#[inline(always)]
unsafe fn tile<V: Simd, const ROWS: usize, const VECTORS: usize, const ALONG_K: bool>(t: &Tile<V::Element>) {
    // SAFETY: the caller guarantees the instructions and every element that sizes and strides
    // reach.
    unsafe {
        let mut acc = [[V::zero(); VECTORS]; ROWS];
        let mut prefetch = t.prefetch.from;
        let (a_row, a_step) = if ALONG_K { (t.a_stride, 1) } else { (1, t.a_stride) };
        for image in 0..t.images {
            for segment in 0..t.segments {
                let start = t.a.wrapping_add(image * t.a_image + segment * t.a_segment);
                let mut a = [start; 5];
                for (i, a) in a.iter_mut().enumerate() {
                    *a = start.wrapping_add(3 * i * a_row);
                }
                let mut b = t.b.wrapping_add(image * t.b_image + segment * t.b_segment);
                let mut left = t.steps;
                while left >= UNROLL {
                    _mm_prefetch::<_MM_HINT_T1>(prefetch.cast());
                    prefetch = prefetch.wrapping_add(t.prefetch.step).min(t.prefetch.last);
                    for u in 0..UNROLL {
                        if ALONG_K {
                            hide_addresses(&mut a[..ROWS.div_ceil(3)]);
                            step::<V, ROWS, VECTORS>(&mut acc, &a, a_row, u, b);
                        } else {
                            step::<V, ROWS, VECTORS>(&mut acc, &a, a_row, 0, b);
                            advance(&mut a, a_step);
                        }
                        b = b.wrapping_add(t.b_step);
                    }
                    if ALONG_K {
                        advance(&mut a, UNROLL);
                    }
                    left -= UNROLL;
                }
                while left > 0 {
                    if ALONG_K {
                        hide_addresses(&mut a[..ROWS.div_ceil(3)]);
                    }
                    step::<V, ROWS, VECTORS>(&mut acc, &a, a_row, 0, b);
                    b = b.wrapping_add(t.b_step);
                    advance(&mut a, a_step);
                    left -= 1;
                }
            }
        }
        write_rows(&acc, t.c, t.c_row, t.cols, t.add);
    }
}

/// Writes the sums of some rows, `cols` columns each, or adds them to `c`.
///
/// # Safety
/// The CPU supports the instructions of `V`, and the rows of `c` are valid.
#[inline(always)]
pub(crate) unsafe fn write_rows<V: Simd, const ROWS: usize, const VECTORS: usize>(
    acc: &[[V; VECTORS]; ROWS],
    c: *mut V::Element,
    c_row: usize,
    cols: usize,
    add: bool,
) {
    let last = VECTORS - 1;
    let tail = cols - last * V::LANES;
    for (row, acc) in acc.iter().enumerate() {
        let c = c.wrapping_add(row * c_row);
        // SAFETY: guaranteed by the caller.
        unsafe {
            for (v, &sum) in acc[..last].iter().enumerate() {
                let c = c.add(v * V::LANES);
                (if add { V::load(c).add(sum) } else { sum }).store(c);
            }
            let c = c.add(last * V::LANES);
            (if add { V::load_first(c, tail).add(acc[last]) } else { acc[last] }).store_first(c, tail);
        }
    }
}

/// # Safety
/// Same as [`Tile::run`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512<const ROWS: usize, const VECTORS: usize, const ALONG_K: bool>(t: &Tile) {
    // Columns that fit half a vector take half the bandwidth of the caches.
    // SAFETY: guaranteed by the caller.
    unsafe {
        match VECTORS {
            1 if t.cols > 8 => tile::<__m512, ROWS, 1, ALONG_K>(t),
            1 => tile::<__m256, ROWS, 1, ALONG_K>(t),
            _ => tile::<__m512, ROWS, VECTORS, ALONG_K>(t),
        }
    }
}

/// # Safety
/// Same as [`Tile::run`].
#[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512_bf16<const ROWS: usize, const VECTORS: usize, const ALONG_K: bool>(t: &Tile) {
    // Two half vectors per row take half the loads of one vector for the same work, and are faster.
    // SAFETY: guaranteed by the caller.
    unsafe {
        match VECTORS {
            1 if t.cols > 8 => tile::<Pairs256, ROWS, 2, ALONG_K>(t),
            1 => tile::<Pairs256, ROWS, 1, ALONG_K>(t),
            _ => tile::<Pairs512, ROWS, VECTORS, ALONG_K>(t),
        }
    }
}

/// # Safety
/// Same as [`Tile::run`].
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2<const ROWS: usize, const VECTORS: usize, const ALONG_K: bool>(t: &Tile) {
    // SAFETY: guaranteed by the caller.
    unsafe { tile::<__m256, ROWS, VECTORS, ALONG_K>(t) }
}

/// # Safety
/// Same as [`Tile::run`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512_f64<const ROWS: usize, const VECTORS: usize, const ALONG_K: bool>(t: &Tile<f64>) {
    // Two half vectors per row take half the loads of one vector for the same work, and are faster.
    // SAFETY: guaranteed by the caller.
    unsafe {
        match VECTORS {
            1 if t.cols > 4 => tile::<__m256d, ROWS, 2, ALONG_K>(t),
            1 => tile::<__m256d, ROWS, 1, ALONG_K>(t),
            _ => tile::<__m512d, ROWS, VECTORS, ALONG_K>(t),
        }
    }
}

/// # Safety
/// Same as [`Tile::run`].
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2_f64<const ROWS: usize, const VECTORS: usize, const ALONG_K: bool>(t: &Tile<f64>) {
    // SAFETY: guaranteed by the caller.
    unsafe { tile::<__m256d, ROWS, VECTORS, ALONG_K>(t) }
}

/// Kernels indexed by layout of `a`, vectors and rows.
pub(crate) type Tiles<const VECTORS: usize, T = f32> = [[&'static [TileFn<T>]; VECTORS]; 2];

/// Builds the table of a kernel for these numbers of vectors, each with these numbers of rows.
macro_rules! table {
    ($kernel:ident: $($vectors:literal => $($rows:literal)*;)*) => {
        [
            [$(&[$($kernel::<$rows, $vectors, false>),*]),*],
            [$(&[$($kernel::<$rows, $vectors, true>),*]),*],
        ]
    };
}

/// Sums, vectors of `b` and one element of `a` fill up to 31 of 32 registers. The wider a tile, the
/// fewer loads per multiply-add: two vectors reach 85 % of the peak, three and four 97 %.
pub(crate) static AVX512: Tiles<4> = table!(avx512:
    1 => 1 2 3 4 5 6 7 8 9 10 11 12 13 14;
    2 => 1 2 3 4 5 6 7 8 9 10 11 12 13 14;
    3 => 1 2 3 4 5 6 7 8 9;
    4 => 1 2 3 4 5 6;
);

/// Tiles of bf16 pairs, with the same registers.
pub(crate) static AVX512_BF16: Tiles<4> = table!(avx512_bf16:
    1 => 1 2 3 4 5 6 7 8 9 10 11 12 13 14;
    2 => 1 2 3 4 5 6 7 8 9 10 11 12 13 14;
    3 => 1 2 3 4 5 6 7 8 9;
    4 => 1 2 3 4 5 6;
);

/// 6 rows of 2 vectors: 12 sums, 2 vectors of `b` and one element of `a` fill 15 of 16 registers.
pub(crate) static AVX2: Tiles<2> = table!(avx2:
    1 => 1 2 3 4 5 6;
    2 => 1 2 3 4 5 6;
);

/// Tiles of f64, with the same registers.
static AVX512_F64: Tiles<4, f64> = table!(avx512_f64:
    1 => 1 2 3 4 5 6 7 8 9 10 11 12 13 14;
    2 => 1 2 3 4 5 6 7 8 9 10 11 12 13 14;
    3 => 1 2 3 4 5 6 7 8 9;
    4 => 1 2 3 4 5 6;
);
static AVX2_F64: Tiles<2, f64> = table!(avx2_f64:
    1 => 1 2 3 4 5 6;
    2 => 1 2 3 4 5 6;
);

/// `out[i] = sum of partials[i], partials[len + i], ...` for each of the `elements`, always in the
/// same order.
///
/// # Safety
/// `count >= 1` partial results of `len` elements are valid, as are the elements of `out`, which no
/// other thread accesses.
pub(crate) unsafe fn sum_partials<T: Copy + AddAssign>(
    partials: *const T,
    len: usize,
    count: usize,
    out: *mut T,
    elements: std::ops::Range<usize>,
) {
    // In pieces that stay in the L1 cache while the partial results are added one after another.
    for piece in partition::parts(elements.len(), 2048) {
        let first = elements.start + piece.start;
        // SAFETY: inside the elements that the caller guarantees.
        unsafe {
            let out = std::slice::from_raw_parts_mut(out.add(first), piece.len());
            std::ptr::copy_nonoverlapping(partials.add(first), out.as_mut_ptr(), piece.len());
            for partial in 1..count {
                let more = std::slice::from_raw_parts(partials.add(partial * len + first), piece.len());
                for (out, &more) in out.iter_mut().zip(more) {
                    *out += more;
                }
            }
        }
    }
}
