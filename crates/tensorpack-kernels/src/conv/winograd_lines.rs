//! Winograd convolution: the transforms of one line of a tile.
//!
//! F(m, 3) computes m outputs of a filter of three taps from m + 2 inputs with m + 2 products: it
//! multiplies the values of two polynomials at m + 1 points and at infinity. The transform of a tile
//! applies that of a line to all rows, and then to all columns.

use crate::simd::Simd;

/// The transforms of a line with `TILE` outputs and `SIDE = TILE + 2` inputs.
///
/// # Safety
/// All functions need a CPU that supports the instructions of `V`.
pub(crate) trait Lines<const TILE: usize, const SIDE: usize> {
    /// Transforms the taps of a filter.
    unsafe fn filter<V: Simd<Element = f32>>(g: [V; 3]) -> [V; SIDE];
    /// Transforms inputs.
    unsafe fn input<V: Simd<Element = f32>>(d: [V; SIDE]) -> [V; SIDE];
    /// Transforms products into outputs.
    unsafe fn output<V: Simd<Element = f32>>(m: [V; SIDE]) -> [V; TILE];
    /// Transforms the gradients of outputs.
    unsafe fn gradient<V: Simd<Element = f32>>(d: [V; TILE]) -> [V; SIDE];
    /// Transforms sums of products of inputs and gradients into the gradients of the taps.
    unsafe fn taps<V: Simd<Element = f32>>(u: [V; SIDE]) -> [V; 3];
}

/// F(2, 3), with the points 0, 1 and -1: only additions and halving, so small integers stay exact.
/// The rounding error is that of a few more additions.
pub(crate) struct F2;

impl Lines<2, 4> for F2 {
    #[inline(always)]
    unsafe fn filter<V: Simd<Element = f32>>(g: [V; 3]) -> [V; 4] {
        // SAFETY: the caller has the instructions.
        unsafe {
            let half = V::splat(&0.5);
            let (outer, middle) = (g[0].add(g[2]).mul(half), g[1].mul(half));
            [g[0], outer.add(middle), outer.sub(middle), g[2]]
        }
    }

    #[inline(always)]
    unsafe fn input<V: Simd<Element = f32>>(d: [V; 4]) -> [V; 4] {
        // SAFETY: the caller has the instructions.
        unsafe { [d[0].sub(d[2]), d[1].add(d[2]), d[2].sub(d[1]), d[1].sub(d[3])] }
    }

    #[inline(always)]
    unsafe fn output<V: Simd<Element = f32>>(m: [V; 4]) -> [V; 2] {
        // SAFETY: the caller has the instructions.
        unsafe { [m[0].add(m[1]).add(m[2]), m[1].sub(m[2]).sub(m[3])] }
    }

    #[inline(always)]
    unsafe fn gradient<V: Simd<Element = f32>>(d: [V; 2]) -> [V; 4] {
        // SAFETY: the caller has the instructions.
        unsafe { [d[0], d[0].add(d[1]), d[0].sub(d[1]), V::zero().sub(d[1])] }
    }

    #[inline(always)]
    unsafe fn taps<V: Simd<Element = f32>>(u: [V; 4]) -> [V; 3] {
        // SAFETY: the caller has the instructions.
        unsafe {
            let half = V::splat(&0.5);
            let (sum, difference) = (u[1].add(u[2]).mul(half), u[1].sub(u[2]).mul(half));
            [u[0].add(sum), difference, u[3].add(sum)]
        }
    }
}

/// F(4, 3), with the points 0, ±A, ±B and infinity. Small and large points keep the numbers of all
/// planes about as large as the inputs: with A = 5/8 and B = 3/2 the rounding error is half of that
/// with the usual 1 and 2.
pub(crate) struct F4;

const A: f32 = 0.625;
const B: f32 = 1.5;
const AA: f32 = A * A;
const BB: f32 = B * B;
/// The products of the distances of 0, of ±A and of ±B to the other points.
const AT_0: f32 = AA * BB;
const AT_A: f32 = 2.0 * AA * (AA - BB);
const AT_B: f32 = 2.0 * BB * (BB - AA);

impl Lines<4, 6> for F4 {
    #[inline(always)]
    unsafe fn filter<V: Simd<Element = f32>>(g: [V; 3]) -> [V; 6] {
        // SAFETY: the caller has the instructions.
        unsafe {
            let at_a = g[0].fma(g[2], V::splat(&AA)).mul(V::splat(&(1.0 / AT_A)));
            let at_b = g[0].fma(g[2], V::splat(&BB)).mul(V::splat(&(1.0 / AT_B)));
            let (odd_a, odd_b) = (V::splat(&(A / AT_A)), V::splat(&(B / AT_B)));
            let (minus_a, minus_b) = (V::splat(&(-A / AT_A)), V::splat(&(-B / AT_B)));
            [
                g[0].mul(V::splat(&(1.0 / AT_0))),
                at_a.fma(g[1], odd_a),
                at_a.fma(g[1], minus_a),
                at_b.fma(g[1], odd_b),
                at_b.fma(g[1], minus_b),
                g[2],
            ]
        }
    }

    #[inline(always)]
    unsafe fn input<V: Simd<Element = f32>>(d: [V; 6]) -> [V; 6] {
        // SAFETY: the caller has the instructions.
        unsafe {
            let (minus_aa, minus_bb) = (V::splat(&-AA), V::splat(&-BB));
            let (product, minus_sum) = (V::splat(&AT_0), V::splat(&-(AA + BB)));
            let (even_a, odd_a) = (d[4].fma(d[2], minus_bb), d[3].fma(d[1], minus_bb));
            let (even_b, odd_b) = (d[4].fma(d[2], minus_aa), d[3].fma(d[1], minus_aa));
            [
                d[4].fma(d[2], minus_sum).fma(d[0], product),
                even_a.fma(odd_a, V::splat(&A)),
                even_a.fma(odd_a, V::splat(&-A)),
                even_b.fma(odd_b, V::splat(&B)),
                even_b.fma(odd_b, V::splat(&-B)),
                d[5].fma(d[3], minus_sum).fma(d[1], product),
            ]
        }
    }

    #[inline(always)]
    unsafe fn output<V: Simd<Element = f32>>(m: [V; 6]) -> [V; 4] {
        // SAFETY: the caller has the instructions.
        unsafe {
            let (sum_a, difference_a) = (m[1].add(m[2]), m[1].sub(m[2]));
            let (sum_b, difference_b) = (m[3].add(m[4]), m[3].sub(m[4]));
            [
                m[0].add(sum_a).add(sum_b),
                difference_a.mul(V::splat(&A)).fma(difference_b, V::splat(&B)),
                sum_a.mul(V::splat(&AA)).fma(sum_b, V::splat(&BB)),
                m[5].fma(difference_a, V::splat(&(A * AA))).fma(difference_b, V::splat(&(B * BB))),
            ]
        }
    }

    #[inline(always)]
    unsafe fn gradient<V: Simd<Element = f32>>(d: [V; 4]) -> [V; 6] {
        // SAFETY: the caller has the instructions.
        unsafe {
            let (aa, bb) = (V::splat(&AA), V::splat(&BB));
            let (even_a, odd_a) = (d[0].fma(d[2], aa), d[1].fma(d[3], aa));
            let (even_b, odd_b) = (d[0].fma(d[2], bb), d[1].fma(d[3], bb));
            [
                d[0],
                even_a.fma(odd_a, V::splat(&A)),
                even_a.fma(odd_a, V::splat(&-A)),
                even_b.fma(odd_b, V::splat(&B)),
                even_b.fma(odd_b, V::splat(&-B)),
                d[3],
            ]
        }
    }

    #[inline(always)]
    unsafe fn taps<V: Simd<Element = f32>>(u: [V; 6]) -> [V; 3] {
        // SAFETY: the caller has the instructions.
        unsafe {
            let (at_a, at_b) = (V::splat(&(1.0 / AT_A)), V::splat(&(1.0 / AT_B)));
            let (sum_a, difference_a) = (u[1].add(u[2]).mul(at_a), u[1].sub(u[2]).mul(at_a));
            let (sum_b, difference_b) = (u[3].add(u[4]).mul(at_b), u[3].sub(u[4]).mul(at_b));
            [
                sum_a.add(sum_b).fma(u[0], V::splat(&(1.0 / AT_0))),
                difference_a.mul(V::splat(&A)).fma(difference_b, V::splat(&B)),
                u[5].fma(sum_a, V::splat(&AA)).fma(sum_b, V::splat(&BB)),
            ]
        }
    }
}
