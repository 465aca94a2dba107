//! Depthwise convolution of NHWC images with `[height, width, channels]` filters: the output and
//! the input gradient. The filter gradient is in `depthwise_filter_grad`.
//!
//! A pixel has few products, so these loops are memory-bound. Vectors hold neighboring channels,
//! and a few neighboring pixels are computed together, so that filter elements are loaded once for
//! all of them.

use std::ops::Range;

use crate::conv::conv2d::Conv2d;
use crate::conv::correlation::{Axis, Correlation, Part};
use crate::gemm::contract::{Contract, Float, Operands};
use crate::simd::lanes::by_lanes;
use crate::simd::per_isa::per_isa;
use crate::{Block, Isa};
use tensorpack_tensor::{DType, Result};

/// `y = depthwise_conv(x, w)`: the left operand is `x [n, h, w, c]`, the right one `w [kh, kw, c]`.
/// `in_channels` and `out_channels` are both `c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DepthwiseForward(pub Conv2d);

/// The gradient with respect to `x`: the left operand is `dy [n, oh, ow, c]`, the right one `w [kh,
/// kw, c]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DepthwiseInputGrad(pub Conv2d);

/// Neighboring pixels computed together.
const PIXELS: usize = 4;

impl Conv2d {
    /// Returns the number of floating-point operations of a depthwise convolution.
    pub(crate) fn depthwise_flops(&self) -> f64 {
        2.0 * self.out_len() as f64 * (self.kernel[0] * self.kernel[1]) as f64
    }
}

/// Returns the taps of an axis that are inside an input of `size` for an output whose first tap
/// reads `base`.
fn inside(axis: &Axis, base: isize, size: usize) -> Range<usize> {
    let step = axis.dilation as isize;
    let first = if base < 0 { (-base + step - 1) / step } else { 0 };
    let end = if base < size as isize { (size as isize - 1 - base) / step + 1 } else { 0 };
    let end = (end as usize).min(axis.taps);
    (first as usize).min(end)..end
}

/// Reference loops: output by output, tap by tap.
///
/// # Safety
/// The operands are valid, and no other thread accesses these images and rows of the output.
unsafe fn plain<T: Float>(work: &Correlation, images: Range<usize>, band: Range<usize>, mem: Operands<T>) {
    let (channels, [_, kernel]) = (work.conv.in_channels, work.conv.kernel);
    let ([height, width], [out_height, out_width]) = (work.in_size(), work.out_size());
    for (y, x) in classes(work) {
        let rows = band.start..band.end.min(y.outs);
        for (image, j) in images.clone().flat_map(|i| rows.clone().map(move |j| (i, j))) {
            for (i, c) in (0..x.outs).flat_map(|i| (0..channels).map(move |c| (i, c))) {
                let mut sum = T::default();
                let base = [at(&y, j), at(&x, i)];
                for ty in inside(&y, base[0], height) {
                    for tx in inside(&x, base[1], width) {
                        let row = image * height + (base[0] + (ty * y.dilation) as isize) as usize;
                        let from = row * width + (base[1] + (tx * x.dilation) as isize) as usize;
                        let tap = y.tap(ty) * kernel + x.tap(tx);
                        // SAFETY: inside the sizes of both operands.
                        sum +=
                            unsafe { *mem.lhs.add(from * channels + c) * *mem.rhs.add(tap * channels + c) };
                    }
                }
                let row = image * out_height + y.out_first + y.out_step * j;
                let to = (row * out_width + x.out_first + x.out_step * i) * channels + c;
                // SAFETY: inside this thread's part of the output.
                unsafe { *mem.out.add(to) = sum };
            }
        }
    }
}

/// Returns all pairs of classes.
fn classes(work: &Correlation) -> impl Iterator<Item = (Axis, Axis)> {
    let across = work.classes(1);
    (0..work.classes(0) * across).map(move |i| (work.axis(0, i / across), work.axis(1, i % across)))
}

/// Returns the input position of the first tap of output `j` of a class.
fn at(axis: &Axis, j: usize) -> isize {
    (axis.stride * j) as isize + axis.offset
}

per_isa! {
    /// Computes the outputs of some images and rows.
    ///
    /// # Safety
    /// Same as [`plain`].
    unsafe fn fast(work: &Correlation, images: Range<usize>, band: Range<usize>, mem: Operands<f32>) = fast_body
}

#[inline(always)]
unsafe fn fast_body<const FAST: bool>(
    work: &Correlation,
    images: Range<usize>,
    band: Range<usize>,
    mem: Operands<f32>,
) {
    let (size, [out_height, out_width]) = (work.in_size(), work.out_size());
    let channels = work.conv.in_channels;
    for (y, x) in classes(work) {
        for image in images.clone() {
            for j in band.start..band.end.min(y.outs) {
                let row = image * out_height + y.out_first + y.out_step * j;
                let sums = Row {
                    y: &y,
                    x: &x,
                    rows: inside(&y, at(&y, j), size[0]),
                    top: (image * size[0]) as isize + at(&y, j),
                    width: size[1],
                    kernel: work.conv.kernel[1],
                    channels,
                    out: mem.out.wrapping_add((row * out_width + x.out_first) * channels),
                    mem,
                };
                let whole = |i: usize| inside(&x, at(&x, i), size[1]).len() == x.taps;
                let mut i = 0;
                while i < x.outs {
                    // SAFETY: pixels of this row, whose taps are checked.
                    unsafe {
                        if i + PIXELS <= x.outs && whole(i) && whole(i + PIXELS - 1) {
                            by_lanes!(channels, |c, N| sums.pixels::<N, PIXELS, FAST>(i, c));
                            i += PIXELS;
                        } else {
                            by_lanes!(channels, |c, N| sums.pixels::<N, 1, FAST>(i, c));
                            i += 1;
                        }
                    }
                }
            }
        }
    }
}

/// One row of outputs of one class.
struct Row<'a> {
    y: &'a Axis,
    x: &'a Axis,
    /// The rows of taps inside the input.
    rows: Range<usize>,
    /// The row, counted over all images, that the first row of taps reads.
    top: isize,
    width: usize,
    kernel: usize,
    channels: usize,
    out: *mut f32,
    mem: Operands<f32>,
}

impl Row<'_> {
    /// Computes `P` outputs from index `i` for `N` channels from `c`. All their taps must be inside
    /// the input, unless `P` is 1.
    ///
    /// # Safety
    /// Same as [`plain`].
    #[inline(always)]
    unsafe fn pixels<const N: usize, const P: usize, const FAST: bool>(&self, i: usize, c: usize) {
        let mut sums = [[0f32; N]; P];
        let left = at(self.x, i);
        let cols = inside(self.x, left, self.width);
        for ty in self.rows.clone() {
            let row = self.top + (ty * self.y.dilation) as isize;
            for tx in cols.clone() {
                let col = left + (tx * self.x.dilation) as isize;
                let from = (row * self.width as isize + col) as usize * self.channels + c;
                let tap = (self.y.tap(ty) * self.kernel + self.x.tap(tx)) * self.channels + c;
                // SAFETY: a tap inside the input, for pixels whose taps all are.
                let w = unsafe { *self.mem.rhs.add(tap).cast::<[f32; N]>() };
                for (p, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: as above.
                    let v = unsafe {
                        *self.mem.lhs.add(from + p * self.x.stride * self.channels).cast::<[f32; N]>()
                    };
                    for l in 0..N {
                        sum[l] = if FAST { v[l].mul_add(w[l], sum[l]) } else { sum[l] + v[l] * w[l] };
                    }
                }
            }
        }
        for (p, sum) in sums.iter().enumerate() {
            let to = (i + p) * self.x.out_step * self.channels + c;
            // SAFETY: outputs of this row.
            unsafe { *self.out.add(to).cast::<[f32; N]>() = *sum };
        }
    }
}

/// Output and input gradient are both correlations: only operands and output differ.
macro_rules! depthwise {
    ($type:ident, $backward:literal, $lhs:ident, $out:ident) => {
        impl $type {
            fn sums(&self) -> Correlation {
                Correlation { conv: self.0, backward: $backward }
            }
        }

        impl Contract for $type {
            fn check(&self) -> Result<()> {
                self.0.check_depthwise()
            }

            fn out_matrix(&self) -> (usize, usize) {
                let [height, width] = self.sums().out_size();
                (self.0.batch * height * width, self.0.in_channels)
            }

            fn lhs_len(&self) -> usize {
                self.0.$lhs()
            }

            fn rhs_len(&self) -> usize {
                self.0.filter_rows()
            }

            fn phases(&self) -> usize {
                1
            }

            fn chunks(&self, _: usize) -> usize {
                let blocking = self.sums().blocking();
                if self.0.$out() == 0 { 0 } else { blocking.chunks() }
            }

            fn shared_bytes(&self, _: DType) -> usize {
                0
            }

            fn scratch_bytes(&self, _: DType) -> usize {
                0
            }

            fn flops(&self) -> f64 {
                self.0.depthwise_flops()
            }

            unsafe fn run_f32(
                &self,
                isa: Isa,
                _: usize,
                chunk: usize,
                mem: Operands<f32>,
                _: &mut [u8],
                finish: &mut dyn FnMut(Block),
            ) {
                let work = self.sums();
                let blocking = work.blocking();
                let Part { images, band, .. } = work.part(&blocking, chunk);
                // SAFETY: guaranteed by the caller; chunks have images and rows of their own.
                unsafe {
                    match isa {
                        Isa::Plain => plain(&work, images, band, mem),
                        isa => fast(isa, &work, images, band, mem),
                    }
                }
                finish(work.block(&blocking, chunk));
            }

            unsafe fn run_f64(
                &self,
                _: Isa,
                _: usize,
                chunk: usize,
                mem: Operands<f64>,
                _: &mut [u8],
                finish: &mut dyn FnMut(Block),
            ) {
                let work = self.sums();
                let blocking = work.blocking();
                let Part { images, band, .. } = work.part(&blocking, chunk);
                // SAFETY: guaranteed by the caller; chunks have images and rows of their own.
                unsafe { plain(&work, images, band, mem) };
                finish(work.block(&blocking, chunk));
            }
        }
    };
}

depthwise!(DepthwiseForward, false, in_len, out_len);
depthwise!(DepthwiseInputGrad, true, out_len, in_len);
