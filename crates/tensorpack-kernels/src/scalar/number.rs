//! The three types that arithmetic is done in, and the functions of expression steps on one
//! element.

use crate::scalar::element::To;
use crate::scalar::math;

/// A type that expressions compute in. `FAST` picks the vectorizable f32 functions of [`math`] over
/// std's.
pub(crate) trait Number: Copy + PartialOrd + To<f64> {
    const ZERO: Self;
    const ONE: Self;
    /// Where a running maximum starts.
    const LOWEST: Self;
    /// Where a running minimum starts.
    const HIGHEST: Self;
    fn add(self, b: Self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    fn div(self, b: Self) -> Self;
    fn pow(self, b: Self) -> Self;
    fn is_nan(self) -> bool;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    fn sign(self) -> Self;
    fn exp<const FAST: bool>(self) -> Self;
    fn expm1<const FAST: bool>(self) -> Self;
    fn log<const FAST: bool>(self) -> Self;
    fn log1p<const FAST: bool>(self) -> Self;
    fn sqrt(self) -> Self;
    fn tanh<const FAST: bool>(self) -> Self;
    fn sigmoid<const FAST: bool>(self) -> Self;
    fn erf<const FAST: bool>(self) -> Self;
    fn sin<const FAST: bool>(self) -> Self;
    fn cos<const FAST: bool>(self) -> Self;
    fn floor(self) -> Self;
    fn round(self) -> Self;
    fn is_finite(self) -> bool;

    /// Returns whether this is too large for the fast `sin` and `cos`; then use `sin_far` and
    /// `cos_far`.
    #[inline(always)]
    fn is_far(self) -> bool {
        false
    }
    #[inline(always)]
    fn sin_far(self) -> Self {
        self.sin::<false>()
    }
    #[inline(always)]
    fn cos_far(self) -> Self {
        self.cos::<false>()
    }
    #[inline(always)]
    fn from_bool(b: bool) -> Self {
        if b { Self::ONE } else { Self::ZERO }
    }
    #[inline(always)]
    fn is_true(self) -> bool {
        self != Self::ZERO
    }
    /// Returns the larger one; NaN if either is NaN.
    #[inline(always)]
    fn max(self, b: Self) -> Self {
        if self > b || self.is_nan() { self } else { b }
    }
    /// Returns the smaller one; NaN if either is NaN.
    #[inline(always)]
    fn min(self, b: Self) -> Self {
        if self < b || self.is_nan() { self } else { b }
    }
    #[inline(always)]
    fn relu(self) -> Self {
        // NaN is not below zero, so it stays.
        if self < Self::ZERO { Self::ZERO } else { self }
    }
}

/// The functions that are the same for f32 and f64.
macro_rules! float_basics {
    ($t:ident) => {
        const ZERO: $t = 0.0;
        const ONE: $t = 1.0;
        const LOWEST: $t = $t::NEG_INFINITY;
        const HIGHEST: $t = $t::INFINITY;
        #[inline(always)]
        fn add(self, b: $t) -> $t {
            self + b
        }
        #[inline(always)]
        fn sub(self, b: $t) -> $t {
            self - b
        }
        #[inline(always)]
        fn mul(self, b: $t) -> $t {
            self * b
        }
        #[inline(always)]
        fn div(self, b: $t) -> $t {
            self / b
        }
        #[inline(always)]
        fn pow(self, b: $t) -> $t {
            self.powf(b)
        }
        #[inline(always)]
        fn is_nan(self) -> bool {
            $t::is_nan(self)
        }
        #[inline(always)]
        fn neg(self) -> $t {
            -self
        }
        #[inline(always)]
        fn abs(self) -> $t {
            $t::abs(self)
        }
        #[inline(always)]
        fn sign(self) -> $t {
            // The sign of zero and NaN is the value itself.
            let v = if self < 0.0 { -1.0 } else { self };
            if self > 0.0 { 1.0 } else { v }
        }
        #[inline(always)]
        fn sqrt(self) -> $t {
            $t::sqrt(self)
        }
        #[inline(always)]
        fn floor(self) -> $t {
            $t::floor(self)
        }
        #[inline(always)]
        fn round(self) -> $t {
            self.round_ties_even()
        }
        #[inline(always)]
        fn is_finite(self) -> bool {
            $t::abs(self) < $t::INFINITY
        }
    };
}

impl Number for f32 {
    float_basics!(f32);
    #[inline(always)]
    fn exp<const FAST: bool>(self) -> f32 {
        if FAST { math::exp(self) } else { f32::exp(self) }
    }
    #[inline(always)]
    fn expm1<const FAST: bool>(self) -> f32 {
        if FAST { math::expm1(self) } else { self.exp_m1() }
    }
    #[inline(always)]
    fn log<const FAST: bool>(self) -> f32 {
        if FAST { math::log(self) } else { self.ln() }
    }
    #[inline(always)]
    fn log1p<const FAST: bool>(self) -> f32 {
        if FAST { math::log1p(self) } else { self.ln_1p() }
    }
    #[inline(always)]
    fn tanh<const FAST: bool>(self) -> f32 {
        if FAST { math::tanh(self) } else { f32::tanh(self) }
    }
    #[inline(always)]
    fn sigmoid<const FAST: bool>(self) -> f32 {
        if FAST { math::sigmoid(self) } else { 1.0 / (1.0 + f32::exp(-self)) }
    }
    #[inline(always)]
    fn erf<const FAST: bool>(self) -> f32 {
        if FAST { math::erf(self) } else { math::erf_f64(f64::from(self)) as f32 }
    }
    #[inline(always)]
    fn sin<const FAST: bool>(self) -> f32 {
        if FAST { math::sin(self) } else { f32::sin(self) }
    }
    #[inline(always)]
    fn cos<const FAST: bool>(self) -> f32 {
        if FAST { math::cos(self) } else { f32::cos(self) }
    }
    #[inline(always)]
    fn is_far(self) -> bool {
        f32::abs(self) > math::FAR
    }
    #[inline(always)]
    fn sin_far(self) -> f32 {
        math::sin_far(self)
    }
    #[inline(always)]
    fn cos_far(self) -> f32 {
        math::cos_far(self)
    }
}

impl Number for f64 {
    float_basics!(f64);
    #[inline(always)]
    fn exp<const FAST: bool>(self) -> f64 {
        f64::exp(self)
    }
    #[inline(always)]
    fn expm1<const FAST: bool>(self) -> f64 {
        self.exp_m1()
    }
    #[inline(always)]
    fn log<const FAST: bool>(self) -> f64 {
        self.ln()
    }
    #[inline(always)]
    fn log1p<const FAST: bool>(self) -> f64 {
        self.ln_1p()
    }
    #[inline(always)]
    fn tanh<const FAST: bool>(self) -> f64 {
        f64::tanh(self)
    }
    #[inline(always)]
    fn sigmoid<const FAST: bool>(self) -> f64 {
        1.0 / (1.0 + f64::exp(-self))
    }
    #[inline(always)]
    fn erf<const FAST: bool>(self) -> f64 {
        math::erf_f64(self)
    }
    #[inline(always)]
    fn sin<const FAST: bool>(self) -> f64 {
        f64::sin(self)
    }
    #[inline(always)]
    fn cos<const FAST: bool>(self) -> f64 {
        f64::cos(self)
    }
}

impl Number for i64 {
    const ZERO: i64 = 0;
    const ONE: i64 = 1;
    const LOWEST: i64 = i64::MIN;
    const HIGHEST: i64 = i64::MAX;
    #[inline(always)]
    fn add(self, b: i64) -> i64 {
        self.wrapping_add(b)
    }
    #[inline(always)]
    fn sub(self, b: i64) -> i64 {
        self.wrapping_sub(b)
    }
    #[inline(always)]
    fn mul(self, b: i64) -> i64 {
        self.wrapping_mul(b)
    }
    #[inline(always)]
    fn div(self, b: i64) -> i64 {
        if b == 0 { 0 } else { self.wrapping_div(b) }
    }
    #[inline(always)]
    fn pow(self, b: i64) -> i64 {
        match (self, b) {
            // A fraction truncates to 0, as in division; so does the power that would divide by 0.
            (1, _) => 1,
            (-1, _) => 1 - 2 * (b & 1),
            (_, ..0) => 0,
            _ => power(self, b as u64),
        }
    }
    #[inline(always)]
    fn is_nan(self) -> bool {
        false
    }
    #[inline(always)]
    fn neg(self) -> i64 {
        self.wrapping_neg()
    }
    #[inline(always)]
    fn abs(self) -> i64 {
        self.wrapping_abs()
    }
    #[inline(always)]
    fn sign(self) -> i64 {
        self.signum()
    }
    #[inline(always)]
    fn exp<const FAST: bool>(self) -> i64 {
        (self as f64).exp() as i64
    }
    #[inline(always)]
    fn expm1<const FAST: bool>(self) -> i64 {
        (self as f64).exp_m1() as i64
    }
    #[inline(always)]
    fn log<const FAST: bool>(self) -> i64 {
        (self as f64).ln() as i64
    }
    #[inline(always)]
    fn log1p<const FAST: bool>(self) -> i64 {
        (self as f64).ln_1p() as i64
    }
    #[inline(always)]
    fn sqrt(self) -> i64 {
        (self as f64).sqrt() as i64
    }
    #[inline(always)]
    fn tanh<const FAST: bool>(self) -> i64 {
        (self as f64).tanh() as i64
    }
    #[inline(always)]
    fn sigmoid<const FAST: bool>(self) -> i64 {
        (1.0 / (1.0 + (-(self as f64)).exp())) as i64
    }
    #[inline(always)]
    fn erf<const FAST: bool>(self) -> i64 {
        math::erf_f64(self as f64) as i64
    }
    #[inline(always)]
    fn sin<const FAST: bool>(self) -> i64 {
        (self as f64).sin() as i64
    }
    #[inline(always)]
    fn cos<const FAST: bool>(self) -> i64 {
        (self as f64).cos() as i64
    }
    #[inline(always)]
    fn floor(self) -> i64 {
        self
    }
    #[inline(always)]
    fn round(self) -> i64 {
        self
    }
    #[inline(always)]
    fn is_finite(self) -> bool {
        true
    }
}

/// Integer power by squaring, wrapping.
fn power(mut base: i64, mut exponent: u64) -> i64 {
    let mut product = 1i64;
    while exponent != 0 {
        if exponent & 1 == 1 {
            product = product.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        exponent >>= 1;
    }
    product
}
