//! Numbers that are added up as they lie in memory.

/// What can be added up; integers wrap.
pub(crate) trait Addend: Copy + Default {
    /// The sum.
    fn plus(self, other: Self) -> Self;
}

macro_rules! addends {
    ($($t:ty: $plus:expr),*) => {$(
        impl Addend for $t {
            #[inline(always)]
            fn plus(self, other: $t) -> $t {
                $plus(self, other)
            }
        }
    )*};
}
addends!(f32: std::ops::Add::add, f64: std::ops::Add::add, i32: i32::wrapping_add, i64: i64::wrapping_add);
