//! Descriptors: sizes and attributes of the kernels that are not maps, reductions or copies.
//!
//! A descriptor says what is computed, the same for every engine. Layouts, algorithms and loops are
//! choices of an engine. `check` bounds all products of sizes, so that engines multiply them
//! without overflow.

use serde::{Deserialize, Serialize};
use tensorpack_tensor::{AxisWindows, Error, ErrorKind, Result, check_extent, check_positive};

/// A batched matrix product: `out[b, m, n] = sum over k of lhs[b, m, k] * rhs[b, k, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatMul {
    /// Number of independent products.
    pub batch: usize,
    /// Rows of each output matrix.
    pub m: usize,
    /// Columns of each output matrix.
    pub n: usize,
    /// Length of the contracted dimension.
    pub k: usize,
    /// The left operand is stored `[batch, k, m]` rather than `[batch, m, k]`.
    pub lhs_transposed: bool,
    /// The right operand is stored `[batch, n, k]` rather than `[batch, k, n]`.
    pub rhs_transposed: bool,
    /// All products use one left operand, which has no batch dimension.
    pub lhs_shared: bool,
    /// All products use one right operand, which has no batch dimension.
    pub rhs_shared: bool,
}

impl MatMul {
    /// Checks that no product of the sizes overflows.
    pub(crate) fn check(&self) -> Result<()> {
        check_extent("left operand", &[self.batch, self.m, self.k])?;
        check_extent("right operand", &[self.batch, self.k, self.n])?;
        check_extent("matrix product", &[self.batch, self.m, self.n])
    }

    pub(crate) fn lhs_len(&self) -> usize {
        self.m * self.k * if self.lhs_shared { 1 } else { self.batch }
    }

    pub(crate) fn rhs_len(&self) -> usize {
        self.k * self.n * if self.rhs_shared { 1 } else { self.batch }
    }

    pub(crate) fn out_len(&self) -> usize {
        self.batch * self.m * self.n
    }
}

/// A two-dimensional convolution of NHWC images with HWIO filters; pairs are (height, width).
///
/// Elements beyond the edges of the input are zero. The padding at the high ends follows from
/// `out_size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conv2d {
    /// Number of images.
    pub batch: usize,
    /// Size of the input images.
    pub in_size: [usize; 2],
    /// Channels of the input.
    pub in_channels: usize,
    /// Channels of the output.
    pub out_channels: usize,
    /// Size of the filter.
    pub kernel: [usize; 2],
    /// Input pixels from one output pixel to the next; at least 1.
    pub stride: [usize; 2],
    /// Input pixels from one tap of the filter to the next; at least 1.
    pub dilation: [usize; 2],
    /// Zeros before the first row and column of the input.
    pub pad_low: [usize; 2],
    /// Size of the output images.
    pub out_size: [usize; 2],
}

impl Conv2d {
    /// Checks that no product of the sizes overflows: images, filters, and the part of an image
    /// that the windows cover.
    pub(crate) fn check(&self) -> Result<()> {
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
        let [height, width] = [0, 1].map(|i| windows(i).reach());
        check_extent("padded image", &[height, width, self.in_channels.max(self.out_channels)])
    }

    /// Checks the sizes of a depthwise convolution.
    pub(crate) fn check_depthwise(&self) -> Result<()> {
        if self.in_channels != self.out_channels {
            let [x, y] = [self.in_channels, self.out_channels];
            return Err(Error::argument(format!(
                "a depthwise convolution needs as many output channels as input channels, not {y} and {x}"
            )));
        }
        self.check()
    }

    pub(crate) fn in_len(&self) -> usize {
        self.batch * self.in_size[0] * self.in_size[1] * self.in_channels
    }

    pub(crate) fn out_len(&self) -> usize {
        self.batch * self.out_size[0] * self.out_size[1] * self.out_channels
    }

    pub(crate) fn filter_len(&self) -> usize {
        self.kernel[0] * self.kernel[1] * self.in_channels * self.out_channels
    }

    /// Returns the number of elements of a depthwise filter, which has one output channel per input
    /// channel.
    pub(crate) fn depthwise_filter_len(&self) -> usize {
        self.kernel[0] * self.kernel[1] * self.in_channels
    }
}

/// Pooling over windows of NHWC images; pairs are (height, width).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pool {
    /// Number of images.
    pub batch: usize,
    /// Size of the input images.
    pub in_size: [usize; 2],
    /// Number of channels.
    pub channels: usize,
    /// Size of the window.
    pub window: [usize; 2],
    /// Step from one window to the next.
    pub stride: [usize; 2],
    /// Padding above and to the left. Positions beyond the other two edges are padding as well.
    pub pad_low: [usize; 2],
    /// Size of the output images.
    pub out_size: [usize; 2],
}

impl Pool {
    /// Checks that no product of the sizes overflows.
    pub(crate) fn check(&self) -> Result<()> {
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
        check_extent("padded image", &[0, 1].map(|i| windows(i).reach()))
    }

    pub(crate) fn in_len(&self) -> usize {
        self.batch * self.in_size[0] * self.in_size[1] * self.channels
    }

    pub(crate) fn out_len(&self) -> usize {
        self.batch * self.out_size[0] * self.out_size[1] * self.channels
    }
}

/// Rows of tables, selected by index. Negative indices are not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GatherScatter {
    /// Number of tables.
    pub batch: usize,
    /// Rows per table.
    pub rows: usize,
    /// Elements per row.
    pub width: usize,
    /// Indices per table.
    pub count: usize,
    /// Whether all tables share one list of indices.
    pub shared: bool,
}

impl GatherScatter {
    /// Checks that no product of the sizes overflows.
    pub(crate) fn check(&self) -> Result<()> {
        check_extent("tables", &[self.batch, self.rows, self.width])?;
        check_extent("rows", &[self.batch, self.count, self.width])
    }

    /// Returns the number of elements in all tables.
    pub(crate) fn tables_len(&self) -> usize {
        self.batch * self.rows * self.width
    }

    /// Returns the number of elements in all gathered or added rows.
    pub(crate) fn rows_len(&self) -> usize {
        self.batch * self.count * self.width
    }

    /// Returns the number of indices.
    pub(crate) fn indices_len(&self) -> usize {
        if self.shared { self.count } else { self.batch * self.count }
    }
}

/// Cumulative sums along one dimension of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cumsum {
    /// Product of the sizes before the summed dimension.
    pub outer: usize,
    /// Size of the summed dimension.
    pub len: usize,
    /// Product of the sizes after the summed dimension.
    pub inner: usize,
    /// Whether each sum excludes its own element.
    pub exclusive: bool,
    /// Whether to sum from the end.
    pub reverse: bool,
}

impl Cumsum {
    /// Checks that no product of the sizes overflows.
    pub(crate) fn check(&self) -> Result<()> {
        check_extent("cumulative sum", &[self.outer, self.len, self.inner])
    }

    /// Returns the number of elements of the input, and of the output.
    pub(crate) fn elements(&self) -> usize {
        self.outer * self.len * self.inner
    }
}

/// The indices that sort each row of a matrix; equal elements keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Argsort {
    /// Number of rows.
    pub rows: usize,
    /// Elements per row.
    pub len: usize,
    /// Number of indices to return per row, at most `len`.
    pub take: usize,
    /// Whether the largest element comes first.
    pub descending: bool,
}

impl Argsort {
    /// Checks that no product of the sizes overflows, and that `take` is at most `len`.
    pub(crate) fn check(&self) -> Result<()> {
        if self.take > self.len {
            return Err(Error::argument(format!(
                "cannot take {} indices from a row of {} elements",
                self.take, self.len
            )));
        }
        check_extent("rows", &[self.rows, self.len])
    }
}

/// Greedy non-maximum suppression. The input has, for each list of boxes in order of preference, a
/// matrix of booleans: element `[i, j]` says whether box `i` suppresses box `j`. Only elements with
/// `i < j` are used. A box is kept if no kept box before it suppresses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Nms {
    /// Number of lists.
    pub rows: usize,
    /// Boxes per list.
    pub len: usize,
}

impl Nms {
    /// Checks that no product of the sizes overflows.
    pub(crate) fn check(&self) -> Result<()> {
        check_extent("suppression", &[self.rows, self.len, self.len])
    }
}

/// An f64 attribute, compared by its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FloatBits(u64);

impl FloatBits {
    /// Stores a number.
    pub const fn new(value: f64) -> FloatBits {
        FloatBits(value.to_bits())
    }

    /// Returns the number.
    pub fn value(self) -> f64 {
        f64::from_bits(self.0)
    }
}

/// Scaled dot-product attention of queries `[batch, queries, heads, width]` to keys `[batch, keys,
/// kv_heads, width]` with values `[batch, keys, kv_heads, value_width]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attention {
    /// Number of examples.
    pub batch: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads, a divisor of `heads`; consecutive query heads share one.
    pub kv_heads: usize,
    /// Number of queries.
    pub queries: usize,
    /// Number of keys.
    pub keys: usize,
    /// Features of a query and of a key.
    pub width: usize,
    /// Features of a value.
    pub value_width: usize,
    /// The factor of the scores.
    pub scale: FloatBits,
    /// Whether query `i` sees only keys up to `i`.
    pub causal: bool,
    /// Whether there is a key mask, bool `[batch, keys]`; keys that are false are ignored.
    pub mask: bool,
    /// Whether there is a bias of the scores, `[batch, heads, queries, keys]` with any strides.
    pub bias: bool,
    /// The rate of dropout; its seeds are uniform numbers, `[batch, heads, 2]`.
    pub dropout: Option<FloatBits>,
}

impl Attention {
    /// Checks that no product of the sizes overflows and that `kv_heads` divides `heads`.
    pub(crate) fn check(&self) -> Result<()> {
        if self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            let why = format!("{} key heads do not divide {} query heads", self.kv_heads, self.heads);
            return Err(Error::argument(why));
        }
        let rate = self.dropout.map_or(0.0, FloatBits::value);
        if !(0.0..1.0).contains(&rate) {
            return Err(Error::argument(format!("the dropout rate is {rate}, but must be in 0..1")));
        }
        let width = self.width.max(self.value_width).max(2);
        check_extent("queries", &[self.batch, self.queries, self.heads, width])?;
        check_extent("keys", &[self.batch, self.keys, self.kv_heads, width])?;
        check_extent("scores", &self.score_sizes())
    }

    /// Returns the number of elements of the queries.
    pub(crate) fn queries_len(&self) -> usize {
        self.batch * self.queries * self.heads * self.width
    }

    /// Returns the number of elements of the keys.
    pub(crate) fn keys_len(&self) -> usize {
        self.batch * self.keys * self.kv_heads * self.width
    }

    /// Returns the number of elements of the values.
    pub(crate) fn values_len(&self) -> usize {
        self.batch * self.keys * self.kv_heads * self.value_width
    }

    /// Returns the number of elements of the result.
    pub(crate) fn out_len(&self) -> usize {
        self.batch * self.queries * self.heads * self.value_width
    }

    /// Returns the number of sums of exponentials.
    pub(crate) fn log_sums_len(&self) -> usize {
        self.batch * self.heads * self.queries
    }

    /// Returns the sizes of the scores.
    pub(crate) fn score_sizes(&self) -> [usize; 4] {
        [self.batch, self.heads, self.queries, self.keys]
    }
}

/// Returns `sizes` after padding with `low` zeros before, `high` after and `interior` between the
/// elements of each dimension; an error if a list has the wrong length or a size overflows.
pub(super) fn padded_sizes(
    sizes: &[usize],
    low: &[usize],
    high: &[usize],
    interior: &[usize],
) -> Result<Vec<usize>> {
    let rank = sizes.len();
    if [low.len(), high.len(), interior.len()] != [rank; 3] {
        let why = format!("padding of {rank} dimensions needs {rank} low, high and interior amounts");
        return Err(Error::shape(why));
    }
    let padded = |d: usize| {
        let steps = sizes[d].saturating_sub(1).checked_mul(interior[d].checked_add(1)?)?;
        let inside = steps.checked_add(usize::from(sizes[d] > 0))?;
        inside.checked_add(low[d])?.checked_add(high[d])
    };
    (0..rank).map(padded).collect::<Option<Vec<usize>>>().ok_or_else(|| {
        let why = format!("{sizes:?} padded with {low:?}, {high:?} and {interior:?} is too large");
        Error::new(ErrorKind::Memory, why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        }
    }

    #[test]
    fn sizes_that_overflow_are_an_error() {
        for dilation in [(1 << 31) - 1, 1 << 40, usize::MAX] {
            let e = conv(2, dilation, dilation / 2).check().unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Memory, "{dilation}");
        }
        assert!(conv(3, 1, 1).check().is_ok());
        let product = MatMul {
            batch: 0,
            m: 1 << 30,
            n: 1,
            k: 1 << 30,
            lhs_transposed: false,
            rhs_transposed: false,
            lhs_shared: false,
            rhs_shared: false,
        };
        assert_eq!(
            product.check().unwrap_err().kind(),
            ErrorKind::Memory,
            "m x k is counted without the batch"
        );
        assert!(MatMul { m: 1 << 10, ..product }.check().is_ok());
    }

    #[test]
    fn strides_of_zero_are_an_error() {
        let still = Conv2d { stride: [1, 0], ..conv(3, 1, 1) };
        assert_eq!(still.check().unwrap_err().kind(), ErrorKind::Argument);
        assert_eq!(conv(3, 0, 1).check().unwrap_err().kind(), ErrorKind::Argument);
    }

    #[test]
    fn padded_sizes_count_elements_between() {
        let padded = |n: usize, low, high, interior| padded_sizes(&[n], &[low], &[high], &[interior]);
        assert_eq!(padded(3, 1, 2, 2).unwrap(), [10]);
        assert_eq!(padded(0, 1, 2, 9).unwrap(), [3]);
        assert_eq!(padded(1, 0, 0, usize::MAX).unwrap_err().kind(), ErrorKind::Memory);
        assert_eq!(padded_sizes(&[3], &[1, 1], &[1], &[0]).unwrap_err().kind(), ErrorKind::Shape);
    }
}
