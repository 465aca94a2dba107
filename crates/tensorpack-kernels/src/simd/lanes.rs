//! Channels side by side: loops whose body the compiler turns into vector instructions.

/// Channels that are done side by side.
pub(crate) const LANES: usize = 16;

/// Calls `$body` for all channels, [`LANES`] at a time and the rest one by one, with `$n` the constant number of them.
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
