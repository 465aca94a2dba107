//! The filter gradient of a depthwise convolution: for each tap and channel, the products of the
//! input, shifted by the tap, and the output gradient, summed over all pixels of all images.
//!
//! The filters are small and the sum is long, so rows are divided among groups, each with its own
//! partial sums, and a second phase adds those in order.

use std::ops::Range;

use crate::conv::conv2d::Conv2d;
use crate::gemm::contract::{Contract, Float, Operands};
use crate::partition;
use crate::simd::lanes::by_lanes;
use crate::simd::per_isa::per_isa;
use crate::{Block, Isa};
use tensorpack_tensor::{DType, Result};

/// The gradient with respect to `w [kh, kw, c]`: the left operand is `x [n, h, w, c]`, the right
/// one `dy [n, oh, ow, c]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DepthwiseFilterGrad(pub Conv2d);

/// Maximum number of groups: enough for all threads.
const GROUPS: usize = 16;
/// Independent sums, so that an addition need not wait for the previous one.
const CHAINS: usize = 4;

impl DepthwiseFilterGrad {
    fn groups(&self) -> usize {
        (self.0.batch * self.0.out_size[0]).clamp(1, GROUPS)
    }
}

/// Returns the outputs along `axis` for which tap `k` is inside the input.
fn reached(c: &Conv2d, axis: usize, k: usize) -> Range<usize> {
    let (stride, shift, pad) = (c.stride[axis], k * c.dilation[axis], c.pad_low[axis]);
    let first = pad.saturating_sub(shift).div_ceil(stride);
    let end = (c.in_size[axis] + pad).saturating_sub(shift).div_ceil(stride).min(c.out_size[axis]);
    first.min(end)..end
}

/// Reference loops: tap by tap, over all pixels, for some rows of the filter as a matrix of taps by
/// channels.
///
/// # Safety
/// The operands are valid, and no other thread accesses these rows of the output.
unsafe fn plain<T: Float>(c: &Conv2d, taps: Range<usize>, mem: Operands<T>) {
    for (tap, ch) in taps.flat_map(|t| (0..c.in_channels).map(move |ch| (t, ch))) {
        let (ky, kx) = (tap / c.kernel[1], tap % c.kernel[1]);
        let mut sum = T::default();
        for n in 0..c.batch {
            for (oy, ox) in (0..c.out_size[0]).flat_map(|oy| (0..c.out_size[1]).map(move |ox| (oy, ox))) {
                let (Some(y), Some(x)) = (c.input_at(0, oy, ky), c.input_at(1, ox, kx)) else { continue };
                let from = (n * c.in_size[0] + y) * c.in_size[1] + x;
                let dy = (n * c.out_size[0] + oy) * c.out_size[1] + ox;
                // SAFETY: inside the sizes of both operands.
                sum += unsafe {
                    *mem.lhs.add(from * c.in_channels + ch) * *mem.rhs.add(dy * c.in_channels + ch)
                };
            }
        }
        // SAFETY: inside this thread's part of the output.
        unsafe { *mem.out.add(tap * c.in_channels + ch) = sum };
    }
}

per_isa! {
    /// Writes the sums over some output rows, counted over all images, to `out`.
    ///
    /// # Safety
    /// The operands are valid, and no other thread accesses `out`, which has room for the filter.
    unsafe fn group_sum(c: &Conv2d, rows: Range<usize>, x: *const f32, dy: *const f32, out: *mut f32)
        = group_sum_body
}

#[inline(always)]
unsafe fn group_sum_body<const FAST: bool>(
    c: &Conv2d,
    rows: Range<usize>,
    x: *const f32,
    dy: *const f32,
    out: *mut f32,
) {
    let channels = c.in_channels;
    // SAFETY: the caller guarantees room for one filter.
    unsafe { std::ptr::write_bytes(out, 0, c.filter_rows()) };
    for row in rows {
        let (image, oy) = (row / c.out_size[0], row % c.out_size[0]);
        for ky in 0..c.kernel[0] {
            let Some(iy) = c.input_at(0, oy, ky) else { continue };
            for kx in 0..c.kernel[1] {
                let pixels = reached(c, 1, kx);
                if pixels.is_empty() {
                    continue;
                }
                let ix = pixels.start * c.stride[1] + kx * c.dilation[1] - c.pad_low[1];
                let a = x.wrapping_add(((image * c.in_size[0] + iy) * c.in_size[1] + ix) * channels);
                let b = dy.wrapping_add((row * c.out_size[1] + pixels.start) * channels);
                let to = out.wrapping_add((ky * c.kernel[1] + kx) * channels);
                let a_step = c.stride[1] * channels;
                // SAFETY: pixels whose tap is inside the input, and the tap's elements of the
                // filter.
                by_lanes!(channels, |l, N| unsafe {
                    let (a, b) = (a.add(l), b.add(l));
                    add_products::<N, FAST>(pixels.len(), a, a_step, b, channels, to.add(l));
                });
            }
        }
    }
}

/// Adds the products of `n` pixels to `N` elements at `to`.
///
/// # Safety
/// All pixels and `to` are valid for `N` elements.
#[inline(always)]
unsafe fn add_products<const N: usize, const FAST: bool>(
    n: usize,
    a: *const f32,
    a_step: usize,
    b: *const f32,
    b_step: usize,
    to: *mut f32,
) {
    let mut sums = [[0f32; N]; CHAINS];
    let mut add = |chain: usize, i: usize| {
        // SAFETY: pixel `i` of `n`.
        let (v, g) =
            unsafe { (*a.add(i * a_step).cast::<[f32; N]>(), *b.add(i * b_step).cast::<[f32; N]>()) };
        let sum = &mut sums[chain];
        for l in 0..N {
            sum[l] = if FAST { v[l].mul_add(g[l], sum[l]) } else { sum[l] + v[l] * g[l] };
        }
    };
    for i in (0..n / CHAINS * CHAINS).step_by(CHAINS) {
        (0..CHAINS).for_each(|chain| add(chain, i + chain));
    }
    (n / CHAINS * CHAINS..n).for_each(|i| add(0, i));
    // SAFETY: guaranteed by the caller.
    let to = unsafe { &mut *to.cast::<[f32; N]>() };
    for l in 0..N {
        to[l] += (sums[0][l] + sums[1][l]) + (sums[2][l] + sums[3][l]);
    }
}

impl Contract for DepthwiseFilterGrad {
    fn check(&self) -> Result<()> {
        self.0.check_depthwise()
    }

    fn out_matrix(&self) -> (usize, usize) {
        (self.0.kernel[0] * self.0.kernel[1], self.0.in_channels)
    }

    fn lhs_len(&self) -> usize {
        self.0.in_len()
    }

    fn rhs_len(&self) -> usize {
        self.0.out_len()
    }

    fn phases(&self) -> usize {
        2
    }

    fn chunks(&self, phase: usize) -> usize {
        match phase {
            _ if self.0.filter_rows() == 0 => 0,
            0 => self.groups(),
            _ => self.out_matrix().0,
        }
    }

    fn shared_bytes(&self, _: DType) -> usize {
        self.groups() * self.0.filter_rows() * size_of::<f32>()
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
        phase: usize,
        chunk: usize,
        mem: Operands<f32>,
        scratch: &mut [u8],
        finish: &mut dyn FnMut(Block),
    ) {
        let (c, len) = (&self.0, self.0.filter_rows());
        let partial = |group: usize| mem.shared.cast::<f32>().wrapping_add(group * len);
        match (isa, phase) {
            // SAFETY: guaranteed by the caller.
            (Isa::Plain, _) => unsafe { self.run_plain(phase, chunk, mem, finish) },
            (isa, 0) => {
                debug_assert!(scratch.len() >= self.scratch_bytes(DType::F32));
                let rows = partition::part(c.batch * c.out_size[0], self.groups(), chunk);
                // SAFETY: each group has its own sums; the rest is guaranteed by the caller.
                unsafe { group_sum(isa, c, rows, mem.lhs, mem.rhs, partial(chunk)) }
            }
            _ => {
                for i in chunk * c.in_channels..(chunk + 1) * c.in_channels {
                    // SAFETY: all groups are done, and this chunk owns this row of the output.
                    unsafe { *mem.out.add(i) = (0..self.groups()).map(|g| *partial(g).add(i)).sum() }
                }
                finish(Block { rows: chunk..chunk + 1, cols: 0..c.in_channels });
            }
        }
    }

    unsafe fn run_f64(
        &self,
        _: Isa,
        phase: usize,
        chunk: usize,
        mem: Operands<f64>,
        _: &mut [u8],
        finish: &mut dyn FnMut(Block),
    ) {
        // SAFETY: guaranteed by the caller.
        unsafe { self.run_plain(phase, chunk, mem, finish) }
    }
}

impl DepthwiseFilterGrad {
    /// Runs one chunk with the reference loops, which use no groups: the last phase does all the
    /// work.
    ///
    /// # Safety
    /// Same as [`Contract::run_f32`].
    unsafe fn run_plain<T: Float>(
        &self,
        phase: usize,
        chunk: usize,
        mem: Operands<T>,
        finish: &mut dyn FnMut(Block),
    ) {
        if phase == 1 {
            // SAFETY: chunks have rows of their own, the rest is guaranteed by the caller.
            unsafe { plain(&self.0, chunk..chunk + 1, mem) };
            finish(Block { rows: chunk..chunk + 1, cols: 0..self.0.in_channels });
        }
    }
}
