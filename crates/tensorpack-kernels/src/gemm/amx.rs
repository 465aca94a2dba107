//! The micro-kernel of bf16 pairs for AMX: up to 32 rows by 32 columns in four tile registers.
//!
//! A tile register holds 16 rows of 64 bytes. `tdpbf16ps` multiplies 16 rows of 16 pairs of `a` by
//! 16 rows of 16 pairs of `b` and adds the products to 16 by 16 sums.

use std::arch::asm;
use std::arch::x86_64::*;
use std::cell::Cell;
use std::mem::MaybeUninit;

use crate::gemm::microkernel::{Tile, TileKernels};
use crate::simd::TileConfig;

/// AMX, as a type that kernels are written for.
pub(crate) enum Amx {}

/// Rows and columns of a tile register, and pairs in a row of `a`.
const SIDE: usize = 16;
/// Bytes of a row of a tile register.
const ROW_BYTES: usize = 64;
/// Sums, or pairs, of a tile register.
const TILE: usize = SIDE * SIDE;

/// Where the rows of a tile are.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    /// The first element of each row of `a`, whose steps are contiguous.
    pub(crate) a: &'a [*const f32],
    /// The output address of each row.
    pub(crate) c: &'a [*mut f32],
}

/// Steps of a row are contiguous, and rows a stride apart.
const ALONG_K: u8 = 0;
/// Rows are contiguous, and steps a stride apart.
const ACROSS_K: u8 = 1;
/// Steps of a row are contiguous, and every row has its own address.
const ANYWHERE: u8 = 2;

impl TileKernels for Amx {
    type Element = f32;
    const LANES: usize = SIDE;
    const MAX_COLS: usize = 2 * SIDE;

    fn max_rows(_: usize, _: bool) -> usize {
        2 * SIDE
    }

    unsafe fn run_tile(tile: &Tile, rows: usize, along_k: bool) {
        let places = Rows { a: &[], c: &[] };
        // SAFETY: guaranteed by the caller.
        unsafe {
            match along_k {
                true => run::<ALONG_K>(tile, rows, places),
                false => run::<ACROSS_K>(tile, rows, places),
            }
        }
    }
}

impl Amx {
    /// Maximum number of rows of [`Amx::run_rows`].
    pub(crate) const MAX_ROWS: usize = 2 * SIDE;

    /// Computes the sums of `tile` for rows anywhere in memory.
    ///
    /// # Safety
    /// Same as [`Tile::run`], for every row.
    pub(crate) unsafe fn run_rows(tile: &Tile, rows: Rows<'_>) {
        // SAFETY: guaranteed by the caller.
        unsafe { run::<ANYWHERE>(tile, rows.a.len(), rows) }
    }

    /// Makes this thread's next tile configure the tile registers. Other code on this thread may
    /// use them between two chunks, but not inside one.
    pub(crate) fn begin_chunk() {
        SHAPES.set(None);
    }
}

thread_local! {
    /// The shapes that this thread's tile registers have: rows of `a`, and steps of the last tile.
    /// Configuring them takes longer than a small tile.
    static SHAPES: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
}

/// # Safety
/// Same as [`Tile::run`], with AMX.
unsafe fn run<const FORM: u8>(tile: &Tile, rows: usize, places: Rows<'_>) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match (rows > SIDE, tile.cols > SIDE) {
            (false, false) => sums::<1, 1, FORM>(tile, rows, places),
            (false, true) => sums::<1, 2, FORM>(tile, rows, places),
            (true, false) => sums::<2, 1, FORM>(tile, rows, places),
            (true, true) => sums::<2, 2, FORM>(tile, rows, places),
        }
    }
}

/// Loads a tile register from rows `$stride` bytes apart.
macro_rules! load {
    ($tile:literal, $from:expr, $stride:expr) => {
        asm!(concat!("tileloadd ", $tile, ", [{} + {}]"), in(reg) $from, in(reg) $stride,
            options(nostack, preserves_flags, readonly))
    };
}

/// Stores a tile register to rows `$stride` bytes apart.
macro_rules! store {
    ($tile:literal, $to:expr, $stride:expr) => {
        asm!(concat!("tilestored [{} + {}], ", $tile), in(reg) $to, in(reg) $stride,
            options(nostack, preserves_flags))
    };
}

/// Adds the products of two tile registers to a third.
macro_rules! multiply {
    ($sums:literal, $a:literal, $b:literal) => {
        asm!(concat!("tdpbf16ps ", $sums, ", ", $a, ", ", $b), options(nostack, preserves_flags, nomem))
    };
}

/// Sets a tile register to zero.
macro_rules! zero {
    ($tile:literal) => {
        asm!(concat!("tilezero ", $tile), options(nostack, preserves_flags, nomem))
    };
}

/// Computes `A` by `B` tile registers of sums, `rows` rows in all.
///
/// Registers 0 to 3 hold sums: 0 and 1 of the first rows, 2 and 3 of the last ones. 4 and 5 hold 16
/// steps of `a` and `b`, 6 and 7 the last steps of a segment, if they are fewer. If the rows do not
/// fill two registers, both have as many, and some rows are computed twice.
///
/// # Safety
/// Same as [`Tile::run`], with AMX.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn sums<const A: usize, const B: usize, const FORM: u8>(t: &Tile, rows: usize, places: Rows<'_>) {
    let each = rows.div_ceil(A);
    let starts = [0, rows - each];
    let (blocks, rest) = (t.steps / SIDE, t.steps % SIDE);
    // The sums of a register go through a buffer if they do not fill it, or have no common stride.
    let last = t.cols - (B - 1) * SIDE;
    let cols = |j: usize| if j + 1 == B { last } else { SIDE };
    let buffered = |j: usize| FORM == ANYWHERE || cols(j) < SIDE;
    let c_row = |i: usize, row: usize| match FORM {
        ANYWHERE => places.c[starts[i] + row],
        _ => t.c.wrapping_add((starts[i] + row) * t.c_row),
    };
    let c_bytes = 4 * t.c_row;
    let mut buffers = [const { MaybeUninit::<Buffer>::uninit() }; 4];
    let buffers = buffers.each_mut().map(|buffer| buffer.as_mut_ptr().cast::<f32>());
    let mut copies = [const { MaybeUninit::<Buffer>::uninit() }; 2];
    let copies = copies.each_mut().map(|copy| copy.as_mut_ptr().cast::<f32>());
    // SAFETY: the caller guarantees AMX and every element that sizes and strides reach; the shapes
    // of all operands of an instruction match.
    unsafe {
        if SHAPES.replace(Some((each, rest))) != Some((each, rest)) {
            let (a_rest, b_rest) =
                if rest > 0 { ((each, 4 * rest), (rest, ROW_BYTES)) } else { ((0, 0), (0, 0)) };
            let (sum, a, b) = ((each, ROW_BYTES), (each, ROW_BYTES), (SIDE, ROW_BYTES));
            TileConfig::new([sum, sum, sum, sum, a, b, a_rest, b_rest]).load();
        }
        /// Runs a macro for the registers of sums: name, and position in rows and columns.
        macro_rules! for_sums {
            ($do:ident) => {
                $do!("tmm0", 0, 0);
                if B == 2 {
                    $do!("tmm1", 0, 1);
                }
                if A == 2 {
                    $do!("tmm2", 1, 0);
                    if B == 2 {
                        $do!("tmm3", 1, 1);
                    }
                }
            };
        }
        macro_rules! begin {
            ($tile:literal, $i:literal, $j:literal) => {
                if !t.add {
                    zero!($tile);
                } else if buffered($j) {
                    let buffer = buffers[2 * $i + $j];
                    for row in 0..each {
                        copy_lanes(c_row($i, row).add($j * SIDE), buffer.add(row * SIDE), cols($j));
                    }
                    load!($tile, buffer, ROW_BYTES);
                } else {
                    load!($tile, c_row($i, 0).add($j * SIDE), c_bytes);
                }
            };
        }
        for_sums!(begin);
        for image in 0..t.images {
            for segment in 0..t.segments {
                let skip = image * t.a_image + segment * t.a_segment;
                let mut b = t.b.wrapping_add(image * t.b_image + segment * t.b_segment);
                for block in 0..blocks + usize::from(rest > 0) {
                    let steps = if block < blocks { SIDE } else { rest };
                    let first = block * SIDE;
                    let a = match FORM {
                        ALONG_K => [0, 1].map(|i| t.a.wrapping_add(skip + starts[i] * t.a_stride + first)),
                        ACROSS_K => {
                            for i in 0..A {
                                let from = t.a.wrapping_add(skip + first * t.a_stride + starts[i]);
                                transpose(from, t.a_stride, steps, each, copies[i]);
                            }
                            copies.map(<*mut f32>::cast_const)
                        }
                        _ => {
                            for i in 0..A {
                                for row in 0..each {
                                    let from = places.a[starts[i] + row].wrapping_add(skip + first);
                                    copy_lanes(from, copies[i].add(row * SIDE), steps);
                                }
                            }
                            copies.map(<*mut f32>::cast_const)
                        }
                    };
                    let a_bytes = if FORM == ALONG_K { 4 * t.a_stride } else { ROW_BYTES };
                    let (b1, b_bytes) = (b.wrapping_add(SIDE), 4 * t.b_step);
                    macro_rules! products {
                        ($a:literal, $b:literal) => {
                            load!($b, b, b_bytes);
                            load!($a, a[0], a_bytes);
                            multiply!("tmm0", $a, $b);
                            if A == 2 {
                                load!($a, a[1], a_bytes);
                                multiply!("tmm2", $a, $b);
                            }
                            if B == 2 {
                                load!($b, b1, b_bytes);
                                if A == 2 {
                                    multiply!("tmm3", $a, $b);
                                    load!($a, a[0], a_bytes);
                                }
                                multiply!("tmm1", $a, $b);
                            }
                        };
                    }
                    if block < blocks {
                        products!("tmm4", "tmm5");
                    } else {
                        products!("tmm6", "tmm7");
                    }
                    b = b.wrapping_add(SIDE * t.b_step);
                }
            }
        }
        macro_rules! end {
            ($tile:literal, $i:literal, $j:literal) => {
                if buffered($j) {
                    let buffer = buffers[2 * $i + $j];
                    store!($tile, buffer, ROW_BYTES);
                    for row in 0..each {
                        copy_lanes(buffer.add(row * SIDE), c_row($i, row).add($j * SIDE), cols($j));
                    }
                } else {
                    store!($tile, c_row($i, 0).add($j * SIDE), c_bytes);
                }
            };
        }
        for_sums!(end);
    }
}

/// Memory for a tile register.
#[repr(C, align(64))]
struct Buffer([f32; TILE]);

/// Returns a mask of the first `n` of 16 lanes.
fn first(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as u16
}

/// Copies the first `n` of 16 elements.
///
/// # Safety
/// AVX-512; the elements are valid in both.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn copy_lanes(from: *const f32, to: *mut f32, n: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe { _mm512_mask_storeu_ps(to, first(n), _mm512_maskz_loadu_ps(first(n), from)) }
}

/// `to[row * 16 + step] = a[step * stride + row]`: turns contiguous rows into contiguous steps.
///
/// # Safety
/// AVX-512; `a` is valid for `steps` steps of `rows` elements, both at most 16, and `to` for 256.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn transpose(a: *const f32, stride: usize, steps: usize, rows: usize, to: *mut f32) {
    let mut x = [_mm512_setzero_ps(); SIDE];
    for (step, x) in x.iter_mut().enumerate().take(steps) {
        // SAFETY: guaranteed by the caller.
        *x = unsafe { _mm512_maskz_loadu_ps(first(rows), a.wrapping_add(step * stride)) };
    }
    // Transposes blocks of 4 by 4 elements, then the blocks.
    let mut y = x;
    for i in (0..SIDE).step_by(4) {
        let pairs = [
            _mm512_unpacklo_ps(x[i], x[i + 1]),
            _mm512_unpackhi_ps(x[i], x[i + 1]),
            _mm512_unpacklo_ps(x[i + 2], x[i + 3]),
            _mm512_unpackhi_ps(x[i + 2], x[i + 3]),
        ];
        for (half, (low, high)) in [(pairs[0], pairs[2]), (pairs[1], pairs[3])].into_iter().enumerate() {
            y[i + 2 * half] = _mm512_shuffle_ps::<0x44>(low, high);
            y[i + 2 * half + 1] = _mm512_shuffle_ps::<0xee>(low, high);
        }
    }
    for i in 0..4 {
        let (even_low, odd_low) =
            (_mm512_shuffle_f32x4::<0x88>(y[i], y[i + 4]), _mm512_shuffle_f32x4::<0xdd>(y[i], y[i + 4]));
        let (even_high, odd_high) = (
            _mm512_shuffle_f32x4::<0x88>(y[i + 8], y[i + 12]),
            _mm512_shuffle_f32x4::<0xdd>(y[i + 8], y[i + 12]),
        );
        let columns = [
            _mm512_shuffle_f32x4::<0x88>(even_low, even_high),
            _mm512_shuffle_f32x4::<0x88>(odd_low, odd_high),
            _mm512_shuffle_f32x4::<0xdd>(even_low, even_high),
            _mm512_shuffle_f32x4::<0xdd>(odd_low, odd_high),
        ];
        for (group, column) in columns.into_iter().enumerate() {
            // SAFETY: a row of 16 elements.
            unsafe { _mm512_storeu_ps(to.add((4 * group + i) * SIDE), column) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposition_turns_rows_into_steps() {
        if crate::Isa::detect() != crate::Isa::Avx512 {
            return;
        }
        let a: Vec<f32> = (0..16 * 20).map(|i| i as f32 + 1.0).collect();
        for (steps, rows) in [(16, 16), (5, 16), (16, 3), (7, 9)] {
            let mut to = [f32::NAN; TILE];
            // SAFETY: AVX-512, as just checked; `a` has 16 steps of 20 elements.
            unsafe { transpose(a.as_ptr(), 20, steps, rows, to.as_mut_ptr()) };
            for (row, step) in (0..rows).flat_map(|row| (0..steps).map(move |step| (row, step))) {
                assert_eq!(to[row * SIDE + step], a[step * 20 + row], "row {row}, step {step}");
            }
        }
    }
}
