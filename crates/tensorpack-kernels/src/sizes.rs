//! Checks of kernel sizes.
//!
//! Kernels multiply sizes, strides and offsets without checking for overflow, in the inner loops as
//! well as in the partition into chunks. That is sound because every descriptor passes its `check`
//! first: all products that a kernel forms stay within a small multiple of [`MAX_ELEMENTS`], which
//! leaves room in 64 bits for element sizes and padding to whole vectors. Kernels built from lists
//! of sizes, such as [`Map`](crate::Map) and [`Copy`](crate::Copy), form no product larger than the
//! length of their dense output, and handle empty spaces themselves.

use crate::conv::Conv2d;
use crate::{Argsort, Cumsum, GatherScatter, MatMul, Pad, Pool};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Maximum number of elements that a kernel may read, write or count: more than any machine has
/// memory for, and few enough that the arithmetic on sizes cannot overflow.
pub const MAX_ELEMENTS: usize = 1 << 48;

/// Returns the product of `sizes` if it is at most [`MAX_ELEMENTS`]. A 0 counts as 1, because
/// kernels also multiply parts of a shape.
fn extent(sizes: &[usize]) -> Option<usize> {
    sizes.iter().try_fold(1usize, |n, &s| n.checked_mul(s.max(1)).filter(|&n| n <= MAX_ELEMENTS))
}

/// Returns an error of kind [`ErrorKind::Memory`] if the product of `sizes` is larger than
/// [`MAX_ELEMENTS`].
fn check_extent(what: &str, sizes: &[usize]) -> Result<()> {
    match extent(sizes) {
        Some(_) => Ok(()),
        None => Err(Error::new(
            ErrorKind::Memory,
            format!("{what} of {sizes:?} has more than {MAX_ELEMENTS} elements, the most a kernel supports"),
        )),
    }
}

/// Returns an error of kind [`ErrorKind::Argument`] if one of two divisors is 0.
fn check_positive(what: &str, sizes: [usize; 2]) -> Result<()> {
    match sizes.contains(&0) {
        true => Err(Error::argument(format!("{what} {sizes:?} must be at least 1"))),
        false => Ok(()),
    }
}

/// Returns the extent of `out` windows of `taps` taps along one axis, from the first padding to the
/// last tap.
fn span(out: usize, stride: usize, taps: usize, dilation: usize) -> Option<usize> {
    let windows = out.saturating_sub(1).checked_mul(stride)?;
    let window = taps.saturating_sub(1).checked_mul(dilation)?;
    windows.checked_add(window)?.checked_add(1).filter(|&n| n.max(stride).max(dilation) <= MAX_ELEMENTS)
}

/// Returns the number of input positions along one axis that a kernel may count over, padding
/// included.
fn positions(size: usize, pad: usize, span: Option<usize>) -> usize {
    span.map_or(usize::MAX, |span| size.saturating_add(pad).saturating_add(span))
}

impl MatMul {
    /// Checks that no product of the sizes overflows.
    pub(crate) fn check_sizes(&self) -> Result<()> {
        if self.rhs_panels && self.rhs_transposed {
            return Err(Error::argument(
                "`rhs_panels` and `rhs_transposed` exclude each other: a right operand in panels cannot be transposed",
            ));
        }
        check_extent("left operand", &[self.batch, self.m, self.k])?;
        check_extent("right operand", &[self.batch, self.k, self.n.saturating_add(MatMul::PANEL)])?;
        check_extent("matrix product", &[self.batch, self.m, self.n])
    }
}

impl Conv2d {
    /// Checks that no product of the sizes overflows: images, filters, and the part of an image
    /// that the windows cover, padding included.
    pub(crate) fn check_sizes(&self) -> Result<()> {
        check_positive("stride", self.stride)?;
        check_positive("dilation", self.dilation)?;
        check_extent("input image", &[self.batch, self.in_size[0], self.in_size[1], self.in_channels])?;
        check_extent("output image", &[self.batch, self.out_size[0], self.out_size[1], self.out_channels])?;
        check_extent("filter", &[self.kernel[0], self.kernel[1], self.in_channels, self.out_channels])?;
        let reach = [0, 1].map(|i| {
            let span = span(self.out_size[i], self.stride[i], self.kernel[i], self.dilation[i]);
            positions(self.in_size[i], self.pad_low[i], span)
        });
        // The part of an image that a chunk copies, with a gap between pixels, or per pair of
        // channels.
        let channels = self.in_channels.max(self.out_channels).saturating_add(16);
        check_extent("padded window", &[4, reach[0], reach[1], channels])
    }
}

impl Conv2d {
    /// Checks the sizes of a depthwise convolution.
    pub(crate) fn check_depthwise(&self) -> Result<()> {
        if self.in_channels != self.out_channels {
            let [x, y] = [self.in_channels, self.out_channels];
            return Err(Error::argument(format!(
                "a depthwise convolution needs as many output channels as input channels, not {y} and {x}"
            )));
        }
        self.check_sizes()
    }
}

impl Pool {
    /// Checks that no product of the sizes overflows.
    pub fn check(&self) -> Result<()> {
        check_positive("stride", self.stride)?;
        check_positive("window", self.window)?;
        check_extent("input image", &[self.batch, self.in_size[0], self.in_size[1], self.channels])?;
        check_extent("output image", &[self.batch, self.out_size[0], self.out_size[1], self.channels])?;
        let reach = [0, 1].map(|i| {
            positions(
                self.in_size[i],
                self.pad_low[i],
                span(self.out_size[i], self.stride[i], self.window[i], 1),
            )
        });
        check_extent("padded window", &reach)
    }

    /// Returns the number of input elements.
    pub fn in_len(&self) -> usize {
        self.batch * self.in_size[0] * self.in_size[1] * self.channels
    }

    /// Returns the number of output elements.
    pub fn out_len(&self) -> usize {
        self.batch * self.out_size[0] * self.out_size[1] * self.channels
    }
}

impl GatherScatter {
    /// Checks that no product of the sizes overflows.
    pub fn check(&self) -> Result<()> {
        check_extent("tables", &[self.batch, self.rows, self.width])?;
        check_extent("rows", &[self.batch, self.count, self.width])
    }

    /// Returns the number of elements in all tables.
    pub fn tables_len(&self) -> usize {
        self.batch * self.rows * self.width
    }

    /// Returns the number of elements in all gathered or added rows.
    pub fn rows_len(&self) -> usize {
        self.batch * self.count * self.width
    }

    /// Returns the number of indices.
    pub fn indices_len(&self) -> usize {
        if self.shared { self.count } else { self.batch * self.count }
    }
}

impl Cumsum {
    /// Checks that no product of the sizes overflows.
    pub fn check(&self) -> Result<()> {
        check_extent("cumulative sum", &[self.outer, self.len, self.inner])
    }

    /// Returns the number of elements of the input, and of the output.
    pub fn elements(&self) -> usize {
        self.outer * self.len * self.inner
    }
}

impl Argsort {
    /// Checks that no product of the sizes overflows, and that `take` is at most `len`.
    pub fn check(&self) -> Result<()> {
        if self.take > self.len {
            return Err(Error::argument(format!(
                "cannot take {} indices from a row of {} elements",
                self.take, self.len
            )));
        }
        check_extent("rows", &[self.rows, self.len])
    }
}

impl Pad {
    /// Returns the sizes of `dims` after padding, or an error if a list is not as long as `dims` or
    /// a size overflows.
    pub fn padded_dims(
        dims: &[usize],
        low: &[usize],
        high: &[usize],
        interior: &[usize],
    ) -> Result<Vec<usize>> {
        let rank = dims.len();
        if [low.len(), high.len(), interior.len()] != [rank; 3] {
            return Err(Error::shape(format!(
                "padding of {rank} dimensions needs {rank} low, high and interior amounts"
            )));
        }
        let size = |d: usize| {
            let between = dims[d].saturating_sub(1).checked_mul(interior[d].checked_add(1)?)?;
            let inside = between.checked_add(usize::from(dims[d] > 0))?;
            inside.checked_add(low[d])?.checked_add(high[d])
        };
        let sizes: Option<Vec<usize>> = (0..rank).map(size).collect();
        sizes.ok_or_else(|| {
            let why = format!("{dims:?} padded by {low:?}, {high:?} and {interior:?} is too large");
            Error::new(ErrorKind::Memory, why)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Contract, Conv2dFilterGrad, Conv2dForward, Conv2dInputGrad};

    fn conv(kernel: usize, dilation: usize, pad: usize) -> Conv2d {
        Conv2d {
            batch: 1,
            in_size: [4; 2],
            in_channels: 3,
            out_channels: 5,
            kernel: [kernel; 2],
            stride: [1; 2],
            dilation: [dilation; 2],
            pad_low: [pad; 2],
            out_size: [4; 2],
            exact: false,
        }
    }

    #[test]
    fn window_overflow_is_an_error() {
        for dilation in [(1 << 31) - 1, 1 << 40, usize::MAX] {
            let sizes = conv(2, dilation, dilation / 2);
            for kernel in
                [&Conv2dForward(sizes) as &dyn Contract, &Conv2dInputGrad(sizes), &Conv2dFilterGrad(sizes)]
            {
                assert_eq!(kernel.check().unwrap_err().kind(), ErrorKind::Memory, "{dilation}");
            }
        }
        assert!(Conv2dForward(conv(3, 1, 1)).check().is_ok());
        // Unusual but valid: every tap but the first reads padding.
        let sizes = conv(2, 1 << 10, 0);
        assert!(Conv2dForward(sizes).check().is_ok());
        assert!(Conv2dForward(sizes).scratch_bytes() >= 4 << 20);
    }

    #[test]
    fn zero_stride_or_dilation_is_an_error() {
        let zero = Conv2d { stride: [1, 0], ..conv(3, 1, 1) };
        assert_eq!(Conv2dForward(zero).check().unwrap_err().kind(), ErrorKind::Argument);
        assert_eq!(Conv2dForward(conv(3, 0, 1)).check().unwrap_err().kind(), ErrorKind::Argument);
    }

    #[test]
    fn padding_overflow_is_an_error() {
        let sizes = |n: usize, low, high, interior| Pad::padded_dims(&[n], &[low], &[high], &[interior]);
        assert_eq!(sizes(3, 1, 2, 2).unwrap(), [10]);
        assert_eq!(sizes(0, 1, 2, 9).unwrap(), [3]);
        assert_eq!(sizes(1, 0, 0, usize::MAX).unwrap_err().kind(), ErrorKind::Memory);
        assert_eq!(sizes(3, usize::MAX, 1, 0).unwrap_err().kind(), ErrorKind::Memory);
        assert_eq!(Pad::padded_dims(&[3], &[1, 1], &[1], &[0]).unwrap_err().kind(), ErrorKind::Shape);
    }
}
