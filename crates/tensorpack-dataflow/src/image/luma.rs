//! Luma (BT.601) of RGB colors.

/// Returns `0.299 r + 0.587 g + 0.114 b`, rounded, in fixed-point arithmetic with 14 fractional
/// bits.
#[inline(always)]
pub(super) fn luma_u8(r: u8, g: u8, b: u8) -> u8 {
    ((u32::from(r) * 4899 + u32::from(g) * 9617 + u32::from(b) * 1868 + (1 << 13)) >> 14) as u8
}

/// Returns `0.299 r + 0.587 g + 0.114 b`.
#[inline(always)]
pub(super) fn luma_f32(r: f32, g: f32, b: f32) -> f32 {
    0.299 * r + 0.587 * g + 0.114 * b
}
