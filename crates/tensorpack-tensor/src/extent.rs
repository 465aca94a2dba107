//! Bounds on products of sizes, shared by the kernel IR and the CPU kernels.
//!
//! Whoever multiplies sizes, strides and offsets without checking for overflow checks them here
//! first: products stay within a small multiple of [`MAX_ELEMENTS`], which leaves room in 64 bits
//! for element sizes and padding.

use crate::{Error, ErrorKind, Result};

/// Maximum number of elements that a kernel may read, write or count: more than any machine has
/// memory for, and few enough that the arithmetic on sizes cannot overflow.
pub const MAX_ELEMENTS: usize = 1 << 48;

/// Returns an error of kind [`ErrorKind::Memory`] if the product of `sizes` is larger than
/// [`MAX_ELEMENTS`]. A 0 counts as 1, because kernels also multiply parts of a shape.
pub fn check_extent(what: &str, sizes: &[usize]) -> Result<()> {
    let product = |n: usize, &s: &usize| n.checked_mul(s.max(1)).filter(|&n| n <= MAX_ELEMENTS);
    match sizes.iter().try_fold(1, product) {
        Some(_) => Ok(()),
        None => Err(Error::new(
            ErrorKind::Memory,
            format!("{what} of {sizes:?} has more than {MAX_ELEMENTS} elements, the most a kernel supports"),
        )),
    }
}

/// Returns an error of kind [`ErrorKind::Argument`] if one of two divisors is 0.
pub fn check_positive(what: &str, sizes: [usize; 2]) -> Result<()> {
    match sizes.contains(&0) {
        true => Err(Error::argument(format!("{what} {sizes:?} must be at least 1"))),
        false => Ok(()),
    }
}

/// The windows of a convolution or pooling along one axis of an image.
#[derive(Clone, Copy, Debug)]
pub struct AxisWindows {
    /// Size of the input.
    pub size: usize,
    /// Padding before the input.
    pub pad: usize,
    /// Number of windows.
    pub out: usize,
    /// Positions from one window to the next.
    pub stride: usize,
    /// Elements of a window.
    pub taps: usize,
    /// Positions from one element of a window to the next.
    pub dilation: usize,
}

impl AxisWindows {
    /// Returns an upper bound of the input positions that a kernel may count over, padding included;
    /// `usize::MAX` if there are too many to count.
    pub fn reach(&self) -> usize {
        let covered = || {
            let windows = self.out.saturating_sub(1).checked_mul(self.stride)?;
            let window = self.taps.saturating_sub(1).checked_mul(self.dilation)?;
            let covered = windows.checked_add(window)?.checked_add(1)?;
            Some(covered).filter(|&n| n.max(self.stride).max(self.dilation) <= MAX_ELEMENTS)
        };
        covered().map_or(usize::MAX, |covered| self.size.saturating_add(self.pad).saturating_add(covered))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_bounded_and_zeros_count_as_one() {
        assert!(check_extent("rows", &[0, 1 << 24, 1 << 24]).is_ok());
        for sizes in [[0, 1 << 25, 1 << 24], [usize::MAX, usize::MAX, 1]] {
            assert_eq!(check_extent("rows", &sizes).unwrap_err().kind(), ErrorKind::Memory);
        }
        assert_eq!(check_positive("stride", [1, 0]).unwrap_err().kind(), ErrorKind::Argument);
        assert!(check_positive("stride", [1, 2]).is_ok());
    }

    #[test]
    fn windows_reach_over_stride_and_dilation() {
        let windows = AxisWindows { size: 4, pad: 1, out: 3, stride: 2, taps: 3, dilation: 5 };
        assert_eq!(windows.reach(), 4 + 1 + (2 * 2 + 2 * 5 + 1));
        for endless in
            [AxisWindows { dilation: usize::MAX, ..windows }, AxisWindows { stride: 1 << 49, ..windows }]
        {
            assert_eq!(endless.reach(), usize::MAX);
        }
    }
}
