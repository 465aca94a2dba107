//! Products of small blocks that are in cache: the parts of kernels that fuse several products.

use crate::Isa;
#[cfg(target_arch = "x86_64")]
use crate::gemm::microkernel::{Prefetch, Tile, TileKernels};
#[cfg(target_arch = "x86_64")]
use crate::gemm::pack::{self, PackElement};
use crate::scalar::Number;
use crate::simd::per_isa::per_isa;

/// Columns of a panel that [`Real::pack_transposed`] writes.
pub(crate) const PANEL: usize = 64;

/// The right operand must be readable in vectors of this many elements, even past its last column.
pub(crate) const WHOLE: usize = 16;

/// `c[m, n] = a[m, k] * b[k, n]`, or added to `c`; strides are in elements.
#[derive(Clone, Copy)]
pub(crate) struct BlockProduct<T> {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) a: *const T,
    /// The stride from row to row; this or `a_step` is 1.
    pub(crate) a_row: usize,
    /// The stride from step to step of the sum.
    pub(crate) a_step: usize,
    /// Contiguous columns, readable in groups of [`WHOLE`].
    pub(crate) b: *const T,
    pub(crate) b_step: usize,
    /// The distance from one group of [`PANEL`] columns to the next: `PANEL` for a plain matrix.
    pub(crate) b_panel: usize,
    pub(crate) c: *mut T,
    pub(crate) c_row: usize,
    /// Whether to add to `c` instead of overwriting it.
    pub(crate) add: bool,
}

/// A float type that blocks are multiplied in.
pub(crate) trait Real: Number {
    /// Rounds a number.
    fn from_f64(value: f64) -> Self;

    /// Computes a product.
    ///
    /// # Safety
    /// The CPU supports `isa`. Every element that sizes and strides reach is valid, and no other
    /// thread accesses those of `c`.
    unsafe fn multiply(isa: Isa, product: &BlockProduct<Self>);

    /// Packs `cols` rows of `steps` elements, `stride` apart, as the columns of a right operand:
    /// panels of [`PANEL`] columns with `b_step` of `PANEL` and `b_panel` of `steps * PANEL`.
    ///
    /// # Safety
    /// The CPU supports `isa`. `src` is valid for the rows, `dst` for whole panels.
    unsafe fn pack_transposed(
        isa: Isa,
        src: *const Self,
        stride: usize,
        steps: usize,
        cols: usize,
        dst: *mut Self,
    );
}

impl Real for f32 {
    fn from_f64(value: f64) -> f32 {
        value as f32
    }

    unsafe fn multiply(isa: Isa, product: &BlockProduct<f32>) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => multiply_tiles::<std::arch::x86_64::__m512>(product),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => multiply_tiles::<std::arch::x86_64::__m256>(product),
                _ => multiply_rows(isa, product),
            }
        }
    }

    unsafe fn pack_transposed(
        isa: Isa,
        src: *const f32,
        stride: usize,
        steps: usize,
        cols: usize,
        dst: *mut f32,
    ) {
        // SAFETY: guaranteed by the caller; every instruction set but the plain one includes AVX2.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 | Isa::Avx512 => pack_panels(src, stride, steps, cols, dst),
                _ => pack_one_by_one(src, stride, steps, cols, dst),
            }
        }
    }
}

impl Real for f64 {
    fn from_f64(value: f64) -> f64 {
        value
    }

    unsafe fn multiply(isa: Isa, product: &BlockProduct<f64>) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => multiply_tiles::<std::arch::x86_64::__m512d>(product),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => multiply_tiles::<std::arch::x86_64::__m256d>(product),
                _ => multiply_rows(isa, product),
            }
        }
    }

    unsafe fn pack_transposed(
        isa: Isa,
        src: *const f64,
        stride: usize,
        steps: usize,
        cols: usize,
        dst: *mut f64,
    ) {
        // SAFETY: guaranteed by the caller; every instruction set but the plain one includes AVX2.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 | Isa::Avx512 => pack_panels(src, stride, steps, cols, dst),
                _ => pack_one_by_one(src, stride, steps, cols, dst),
            }
        }
    }
}

/// # Safety
/// AVX2; otherwise the same as [`Real::pack_transposed`].
#[cfg(target_arch = "x86_64")]
unsafe fn pack_panels<T: PackElement>(src: *const T, stride: usize, steps: usize, cols: usize, dst: *mut T) {
    for col in (0..cols).step_by(PANEL) {
        let (src, dst) = (src.wrapping_add(col * stride), dst.wrapping_add(col * steps));
        // SAFETY: guaranteed by the caller.
        unsafe { pack::pack_columns(src, stride, steps, (cols - col).min(PANEL), dst, PANEL) }
    }
}

/// # Safety
/// Same as [`Real::pack_transposed`].
unsafe fn pack_one_by_one<T: Number>(src: *const T, stride: usize, steps: usize, cols: usize, dst: *mut T) {
    for col in 0..cols.next_multiple_of(PANEL) {
        let to = dst.wrapping_add(col / PANEL * steps * PANEL + col % PANEL);
        for step in 0..steps {
            // SAFETY: an element of a row, and one of its panel.
            unsafe {
                *to.add(step * PANEL) = if col < cols { *src.add(col * stride + step) } else { T::ZERO };
            }
        }
    }
}

/// # Safety
/// The CPU supports the instructions of `V`; otherwise the same as [`Real::multiply`].
#[cfg(target_arch = "x86_64")]
unsafe fn multiply_tiles<V: TileKernels>(p: &BlockProduct<V::Element>) {
    let along_k = p.a_step == 1;
    for panel in (0..p.n).step_by(PANEL) {
        let end = (panel + PANEL).min(p.n);
        for col in (panel..end).step_by(V::MAX_COLS) {
            let b = p.b.wrapping_add(panel / PANEL * p.b_panel + (col - panel));
            let tile = Tile {
                images: 1,
                segments: 1,
                steps: p.k,
                a: p.a,
                a_stride: if along_k { p.a_row } else { p.a_step },
                a_segment: 0,
                a_image: 0,
                b,
                b_step: p.b_step,
                b_segment: 0,
                b_image: 0,
                c: p.c.wrapping_add(col),
                c_row: p.c_row,
                cols: (end - col).min(V::MAX_COLS),
                add: p.add,
                prefetch: Prefetch::none(b),
            };
            // SAFETY: guaranteed by the caller.
            unsafe { tile.run::<V>(p.m, along_k) }
        }
    }
}

per_isa! {
    /// # Safety
    /// Same as [`Real::multiply`].
    unsafe fn multiply_rows<T: Number>(p: &BlockProduct<T>) = multiply_rows_body
}

/// Adds multiples of the rows of `b` to each row of `c`.
#[inline(always)]
unsafe fn multiply_rows_body<T: Number, const FAST: bool>(p: &BlockProduct<T>) {
    for row in 0..p.m {
        for panel in (0..p.n).step_by(PANEL) {
            let cols = (p.n - panel).min(PANEL);
            // SAFETY: a row of `c` and rows of `b`, as the caller guarantees.
            unsafe {
                let c = std::slice::from_raw_parts_mut(p.c.add(row * p.c_row + panel), cols);
                if !p.add {
                    c.fill(T::ZERO);
                }
                for step in 0..p.k {
                    let a = *p.a.add(row * p.a_row + step * p.a_step);
                    let b = p.b.add(panel / PANEL * p.b_panel + step * p.b_step);
                    let b = std::slice::from_raw_parts(b, cols);
                    for (c, &b) in c.iter_mut().zip(b) {
                        *c = c.add(a.mul(b));
                    }
                }
            }
        }
    }
}
