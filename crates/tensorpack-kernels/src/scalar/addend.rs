//! Element types that can be summed without a conversion.

/// An element type with addition; integers wrap.
pub(crate) trait Addend: Copy + Default {
    /// The accumulator type: f64 for f32, whose sum would stop growing once an element is below
    /// half a unit in its last place; otherwise the type itself.
    type Running: Copy + Default;
    /// Returns `self + other`.
    fn plus(self, other: Self) -> Self;
    /// Adds this element to a running sum.
    fn added_to(self, sum: Self::Running) -> Self::Running;
    /// Rounds a running sum to an element.
    fn rounded(sum: Self::Running) -> Self;
}

macro_rules! addends {
    ($($t:ty as $running:ty: $plus:expr, $running_plus:expr;)*) => {$(
        impl Addend for $t {
            type Running = $running;
            #[inline(always)]
            fn plus(self, other: $t) -> $t {
                $plus(self, other)
            }
            #[inline(always)]
            fn added_to(self, sum: $running) -> $running {
                $running_plus(sum, self as $running)
            }
            #[inline(always)]
            fn rounded(sum: $running) -> $t {
                sum as $t
            }
        }
    )*};
}
addends! {
    f32 as f64: std::ops::Add::add, std::ops::Add::add;
    f64 as f64: std::ops::Add::add, std::ops::Add::add;
    i32 as i32: i32::wrapping_add, i32::wrapping_add;
    i64 as i64: i64::wrapping_add, i64::wrapping_add;
}
