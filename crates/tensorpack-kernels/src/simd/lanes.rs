//! Loops over channels whose body the compiler vectorizes.

/// Channels per iteration.
pub(crate) const LANES: usize = 16;

/// Runs `$body` for all channels from `$c` on, [`LANES`] at a time and the rest one by one; `$n` is
/// the number of channels, as a constant.
macro_rules! by_lanes {
    ($channels:expr, |$c:ident, $n:ident| $body:expr) => {{
        let mut $c = 0;
        while $c + $crate::simd::lanes::LANES <= $channels {
            const $n: usize = $crate::simd::lanes::LANES;
            $body;
            $c += $crate::simd::lanes::LANES;
        }
        while $c < $channels {
            const $n: usize = 1;
            $body;
            $c += 1;
        }
    }};
}
pub(crate) use by_lanes;
