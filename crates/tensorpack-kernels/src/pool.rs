//! Pooling over windows of images in NHWC order, and its gradients.
//!
//! Gradients gather instead of scatter: each input element sums over the windows that cover it. So
//! chunks write disjoint elements, and nothing has to be cleared first.

use crate::Isa;
use crate::scalar::Number;
use crate::simd::lanes::by_lanes;
use crate::simd::per_isa::per_isa;
use std::ops::Range;
use tensorpack_tensor::DType;

/// Approximate number of elements per chunk.
const CHUNK: usize = 32 * 1024;

/// The sizes of a pooling operation; pairs are (height, width). Windows may reach into padding,
/// which is ignored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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

/// Runs the body with `$t` as the Rust type of a float dtype.
macro_rules! with_float {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            DType::F32 => {
                type $t = f32;
                $body
            }
            DType::F64 => {
                type $t = f64;
                $body
            }
            other => panic!("pooling supports f32 and f64, not {other}"),
        }
    };
}

impl Pool {
    /// Returns the number of chunks of the forward kernels.
    pub fn chunks(&self) -> usize {
        match self.out_len() {
            0 => 0,
            _ => (self.batch * self.out_size[0]).div_ceil(self.group(self.out_size[1])),
        }
    }

    /// Returns the number of chunks of the gradient kernels, which partition the input.
    pub fn in_chunks(&self) -> usize {
        match self.in_len() {
            0 => 0,
            _ => (self.batch * self.in_size[0]).div_ceil(self.group(self.in_size[1])),
        }
    }

    /// Returns the number of pixel rows in a chunk.
    fn group(&self, width: usize) -> usize {
        (CHUNK / (width * self.channels).max(1)).max(1)
    }

    /// Returns the pixel rows of a chunk of images of this size.
    fn rows(&self, chunk: usize, size: [usize; 2]) -> Range<usize> {
        let group = self.group(size[1]);
        let all = self.batch * size[0];
        (chunk * group).min(all)..((chunk + 1) * group).min(all)
    }

    /// Returns the window positions along `axis` that lie inside the input for output `o`, and the
    /// input position of the first.
    #[inline(always)]
    fn inside(&self, axis: usize, o: usize) -> (Range<usize>, usize) {
        let start = o * self.stride[axis];
        let (pad, size) = (self.pad_low[axis], self.in_size[axis]);
        let first = pad.saturating_sub(start).min(self.window[axis]);
        let end = (size + pad).saturating_sub(start).min(self.window[axis]).max(first);
        (first..end, (start + first).saturating_sub(pad))
    }

    /// Returns the outputs along `axis` whose windows cover input `i`.
    #[inline(always)]
    fn covering(&self, axis: usize, i: usize) -> Range<usize> {
        let (at, stride) = (i + self.pad_low[axis], self.stride[axis]);
        let first = (at + 1).saturating_sub(self.window[axis]).div_ceil(stride);
        first..(at / stride + 1).min(self.out_size[axis]).max(first)
    }

    /// Computes [`Pool::covering`] of input `i` from `before`, that of input `i - 1`, without
    /// divisions.
    #[inline(always)]
    fn covering_next(&self, axis: usize, before: Range<usize>, i: usize) -> Range<usize> {
        let (at, stride) = (i + self.pad_low[axis], self.stride[axis]);
        let first = before.start + usize::from(before.start * stride + self.window[axis] <= at);
        let more = usize::from(before.end * stride <= at && before.end < self.out_size[axis]);
        first..(before.end + more).max(first)
    }

    /// Max pooling: writes the largest element of each window to `y`, and its row-major position in
    /// the window to `index` (the first one if there are ties). NaN counts as largest; a window
    /// entirely in the padding gives negative infinity.
    ///
    /// # Safety
    /// [`Pool::check`] must have passed. `x` must be readable and `y` and `index` (one byte per
    /// output) writable in full. They must be aligned for `dtype`, which is f32 or f64, and must
    /// not overlap. A window must have at most 256 elements. The CPU must support `isa`.
    pub unsafe fn max(&self, isa: Isa, dtype: DType, chunk: usize, x: *const u8, y: *mut u8, index: *mut u8) {
        assert!(
            self.window[0] * self.window[1] <= 256,
            "positions in a max-pooling window are bytes: it has at most 256 elements"
        );
        let rows = self.rows(chunk, self.out_size);
        // SAFETY: guaranteed by the caller.
        with_float!(dtype, T => unsafe { max::<T>(isa, self, rows, x.cast(), y.cast(), index) });
    }

    /// The gradient of [`Pool::max`]: each output's gradient goes to the element that `index`
    /// selected. `chunk` is one of [`Pool::in_chunks`].
    ///
    /// # Safety
    /// Same as [`Pool::max`], with `dy` and `index` read and `dx` written.
    pub unsafe fn max_grad(
        &self,
        isa: Isa,
        dtype: DType,
        chunk: usize,
        dy: *const u8,
        index: *const u8,
        dx: *mut u8,
    ) {
        let rows = self.rows(chunk, self.in_size);
        // SAFETY: guaranteed by the caller.
        with_float!(dtype, T => unsafe { max_grad::<T>(isa, self, rows, dy.cast(), index, dx.cast()) });
    }

    /// Gathers the elements of `x` that `index` selected, or 0 for a window entirely in the
    /// padding: the gradient of [`Pool::max_grad`].
    ///
    /// # Safety
    /// Same as [`Pool::max`], with `x` and `index` read and `y` written.
    pub unsafe fn max_pick(
        &self,
        isa: Isa,
        dtype: DType,
        chunk: usize,
        x: *const u8,
        index: *const u8,
        y: *mut u8,
    ) {
        let rows = self.rows(chunk, self.out_size);
        // SAFETY: guaranteed by the caller.
        with_float!(dtype, T => unsafe { max_pick::<T>(isa, self, rows, x.cast(), index, y.cast()) });
    }

    /// Average pooling: the mean of each window's elements inside the input, or 0 if there is none.
    ///
    /// # Safety
    /// Same as [`Pool::max`], with `x` read and `y` written.
    pub unsafe fn average(&self, isa: Isa, dtype: DType, chunk: usize, x: *const u8, y: *mut u8) {
        let rows = self.rows(chunk, self.out_size);
        // SAFETY: guaranteed by the caller.
        with_float!(dtype, T => unsafe { average::<T>(isa, self, rows, x.cast(), y.cast()) });
    }

    /// The gradient of [`Pool::average`]. `chunk` is one of [`Pool::in_chunks`].
    ///
    /// # Safety
    /// Same as [`Pool::max`], with `dy` read and `dx` written.
    pub unsafe fn average_grad(&self, isa: Isa, dtype: DType, chunk: usize, dy: *const u8, dx: *mut u8) {
        let rows = self.rows(chunk, self.in_size);
        // SAFETY: guaranteed by the caller.
        with_float!(dtype, T => unsafe { average_grad::<T>(isa, self, rows, dy.cast(), dx.cast()) });
    }
}

/// A float type that pooling supports.
trait Float: Number {
    /// Returns `1 / n`.
    fn reciprocal(n: usize) -> Self;
}

impl Float for f32 {
    #[inline(always)]
    fn reciprocal(n: usize) -> f32 {
        1.0 / n as f32
    }
}

impl Float for f64 {
    #[inline(always)]
    fn reciprocal(n: usize) -> f64 {
        1.0 / n as f64
    }
}

per_isa! {
    /// # Safety
    /// Same as [`Pool::max`].
    unsafe fn max<T: Float>(pool: &Pool, rows: Range<usize>, x: *const T, y: *mut T, index: *mut u8) = max_body
}

#[inline(always)]
unsafe fn max_body<T: Float, const FAST: bool>(
    pool: &Pool,
    rows: Range<usize>,
    x: *const T,
    y: *mut T,
    index: *mut u8,
) {
    let channels = pool.channels;
    for row in rows {
        let (kh, h) = pool.inside(0, row % pool.out_size[0]);
        let image = row / pool.out_size[0] * pool.in_size[0];
        for col in 0..pool.out_size[1] {
            let (kw, w) = pool.inside(1, col);
            let out = (row * pool.out_size[1] + col) * channels;
            by_lanes!(channels, |c, N| {
                let (mut best, mut at) = ([T::LOWEST; N], [0u32; N]);
                let mut first = true;
                for i in kh.clone() {
                    let line = ((image + h + i - kh.start) * pool.in_size[1] + w) * channels + c;
                    for j in kw.clone() {
                        // SAFETY: an element of the window inside the input.
                        let v = unsafe { *x.add(line + (j - kw.start) * channels).cast::<[T; N]>() };
                        let code = (i * pool.window[1] + j) as u32;
                        for l in 0..N {
                            let wins = (v[l] > best[l]) | (v[l].is_nan() & !best[l].is_nan()) | first;
                            best[l] = if wins { v[l] } else { best[l] };
                            at[l] = if wins { code } else { at[l] };
                        }
                        first = false;
                    }
                }
                // SAFETY: an output element.
                unsafe {
                    *y.add(out + c).cast::<[T; N]>() = best;
                    *index.add(out + c).cast::<[u8; N]>() = at.map(|a| a as u8);
                }
            });
        }
    }
}

per_isa! {
    /// # Safety
    /// Same as [`Pool::max_grad`].
    unsafe fn max_grad<T: Float>(pool: &Pool, rows: Range<usize>, dy: *const T, index: *const u8, dx: *mut T)
        = max_grad_body
}

#[inline(always)]
unsafe fn max_grad_body<T: Float, const FAST: bool>(
    pool: &Pool,
    rows: Range<usize>,
    dy: *const T,
    index: *const u8,
    dx: *mut T,
) {
    let channels = pool.channels;
    for row in rows {
        let i = row % pool.in_size[0];
        let (oh, image) = (pool.covering(0, i), row / pool.in_size[0] * pool.out_size[0]);
        let mut ow = pool.covering(1, 0);
        for col in 0..pool.in_size[1] {
            if col > 0 {
                ow = pool.covering_next(1, ow, col);
            }
            let to = (row * pool.in_size[1] + col) * channels;
            by_lanes!(channels, |c, N| {
                let mut sum = [T::ZERO; N];
                for p in oh.clone() {
                    let kh = i + pool.pad_low[0] - p * pool.stride[0];
                    for q in ow.clone() {
                        let kw = col + pool.pad_low[1] - q * pool.stride[1];
                        let code = (kh * pool.window[1] + kw) as u32;
                        let from = ((image + p) * pool.out_size[1] + q) * channels + c;
                        // SAFETY: an output whose window covers this element.
                        let (g, at) =
                            unsafe { (*dy.add(from).cast::<[T; N]>(), *index.add(from).cast::<[u8; N]>()) };
                        // Widened so that the comparison works on whole vectors.
                        let at = at.map(u32::from);
                        let mut hit = [T::ZERO; N];
                        for l in 0..N {
                            hit[l] = if at[l] == code { g[l] } else { T::ZERO };
                        }
                        for l in 0..N {
                            sum[l] = sum[l].add(hit[l]);
                        }
                    }
                }
                // SAFETY: an input element.
                unsafe { *dx.add(to + c).cast::<[T; N]>() = sum };
            });
        }
    }
}

per_isa! {
    /// # Safety
    /// Same as [`Pool::max_pick`].
    unsafe fn max_pick<T: Float>(pool: &Pool, rows: Range<usize>, x: *const T, index: *const u8, y: *mut T)
        = max_pick_body
}

#[inline(always)]
unsafe fn max_pick_body<T: Float, const FAST: bool>(
    pool: &Pool,
    rows: Range<usize>,
    x: *const T,
    index: *const u8,
    y: *mut T,
) {
    let channels = pool.channels;
    for row in rows {
        let (kh, h) = pool.inside(0, row % pool.out_size[0]);
        let image = row / pool.out_size[0] * pool.in_size[0];
        for col in 0..pool.out_size[1] {
            let (kw, w) = pool.inside(1, col);
            let out = (row * pool.out_size[1] + col) * channels;
            by_lanes!(channels, |c, N| {
                // SAFETY: an output element.
                let at = unsafe { *index.add(out + c).cast::<[u8; N]>() };
                let mut picked = [T::ZERO; N];
                for i in kh.clone() {
                    let line = ((image + h + i - kh.start) * pool.in_size[1] + w) * channels + c;
                    for j in kw.clone() {
                        // SAFETY: an element of the window inside the input.
                        let v = unsafe { *x.add(line + (j - kw.start) * channels).cast::<[T; N]>() };
                        let code = (i * pool.window[1] + j) as u8;
                        for l in 0..N {
                            picked[l] = if at[l] == code { v[l] } else { picked[l] };
                        }
                    }
                }
                // SAFETY: an output element.
                unsafe { *y.add(out + c).cast::<[T; N]>() = picked };
            });
        }
    }
}

per_isa! {
    /// # Safety
    /// Same as [`Pool::average`].
    unsafe fn average<T: Float>(pool: &Pool, rows: Range<usize>, x: *const T, y: *mut T) = average_body
}

#[inline(always)]
unsafe fn average_body<T: Float, const FAST: bool>(pool: &Pool, rows: Range<usize>, x: *const T, y: *mut T) {
    let channels = pool.channels;
    for row in rows {
        let (kh, h) = pool.inside(0, row % pool.out_size[0]);
        let image = row / pool.out_size[0] * pool.in_size[0];
        for col in 0..pool.out_size[1] {
            let (kw, w) = pool.inside(1, col);
            let out = (row * pool.out_size[1] + col) * channels;
            let weight = T::reciprocal((kh.len() * kw.len()).max(1));
            by_lanes!(channels, |c, N| {
                let mut sum = [T::ZERO; N];
                for i in 0..kh.len() {
                    let line = ((image + h + i) * pool.in_size[1] + w) * channels + c;
                    for j in 0..kw.len() {
                        // SAFETY: an element of the window inside the input.
                        let v = unsafe { *x.add(line + j * channels).cast::<[T; N]>() };
                        for l in 0..N {
                            sum[l] = sum[l].add(v[l]);
                        }
                    }
                }
                // SAFETY: an output element.
                unsafe { *y.add(out + c).cast::<[T; N]>() = sum.map(|s| s.mul(weight)) };
            });
        }
    }
}

per_isa! {
    /// # Safety
    /// Same as [`Pool::average_grad`].
    unsafe fn average_grad<T: Float>(pool: &Pool, rows: Range<usize>, dy: *const T, dx: *mut T) = average_grad_body
}

#[inline(always)]
unsafe fn average_grad_body<T: Float, const FAST: bool>(
    pool: &Pool,
    rows: Range<usize>,
    dy: *const T,
    dx: *mut T,
) {
    let channels = pool.channels;
    // Most windows lie entirely inside the input, and one division per window would be slow.
    let area = pool.window[0] * pool.window[1];
    let full = T::reciprocal(area);
    for row in rows {
        let (oh, image) = (pool.covering(0, row % pool.in_size[0]), row / pool.in_size[0] * pool.out_size[0]);
        let mut ow = pool.covering(1, 0);
        for col in 0..pool.in_size[1] {
            if col > 0 {
                ow = pool.covering_next(1, ow, col);
            }
            let to = (row * pool.in_size[1] + col) * channels;
            by_lanes!(channels, |c, N| {
                let mut sum = [T::ZERO; N];
                for p in oh.clone() {
                    let high = pool.inside(0, p).0.len();
                    for q in ow.clone() {
                        let n = high * pool.inside(1, q).0.len();
                        let weight = if n == area { full } else { T::reciprocal(n) };
                        let from = ((image + p) * pool.out_size[1] + q) * channels + c;
                        // SAFETY: an output whose window covers this element.
                        let g = unsafe { *dy.add(from).cast::<[T; N]>() };
                        for l in 0..N {
                            sum[l] = sum[l].add(g[l].mul(weight));
                        }
                    }
                }
                // SAFETY: an input element.
                unsafe { *dx.add(to + c).cast::<[T; N]>() = sum };
            });
        }
    }
}
