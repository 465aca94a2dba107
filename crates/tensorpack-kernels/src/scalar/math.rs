//! Branch-free f32 functions that the compiler vectorizes, and the error function, which std lacks.
//! The polynomials are plain Taylor series on ranges small enough for full f32 accuracy.
//!
//! `exp`, `expm1`, `log`, `erf`, `sin` and `cos` are within 2 units in the last place of the true
//! result, `log1p`, `tanh` and `sigmoid` within 4. `sin` and `cos` hold up to [`FAR`], beyond which
//! [`sin_far`] and [`cos_far`] take over. All give NaN for NaN, and the limits at infinity. They
//! use fused multiply-add: call them only where that is an instruction.

use std::f32::consts::{LN_2, LOG2_E};

/// Adding and subtracting this rounds a small f32 to an integer, which is also in the low bits of
/// the sum.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
/// ln 2 in two parts; the first has few bits, so that small multiples of it are exact.
const LN2_HI: f32 = 0.693_359_4;
const LN2_LO: f32 = (std::f64::consts::LN_2 - 0.693_359_375) as f32;

/// The coefficients `1/1!, 1/2!, ... 1/7!` of `(e^r - 1) / r`.
const EXPM1: [f32; 7] = [1.0, 0.5, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0, 1.0 / 720.0, 1.0 / 5040.0];

/// Evaluates a polynomial by Horner's rule, lowest coefficient first.
#[inline(always)]
fn poly<const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut sum = c[N - 1];
    for i in (0..N - 1).rev() {
        sum = sum.mul_add(x, c[i]);
    }
    sum
}

/// Clamps `x` to `lo..=hi`; NaN stays NaN.
#[inline(always)]
fn clamp(x: f32, lo: f32, hi: f32) -> f32 {
    let x = if x < lo { lo } else { x };
    if x > hi { hi } else { x }
}

/// Splits `x` into `n * ln 2 + r` with |r| at most half of ln 2, and returns `e^r - 1` and the
/// integer n.
#[inline(always)]
fn split_exp(x: f32) -> (f32, i32) {
    let t = x.mul_add(LOG2_E, ROUND);
    let n = t - ROUND;
    let r = n.mul_add(-LN2_LO, n.mul_add(-LN2_HI, x));
    (r * poly(r, EXPM1), (t.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32))
}

/// Returns `2^n`, for the exponents of normal numbers.
#[inline(always)]
fn exp2i(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// Returns `e^x`.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let (p, n) = split_exp(clamp(x, -104.0, 89.0));
    // In two factors, because 2^n alone overflows before the product does.
    let half = n >> 1;
    (p + 1.0) * exp2i(half) * exp2i(n.wrapping_sub(half))
}

/// Returns `e^x - 1`, accurate also near zero.
#[inline(always)]
pub(crate) fn expm1(x: f32) -> f32 {
    let x = clamp(x, -25.0, 89.0);
    // x = n ln 2 + r as in `split_exp`, but n is 0 until the result reaches 1/2: for n = 1 and a
    // smaller result, cancellation would magnify the rounding error of r. The first term of the
    // series is added last, so that it stays exact.
    let t = if x.abs() < 0.41 { ROUND } else { x.mul_add(LOG2_E, ROUND) };
    let whole = t - ROUND;
    let r = whole.mul_add(-LN2_LO, whole.mul_add(-LN2_HI, x));
    const TAIL: [f32; 7] =
        [0.5, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0, 1.0 / 720.0, 1.0 / 5040.0, 1.0 / 40_320.0];
    let p = (r * r).mul_add(poly(r, TAIL), r);
    let n = (t.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    // Compute 2^n (p + 1) - 1 in an order that keeps the digits of p where n is 0. Past 60 the 1 is
    // below the last place and 2^n is about to overflow, so take the product as in `exp`.
    let scale = exp2i(if n > 90 { 90 } else { n });
    let near = p.mul_add(scale, scale - 1.0);
    let half = n >> 1;
    let far = (p + 1.0) * exp2i(half) * exp2i(n.wrapping_sub(half));
    // Keep the sign of -0, which the sum loses.
    let near = if x == 0.0 { x } else { near };
    if x > 60.0 { far } else { near }
}

/// Returns the natural logarithm.
#[inline(always)]
pub(crate) fn log(x: f32) -> f32 {
    let small = x < f32::MIN_POSITIVE;
    let y = if small { x * 8_388_608.0 } else { x };
    // y = m * 2^e with m from sqrt(1/2) to sqrt(2).
    let e = (y.to_bits() as i32).wrapping_sub(0x3f35_04f3) >> 23;
    let m = f32::from_bits((y.to_bits() as i32).wrapping_sub(e << 23) as u32);
    let e = e as f32 - if small { 23.0 } else { 0.0 };
    // log(1 + f) = 2 artanh(s) with s = f / (2 + f), arranged so that f itself stays exact.
    let f = m - 1.0;
    let s = f / (m + 1.0);
    let s2 = s * s;
    let r = s2 * poly(s2, [2.0 / 3.0, 2.0 / 5.0, 2.0 / 7.0, 2.0 / 9.0]);
    let h = 0.5 * f * f;
    let v = e.mul_add(LN2_HI, f - (h - s.mul_add(h + r, e * LN2_LO)));
    let v = if x == 0.0 { f32::NEG_INFINITY } else { v };
    let v = if x < 0.0 { f32::NAN } else { v };
    // Infinity and NaN are their own logarithm.
    if x < f32::INFINITY { v } else { x }
}

/// Returns `log(1 + x)`, accurate also for small `x`.
#[inline(always)]
pub(crate) fn log1p(x: f32) -> f32 {
    let u = 1.0 + x;
    // Add what rounding `1 + x` lost, to first order.
    let lost = (x - (u - 1.0)) / u;
    let v = log(u);
    if u > 0.0 && u < f32::INFINITY { v + lost } else { v }
}

/// Returns the hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    // t = e^(2|x|) - 1 without cancellation, then tanh = t / (t + 2).
    let (p, n) = split_exp(clamp(2.0 * x.abs(), 0.0, 40.0));
    let scale = exp2i(n);
    let t = p.mul_add(scale, scale - 1.0);
    (t / (t + 2.0)).copysign(x)
}

/// Returns `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Returns the error function.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let a = x.abs();
    // Near zero x + x Q(x^2), which keeps small results exact. Both polynomials are minimax fits
    // for f32: Q to erf(x) / x - 1, the other to the logarithm of 1 - erf.
    const NEAR: [f32; 7] = [
        0.128_379_17,
        -0.376_126_35,
        0.112_837_15,
        -0.026_860_51,
        0.005_203_863,
        -0.000_817_567_75,
        0.000_085_132_48,
    ];
    let near = x.mul_add(poly(x * x, NEAR), x);
    const FAR: [f32; 8] = [
        0.000_170_552_03,
        -1.129_495_1,
        -0.633_386_7,
        -0.108_236_62,
        0.025_091_497,
        -0.004_160_527,
        0.000_432_303,
        -0.000_020_909_556,
    ];
    // From 4 on the result is 1.
    let far = (1.0 - exp(poly(clamp(a, 0.0, 4.0), FAR))).copysign(x);
    // NaN takes the first branch, which propagates it.
    if a > 0.9 { far } else { near }
}

/// The largest argument of [`sin`] and [`cos`], where reduction by pi/2 in two parts is still
/// accurate.
pub(crate) const FAR: f32 = 1_099_511_627_776.0; // 2^40

/// Splits `x` into a multiple of pi/2 and a remainder. Returns the sine and cosine of the
/// remainder, and the low bits of the multiple.
#[inline(always)]
fn split_turn(x: f32) -> (f32, f32, u64) {
    const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52
    /// The difference between pi/2 and its nearest f64.
    const FRAC_PI_2_LO: f64 = 6.123_233_995_736_766e-17;
    let wide = f64::from(x);
    let t = wide.mul_add(std::f64::consts::FRAC_2_PI, ROUND);
    let n = t - ROUND;
    let r = n.mul_add(-FRAC_PI_2_LO, n.mul_add(-std::f64::consts::FRAC_PI_2, wide)) as f32;
    let r2 = r * r;
    let sin = (r * r2).mul_add(poly(r2, [-1.0 / 6.0, 1.0 / 120.0, -1.0 / 5040.0, 1.0 / 362_880.0]), r);
    let cos = poly(r2, [1.0, -0.5, 1.0 / 24.0, -1.0 / 720.0, 1.0 / 40_320.0, -1.0 / 3_628_800.0]);
    (sin, cos, t.to_bits())
}

/// Returns the sine of an argument beyond [`FAR`], through f64, whose argument reduction is exact.
pub(crate) fn sin_far(x: f32) -> f32 {
    f64::from(x).sin() as f32
}

/// Returns the cosine of an argument beyond [`FAR`].
pub(crate) fn cos_far(x: f32) -> f32 {
    f64::from(x).cos() as f32
}

/// Returns the sine.
#[inline(always)]
pub(crate) fn sin(x: f32) -> f32 {
    let (s, c, n) = split_turn(x);
    let v = if n & 1 == 0 { s } else { c };
    if n & 2 == 0 { v } else { -v }
}

/// Returns the cosine.
#[inline(always)]
pub(crate) fn cos(x: f32) -> f32 {
    let (s, c, n) = split_turn(x);
    let v = if n & 1 == 0 { c } else { s };
    if n.wrapping_add(1) & 2 == 0 { v } else { -v }
}

/// Returns the error function in f64, with a relative error of about 1e-15.
pub(crate) fn erf_f64(x: f64) -> f64 {
    let a = x.abs();
    if a.is_nan() {
        return x;
    }
    if a > 6.0 {
        return 1f64.copysign(x);
    }
    // e^(-a^2), corrected for the rounding of a^2.
    let a2 = a * a;
    let gauss = (-a2).exp() * (1.0 - a.mul_add(a, -a2));
    if a < 3.0 {
        // 2/sqrt(pi) e^(-x^2) sum of (2 x^2)^n x / (1 * 3 * ... (2n+1)): every term is positive.
        let (mut term, mut sum, mut n) = (a, a, 1.0);
        while term > sum * 1e-17 {
            n += 2.0;
            term *= 2.0 * a2 / n;
            sum += term;
        }
        (std::f64::consts::FRAC_2_SQRT_PI * gauss * sum).copysign(x)
    } else {
        // erfc's continued fraction, from the inside out.
        let mut tail = a;
        for k in (1..=60).rev() {
            tail = a + f64::from(k) * 0.5 / tail;
        }
        (1.0 - 0.5 * std::f64::consts::FRAC_2_SQRT_PI * gauss / tail).copysign(x)
    }
}

/// Checks that ln 2 is split exactly.
const _: () = assert!(LN2_HI + LN2_LO == LN_2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::elementwise::steps;
    use crate::expr::{Class, Unary};

    /// Every 9,973rd bit pattern: all exponents, both signs, infinities and NaNs.
    fn sweep() -> impl Iterator<Item = f32> {
        let special =
            [0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE, 0.5];
        (0..=u32::MAX).step_by(9_973).map(f32::from_bits).chain(special)
    }

    fn ulps(got: f32, want: f64) -> f64 {
        if want.is_nan() && got.is_nan() || f64::from(got) == want || got == want as f32 {
            return 0.0;
        }
        let w = want as f32;
        // Results in the subnormal range may lose their last bits or be zero.
        let ulp = f64::from(f32::from_bits(w.abs().max(f32::MIN_POSITIVE).to_bits() + 1))
            - f64::from(w.abs().max(f32::MIN_POSITIVE));
        if w.abs() < f32::MIN_POSITIVE && got.abs() <= f32::MIN_POSITIVE {
            return 0.0;
        }
        (f64::from(got) - want).abs() / ulp
    }

    #[track_caller]
    fn check(name: &str, fast: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64, limit: f64) {
        for x in sweep().chain((-40_000..40_000).map(|i| i as f32 * 0.002_501)) {
            let (got, want) = (fast(x), exact(f64::from(x)));
            let off = ulps(got, want);
            assert!(off <= limit, "{name}({x:e}) = {got:e}, should be {want:e}: {off} ulps");
        }
    }

    #[test]
    fn within_ulps_of_std() {
        check("exp", exp, f64::exp, 2.0);
        check("log", log, f64::ln, 2.0);
        check("expm1", expm1, f64::exp_m1, 2.0);
        check("log1p", log1p, f64::ln_1p, 4.0);
        check("tanh", tanh, f64::tanh, 4.0);
        check("sigmoid", sigmoid, |x| 1.0 / (1.0 + (-x).exp()), 4.0);
    }

    /// Checks a unary step on every instruction set, including the loops around the functions
    /// above.
    fn on_each_isa(op: Unary, xs: &[f32], exact: impl Fn(f64) -> f64, limit: f64) {
        let want: Vec<f64> = xs.iter().map(|&x| exact(f64::from(x))).collect();
        for isa in Isa::available() {
            let mut got = vec![0f32; xs.len()];
            // SAFETY: `xs.len()` elements at each pointer, and the CPU supports the instructions.
            unsafe {
                steps::unary(isa, op, Class::F32, xs.len(), xs.as_ptr().cast(), got.as_mut_ptr().cast());
            }
            for ((&x, &got), &want) in xs.iter().zip(&got).zip(&want) {
                let off = ulps(got, want);
                assert!(off <= limit, "{op:?}({x:e}) = {got:e} on {isa}, should be {want:e}: {off} ulps");
            }
        }
    }

    #[test]
    fn erf_sin_cos_and_expm1_are_within_two_ulps_everywhere() {
        let dense = (-400_000..400_000).map(|i| i as f32 * 0.000_025_1);
        let turns = (-200_000..200_000).map(|i| i as f32 * 0.1003);
        // Among all f32 these are closest to a multiple of pi/2, where the reduction loses most;
        // and both sides of where the far reduction takes over.
        let hard =
            [16_367_173.0 * 2f32.powi(72), 1e30, -1e30, f32::MAX, f32::MIN, FAR, -FAR, 1.000_001 * FAR];
        let xs: Vec<f32> = sweep().chain(dense).chain(turns).chain(hard).collect();
        on_each_isa(Unary::Erf, &xs, erf_f64, 2.0);
        on_each_isa(Unary::Expm1, &xs, f64::exp_m1, 2.0);
        on_each_isa(Unary::Sin, &xs, f64::sin, 2.0);
        on_each_isa(Unary::Cos, &xs, f64::cos, 2.0);
    }

    #[test]
    fn erf_matches_published_values() {
        for (x, want) in [
            (0.1, 0.112_462_916_018_284_89),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.0, 0.995_322_265_018_952_7),
            (2.9, 0.999_958_902_121_900_5),
            (3.1, 0.999_988_351_342_632_8),
            (4.0, 0.999_999_984_582_742_1),
        ] {
            assert!((erf_f64(x) - want).abs() <= 2e-15 * want, "erf({x}) = {}", erf_f64(x));
            assert_eq!(erf_f64(-x), -erf_f64(x));
        }
        assert_eq!(erf_f64(0.0), 0.0);
        assert_eq!(erf_f64(f64::INFINITY), 1.0);
        assert!(erf_f64(f64::NAN).is_nan());
        assert!((erf_f64(1e-300) / 1e-300 - std::f64::consts::FRAC_2_SQRT_PI).abs() < 1e-15);
    }
}
