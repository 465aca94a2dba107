//! The inverse DCT: 8x8 blocks, or 4x4, 2x2 and 1x1 from the low frequencies only.
//!
//! The 8x8 transform is the AAN algorithm (Arai, Agui, Nakajima) in f32, with all but five
//! multiplications folded into the dequantization table. It uses no fused multiply-add, so results
//! are identical on all machines.

use std::ops::{Add, Mul, Sub};

/// Coefficients of a block, transposed (the horizontal frequency varies slowest), with padding for
/// out-of-range writes of malformed data.
pub(crate) type Coefficients = [i16; 64 + 16];

/// Dequantization factors, transposed like the coefficients.
pub(crate) type DequantTable = [f32; 64];

/// Builds the factors of the `n` by `n` transform from a quantization table in natural order.
pub(crate) fn dequant_table(table: &[u16; 64], n: usize) -> DequantTable {
    use std::f64::consts::{PI, SQRT_2};
    let scale = |k: usize| if k == 0 { 1.0 } else { SQRT_2 * (k as f64 * PI / 16.0).cos() };
    std::array::from_fn(|i| {
        let (u, v) = (i / 8, i % 8);
        let own = f64::from(table[v * 8 + u]) / 8.0;
        (if n == 8 { own * scale(u) * scale(v) } else { own }) as f32
    })
}

/// Writes the `n` by `n` samples of a block to `out`, whose rows are `stride` apart.
pub(crate) fn idct(
    n: usize,
    simd: Simd,
    c: &Coefficients,
    dequant: &DequantTable,
    out: &mut [u8],
    stride: usize,
) {
    match n {
        8 => simd.inverse(c, dequant, out, stride),
        4 => idct_scaled(&BASIS_4, c, dequant, out, stride),
        2 => idct_scaled(&[[1.0, 1.0], [1.0, -1.0]], c, dequant, out, stride),
        _ => idct_scaled(&[[1.0]], c, dequant, out, stride),
    }
}

/// Writes a block whose AC coefficients are all zero.
pub(crate) fn idct_dc_only(n: usize, c: i16, dequant: &DequantTable, out: &mut [u8], stride: usize) {
    let sample = sample(f32::from(c) * dequant[0]);
    out.chunks_mut(stride).take(n).for_each(|row| row[..n].fill(sample));
}

fn sample(value: f32) -> u8 {
    // Rounds half to even like the vector instructions: an f32 of this magnitude has no fractional
    // bits. Without SSE4 this is much faster than `round_ties_even`.
    const ONES: f32 = (1 << 23) as f32;
    ((value + 128.0).clamp(0.0, 255.0) + ONES - ONES) as u8
}

/// The instruction set for the transform, detected once per image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Simd {
    /// Scalar loops.
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Simd {
    pub(crate) fn detect() -> Simd {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            return Simd::Avx2;
        }
        Simd::Scalar
    }

    fn inverse(self, c: &Coefficients, dequant: &DequantTable, out: &mut [u8], stride: usize) {
        match self {
            Simd::Scalar => scalar(c, dequant, out, stride),
            // SAFETY: `detect` returns this variant only if the CPU has AVX2.
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 => unsafe { avx2::inverse(c, dequant, out, stride) },
        }
    }
}

/// The 1-D transform of eight coefficients.
#[inline(always)]
fn idct_1d<T>(x: [T; 8], splat: impl Fn(f32) -> T) -> [T; 8]
where
    T: Copy + Add<Output = T> + Sub<Output = T> + Mul<Output = T>,
{
    let root2 = splat(std::f32::consts::SQRT_2);
    let (a, b) = (x[0] + x[4], x[0] - x[4]);
    let c = x[2] + x[6];
    let d = (x[2] - x[6]) * root2 - c;
    let (e0, e3, e1, e2) = (a + c, a - c, b + d, b - d);

    let (p, q) = (x[5] + x[3], x[5] - x[3]);
    let (r, s) = (x[1] + x[7], x[1] - x[7]);
    let o0 = r + p;
    // 2 cos(pi/8), and twice its sum and difference with cos(3 pi/8).
    let z = (q + s) * splat(1.847_759_1);
    let o1 = z - q * splat(2.613_126) - o0;
    let o2 = (r - p) * root2 - o1;
    let o3 = z - s * splat(1.082_392_2) - o2;
    [e0 + o0, e1 + o1, e2 + o2, e3 + o3, e3 - o3, e2 - o2, e1 - o1, e0 - o0]
}

fn scalar(c: &Coefficients, dequant: &DequantTable, out: &mut [u8], stride: usize) {
    let mut half = [[0.0; 8]; 8];
    for v in 0..8 {
        let row = idct_1d(std::array::from_fn(|u| f32::from(c[u * 8 + v]) * dequant[u * 8 + v]), |x| x);
        (0..8).for_each(|x| half[v][x] = row[x]);
    }
    for x in 0..8 {
        let column = idct_1d(std::array::from_fn(|v| half[v][x]), |x| x);
        (0..8).for_each(|y| out[y * stride + x] = sample(column[y]));
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{Coefficients, DequantTable, idct_1d};
    use std::arch::x86_64::*;
    use std::ops::{Add, Mul, Sub};

    /// Eight floats. The operators are only used by, and inlined into, functions compiled with
    /// AVX2.
    #[derive(Clone, Copy)]
    struct Lanes(__m256);

    impl Add for Lanes {
        type Output = Lanes;
        #[inline(always)]
        fn add(self, other: Lanes) -> Lanes {
            // SAFETY: see the type.
            Lanes(unsafe { _mm256_add_ps(self.0, other.0) })
        }
    }

    impl Sub for Lanes {
        type Output = Lanes;
        #[inline(always)]
        fn sub(self, other: Lanes) -> Lanes {
            // SAFETY: see the type.
            Lanes(unsafe { _mm256_sub_ps(self.0, other.0) })
        }
    }

    impl Mul for Lanes {
        type Output = Lanes;
        #[inline(always)]
        fn mul(self, other: Lanes) -> Lanes {
            // SAFETY: see the type.
            Lanes(unsafe { _mm256_mul_ps(self.0, other.0) })
        }
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn inverse(c: &Coefficients, dequant: &DequantTable, out: &mut [u8], stride: usize) {
        assert!(out.len() >= 7 * stride + 8, "all rows of a block must lie within the plane");
        let splat = |x: f32| Lanes(_mm256_set1_ps(x));
        let row = |u: usize| {
            // SAFETY: u < 8, so eight coefficients and eight factors starting at u * 8 lie within
            // the arrays of 64.
            let (c, f) = unsafe {
                let c = _mm_loadu_si128(c.as_ptr().add(u * 8).cast());
                (c, _mm256_loadu_ps(dequant.as_ptr().add(u * 8)))
            };
            Lanes(_mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(c)), f))
        };
        let half = idct_1d([row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7)], splat);
        let rows = idct_1d(transpose(half), splat);
        let bias = _mm256_set1_ps(128.0);
        let word = |i: usize| _mm256_cvtps_epi32(_mm256_add_ps(rows[i].0, bias));
        for i in (0..8).step_by(4) {
            // Packing works within 128-bit halves: lanes come out as 0 1 2 3 of each row, then 4 5
            // 6 7 of each.
            let two = _mm256_packs_epi32(word(i), word(i + 1));
            let other = _mm256_packs_epi32(word(i + 2), word(i + 3));
            let bytes = _mm256_packus_epi16(two, other);
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let bytes = _mm256_permutevar8x32_epi32(bytes, order);
            let (low, high) = (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
            // SAFETY: rows i to i + 3 are below 8, and eight bytes of each lie within `out`, as
            // asserted above.
            unsafe {
                let mut at = |row: usize| out.as_mut_ptr().add(row * stride);
                _mm_storel_epi64(at(i).cast(), low);
                _mm_storel_epi64(at(i + 1).cast(), _mm_unpackhi_epi64(low, low));
                _mm_storel_epi64(at(i + 2).cast(), high);
                _mm_storel_epi64(at(i + 3).cast(), _mm_unpackhi_epi64(high, high));
            }
        }
    }

    #[target_feature(enable = "avx2")]
    fn transpose(r: [Lanes; 8]) -> [Lanes; 8] {
        let pairs =
            |a: usize, b: usize| (_mm256_unpacklo_ps(r[a].0, r[b].0), _mm256_unpackhi_ps(r[a].0, r[b].0));
        let ((a0, a1), (b0, b1), (c0, c1), (d0, d1)) = (pairs(0, 1), pairs(2, 3), pairs(4, 5), pairs(6, 7));
        let low = |a, b| _mm256_shuffle_ps::<0b01_00_01_00>(a, b);
        let high = |a, b| _mm256_shuffle_ps::<0b11_10_11_10>(a, b);
        let top = [low(a0, b0), high(a0, b0), low(a1, b1), high(a1, b1)];
        let bottom = [low(c0, d0), high(c0, d0), low(c1, d1), high(c1, d1)];
        std::array::from_fn(|i| {
            let (t, b) = (top[i % 4], bottom[i % 4]);
            Lanes(if i < 4 {
                _mm256_permute2f128_ps::<0x20>(t, b)
            } else {
                _mm256_permute2f128_ps::<0x31>(t, b)
            })
        })
    }
}

/// The `N` by `N` inverse transform of the low frequencies, straight from the definition.
/// `basis[x][u]` is the contribution of frequency `u` to sample `x`.
#[inline(always)]
fn idct_scaled<const N: usize>(
    basis: &[[f32; N]; N],
    c: &Coefficients,
    dequant: &DequantTable,
    out: &mut [u8],
    stride: usize,
) {
    let mut half = [[0.0; N]; N];
    for u in 0..N {
        for x in 0..N {
            for v in 0..N {
                half[x][v] += f32::from(c[u * 8 + v]) * dequant[u * 8 + v] * basis[x][u];
            }
        }
    }
    for (y, row) in out.chunks_mut(stride).take(N).enumerate() {
        for x in 0..N {
            let mut sum = 0.0;
            for v in 0..N {
                sum += half[x][v] * basis[y][v];
            }
            row[x] = sample(sum);
        }
    }
}

/// `sqrt(2) cos((2 x + 1) u pi / 8)`, and 1 for u = 0.
const BASIS_4: [[f32; 4]; 4] = [
    [1.0, 1.306_563, 1.0, 0.541_196_1],
    [1.0, 0.541_196_1, -1.0, -1.306_563],
    [1.0, -0.541_196_1, -1.0, 1.306_563],
    [1.0, -1.306_563, 1.0, -0.541_196_1],
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::PI;

    fn block(seed: u64) -> Coefficients {
        let rng = tensorpack_tensor::CounterRng::new(seed, "block");
        std::array::from_fn(|i| {
            let (u, v) = (i / 8, i % 8);
            let size = if i == 0 { 400.0 } else { 300.0 / ((u + v) as f64) };
            if i < 64 { (rng.normal(0, i as u64) * size / 4.0) as i16 } else { 0 }
        })
    }

    /// The definition, ignoring frequencies of `n` and above.
    fn reference_idct(n: usize, c: &Coefficients, table: &[u16; 64], x: usize, y: usize) -> f64 {
        let a = |k: usize| if k == 0 { 0.5f64.sqrt() } else { 1.0 };
        let wave = |x: usize, k: usize| ((2 * x + 1) as f64 * k as f64 * PI / (2 * n) as f64).cos();
        let mut sum = 0.0;
        for u in 0..n {
            for v in 0..n {
                let value = f64::from(c[u * 8 + v]) * f64::from(table[v * 8 + u]);
                sum += a(u) * a(v) * value * wave(x, u) * wave(y, v) / 4.0;
            }
        }
        (sum + 128.0).clamp(0.0, 255.0)
    }

    #[test]
    fn every_size_matches_the_inverse_dct() {
        let table: [u16; 64] = std::array::from_fn(|i| 1 + (i % 7) as u16);
        for n in [8, 4, 2, 1] {
            let f = dequant_table(&table, n);
            for seed in 0..20 {
                let c = block(seed);
                let mut out = [0; 64 + 3 * 8];
                idct(n, Simd::detect(), &c, &f, &mut out, 11);
                for (y, x) in (0..n * n).map(|i| (i / n, i % n)) {
                    let expected = reference_idct(n, &c, &table, x, y);
                    let actual = f64::from(out[y * 11 + x]);
                    assert!((expected - actual).abs() <= 0.51, "{n}: at {x}, {y} {actual}, not {expected}");
                }
            }
        }
    }

    #[test]
    fn simd_matches_scalar() {
        let f = dequant_table(&std::array::from_fn(|i| 1 + i as u16), 8);
        for seed in 0..200 {
            let c = block(seed);
            let (mut a, mut b) = ([0; 64], [0; 64]);
            scalar(&c, &f, &mut a, 8);
            Simd::detect().inverse(&c, &f, &mut b, 8);
            assert_eq!(a, b);
        }
    }

    #[test]
    fn dc_only_block_is_constant() {
        let f = dequant_table(&[16; 64], 8);
        let mut c = [0; 80];
        c[0] = 21;
        let (mut a, mut b) = ([0; 64], [0; 64]);
        scalar(&c, &f, &mut a, 8);
        idct_dc_only(8, 21, &f, &mut b, 8);
        assert_eq!(a, [170; 64]);
        assert_eq!(a, b);
    }
}
