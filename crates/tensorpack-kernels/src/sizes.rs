//! Checks of kernel sizes.
//!
//! Kernels multiply sizes, strides and offsets without checking for overflow, in the inner loops as
//! well as in the partition into chunks. That is sound because every descriptor passes its `check`
//! first: all products that a kernel forms stay within a small multiple of
//! [`MAX_ELEMENTS`](tensorpack_tensor::MAX_ELEMENTS), which leaves room in 64 bits for element sizes
//! and padding to whole vectors. Kernels built from lists of sizes, such as [`Map`](crate::Map) and
//! [`Copy`](crate::Copy), form no product larger than the length of their dense output, and handle
//! empty spaces themselves.

use crate::conv::Conv2d;
use crate::{Argsort, Cumsum, GatherScatter, MatMul, Nms, Pool};
use tensorpack_tensor::{AxisWindows, Error, Result, check_extent, check_positive};

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
        let windows = |i: usize| AxisWindows {
            size: self.in_size[i],
            pad: self.pad_low[i],
            out: self.out_size[i],
            stride: self.stride[i],
            taps: self.kernel[i],
            dilation: self.dilation[i],
        };
        let reach = [0, 1].map(|i| windows(i).reach());
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
        let windows = |i: usize| AxisWindows {
            size: self.in_size[i],
            pad: self.pad_low[i],
            out: self.out_size[i],
            stride: self.stride[i],
            taps: self.window[i],
            dilation: 1,
        };
        check_extent("padded window", &[0, 1].map(|i| windows(i).reach()))
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

impl Nms {
    /// Checks that no product of the sizes overflows.
    pub fn check(&self) -> Result<()> {
        check_extent("suppression", &[self.rows, self.len, self.len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Contract, Conv2dFilterGrad, Conv2dForward, Conv2dInputGrad};
    use tensorpack_tensor::ErrorKind;

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
        assert!(Conv2dForward(sizes).scratch_bytes(tensorpack_tensor::DType::F32) >= 4 << 20);
    }

    #[test]
    fn zero_stride_or_dilation_is_an_error() {
        let zero = Conv2d { stride: [1, 0], ..conv(3, 1, 1) };
        assert_eq!(Conv2dForward(zero).check().unwrap_err().kind(), ErrorKind::Argument);
        assert_eq!(Conv2dForward(conv(3, 0, 1)).check().unwrap_err().kind(), ErrorKind::Argument);
    }
}
