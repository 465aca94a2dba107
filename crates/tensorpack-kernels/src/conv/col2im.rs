//! Convolutions to few channels by matrix products and col2im: multiplies each input pixel by all taps
//! of the filter at once, and adds the products to the outputs that they belong to.
//!
//! The direct algorithm computes a few output channels in a vector that has room for 16. Here the
//! columns of the product are taps times output channels, so vectors are full. The taps of a filter
//! row reach neighboring outputs: with channels last, their products are one run of elements.

use crate::Block;
use crate::conv::correlation::{Blocking, Correlation, LANES, panel_cols};

/// Pixels multiplied at a time, so that their products stay in the L1 cache.
const PIXELS: usize = 64;

/// A convolution with stride 1, or any input gradient, without dilation along rows: each input is
/// multiplied by every tap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Col2im {
    work: Correlation,
    blocking: Blocking,
}

impl Col2im {
    pub(crate) fn new(work: &Correlation) -> Col2im {
        Col2im { work: *work, blocking: work.blocking() }
    }

    pub(crate) fn chunks(&self) -> usize {
        self.blocking.chunks()
    }

    /// Returns the block of the output that a chunk computes.
    pub(crate) fn block(&self, chunk: usize) -> Block {
        self.work.block(&self.blocking, chunk)
    }

    /// Returns the columns of the product: those of tap after tap.
    fn cols(&self) -> usize {
        self.work.conv.kernel[0] * self.work.conv.kernel[1] * self.work.out_channels()
    }

    fn padded_cols(&self) -> usize {
        self.cols().next_multiple_of(LANES)
    }

    fn panel_cols(&self) -> usize {
        panel_cols(self.cols())
    }

    /// Returns the number of panels of the filter, which are packed independently.
    pub(crate) fn panels(&self) -> usize {
        self.cols().div_ceil(self.panel_cols())
    }

    /// Returns the number of elements of the packed filter.
    pub(crate) fn shared_len(&self) -> usize {
        self.work.in_channels() * self.padded_cols()
    }

    /// Returns the number of elements of scratch memory: the products of some pixels.
    pub(crate) fn scratch_len(&self) -> usize {
        PIXELS * self.padded_cols()
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod fast {
    use std::arch::x86_64::{__m256, __m512, _mm_add_ps, _mm_loadu_ps, _mm_storeu_ps};
    use std::ops::Range;

    use super::*;
    use crate::conv::kernel_table::WinogradKernels;
    use crate::gemm::contract::Operands;
    use crate::gemm::microkernel::{Prefetch, Tile};
    use crate::gemm::pack;
    use crate::partition;
    use crate::simd::Simd;

    impl Col2im {
        /// Returns the position of the first output that an input at position 0 reaches along an axis, and
        /// the outputs from one input to the next. The taps reach outputs in ascending order.
        fn first_output(&self, axis: usize) -> (isize, usize) {
            let c = &self.work.conv;
            let (pad, last_tap) = (c.pad_low[axis] as isize, (c.kernel[axis] - 1) * c.dilation[axis]);
            match self.work.backward {
                true => (-pad, c.stride[axis]),
                false => (pad - last_tap as isize, 1),
            }
        }

        /// Returns the input rows that reach some rows of the output.
        fn input_rows(&self, outputs: &Range<usize>) -> Range<usize> {
            let c = &self.work.conv;
            let (first, stride) = self.first_output(0);
            let (stride, last_tap) = (stride as isize, ((c.kernel[0] - 1) * c.dilation[0]) as isize);
            let (low, high) = (outputs.start as isize - first - last_tap, outputs.end as isize - 1 - first);
            let inside = |row: isize| row.clamp(0, self.work.in_size()[0] as isize) as usize;
            inside(-(-low).div_euclid(stride))..inside(high.div_euclid(stride) + 1)
        }

        /// Packs one panel of the filter; in parts, if it is wider than a tile.
        ///
        /// # Safety
        /// The filter `w` is valid, and `shared` has the required size.
        pub(crate) unsafe fn pack<V: WinogradKernels>(&self, panel: usize, w: *const f32, shared: *mut f32) {
            let (inputs, outputs) = (self.work.in_channels(), self.work.out_channels());
            let taps = self.cols() / outputs;
            let cols = panel * self.panel_cols()..((panel + 1) * self.panel_cols()).min(self.cols());
            for first in cols.clone().step_by(V::MAX_COLS) {
                let here = (cols.end - first).min(V::MAX_COLS);
                let width = pack::width(here, V::LANES);
                for (input, i) in (0..inputs).flat_map(|input| (0..width).map(move |i| (input, i))) {
                    let (tap, output) = ((first + i) / outputs, (first + i) % outputs);
                    // The filter of a convolution is mirrored: its first tap reaches the last output.
                    let from = match self.work.backward {
                        _ if i >= here => None,
                        true => Some((tap * outputs + output) * inputs + input),
                        false => Some(((taps - 1 - tap) * inputs + input) * outputs + output),
                    };
                    // SAFETY: an element of the filter, and its place in the panel.
                    unsafe {
                        let value = from.map_or(0.0, |from| *w.add(from));
                        *shared.add(first * inputs + input * width + i) = value;
                    }
                }
            }
        }

        /// Computes the outputs of one chunk.
        ///
        /// # Safety
        /// Same as [`crate::Contract::run_f32`], on a CPU that supports the instructions of `V`;
        /// the filter is packed.
        pub(crate) unsafe fn run<V: WinogradKernels>(
            &self,
            chunk: usize,
            mem: Operands<f32>,
            scratch: &mut [u8],
            finish: &mut dyn FnMut(Block),
        ) {
            let (inputs, outputs) = (self.work.in_channels(), self.work.out_channels());
            let part = self.work.part(&self.blocking, chunk);
            let products = scratch.as_mut_ptr().cast::<f32>();
            let ([height, width], [out_height, out_width]) = (self.work.in_size(), self.work.out_size());
            let [start, end] =
                [part.band.start, part.band.end].map(|j| (j * self.work.axis(0, 0).out_step).min(out_height));
            let rows = start..end;
            for image in part.images {
                let pixels = (image * out_height + start) * out_width..(image * out_height + end) * out_width;
                let out = mem.out.wrapping_add(pixels.start * outputs);
                // SAFETY: the outputs of this chunk.
                unsafe { std::slice::from_raw_parts_mut(out, pixels.len() * outputs).fill(0.0) }
                let from = self.input_rows(&rows);
                for tile in partition::parts(from.len() * width, PIXELS).filter(|part| !part.is_empty()) {
                    let at = from.start * width + tile.start;
                    let a = mem.lhs.wrapping_add((image * height * width + at) * inputs);
                    // SAFETY: pixels of the input and the packed filter; the scratch memory has room
                    // for the products.
                    unsafe { self.multiply::<V>(a, mem.shared.cast(), products, tile.len()) }
                    let mut done = 0;
                    while done < tile.len() {
                        let (y, x) = ((at + done) / width, (at + done) % width);
                        let here = (width - x).min(tile.len() - done);
                        let from = products.wrapping_add(done * self.padded_cols());
                        // SAFETY: the outputs of this chunk, and the products of this row of inputs.
                        unsafe { self.add_row::<V>(from, (y, x, here), &rows, out) }
                        done += here;
                    }
                }
                if mem.bias.is_some() {
                    // SAFETY: the outputs of this chunk.
                    unsafe { V::add_bias(out, outputs, pixels.len(), outputs, mem.bias) }
                }
                finish(Block { rows: pixels, cols: 0..outputs });
            }
        }

        /// Multiplies some pixels by all taps.
        ///
        /// # Safety
        /// The pixels are valid, the filter is packed, there is room for the products, and the CPU
        /// supports the instructions of `V`.
        unsafe fn multiply<V: WinogradKernels>(
            &self,
            a: *const f32,
            filter: *const f32,
            products: *mut f32,
            pixels: usize,
        ) {
            let inputs = self.work.in_channels();
            for col in (0..self.cols()).step_by(self.panel_cols().min(V::MAX_COLS)) {
                let cols = pack::width((self.cols() - col).min(self.panel_cols().min(V::MAX_COLS)), V::LANES);
                let b = filter.wrapping_add(col * inputs);
                let tile = Tile {
                    images: 1,
                    segments: 1,
                    steps: inputs,
                    a,
                    a_stride: inputs,
                    a_segment: 0,
                    a_image: 0,
                    b,
                    b_step: cols,
                    b_segment: 0,
                    b_image: 0,
                    c: products.wrapping_add(col),
                    c_row: self.padded_cols(),
                    cols,
                    add: false,
                    prefetch: Prefetch::none(b),
                };
                // SAFETY: guaranteed by the caller.
                unsafe { tile.run::<V>(pixels, true) }
            }
        }

        /// Adds the products of `pixels` inputs, from column `x` of row `y` on, to `rows` of the output,
        /// which begin at `out`.
        ///
        /// # Safety
        /// Products and outputs are valid, and the CPU supports the instructions of `V`.
        unsafe fn add_row<V: WinogradKernels>(
            &self,
            products: *const f32,
            (y, x, pixels): (usize, usize, usize),
            rows: &Range<usize>,
            out: *mut f32,
        ) {
            let (c, channels) = (&self.work.conv, self.work.out_channels());
            let ((top, down), (left, right)) = (self.first_output(0), self.first_output(1));
            let width = self.work.out_size()[1];
            for tap in 0..c.kernel[0] {
                let row = top + (y * down + tap * c.dilation[0]) as isize - rows.start as isize;
                if (0..rows.len() as isize).contains(&row) {
                    let runs = Runs {
                        products: products.wrapping_add(tap * c.kernel[1] * channels),
                        stride: self.padded_cols(),
                        count: pixels,
                        taps: c.kernel[1],
                        channels,
                        out: out.wrapping_add(row as usize * width * channels),
                        width,
                        first: left + (x * right) as isize,
                        step: right,
                    };
                    // SAFETY: guaranteed by the caller.
                    unsafe { V::ADD_RUNS(&runs) }
                }
            }
        }
    }

    /// The products of neighboring pixels with a row of taps, and the row of outputs that they belong
    /// to.
    pub(crate) struct Runs {
        /// Of the first pixel, and the elements from one pixel to the next.
        products: *const f32,
        stride: usize,
        count: usize,
        taps: usize,
        channels: usize,
        /// The row of outputs, and its length.
        out: *mut f32,
        width: usize,
        /// The output of the first pixel's first tap, and the outputs from one pixel to the next.
        first: isize,
        step: usize,
    }

    impl Runs {
        /// Adds the products to the outputs. Those beyond the row are dropped.
        ///
        /// # Safety
        /// Products and outputs are valid, and the CPU supports the instructions of `V`.
        #[inline(always)]
        unsafe fn add<V: Simd<Element = f32>>(&self) {
            // Neighboring pixels reach the same outputs, and loading what was just stored would wait for it.
            let apart = self.taps.div_ceil(self.step);
            for i in (0..apart).flat_map(|first| (first..self.count).step_by(apart)) {
                let first = self.first + (i * self.step) as isize;
                let skipped = (-first).max(0);
                let taps = (self.width as isize - first).min(self.taps as isize) - skipped;
                let len = taps.max(0) as usize * self.channels;
                let from = self.products.wrapping_add(i * self.stride + skipped as usize * self.channels);
                let to = self.out.wrapping_offset((first + skipped) * self.channels as isize);
                // SAFETY: taps of this pixel inside the row.
                unsafe { add_run::<V>(from, to, len) }
            }
        }
    }

    /// Adds `len` products to as many outputs: first in vectors, then in fours, then one by one, because
    /// on many CPUs what a masked store writes reaches the next load late.
    ///
    /// # Safety
    /// Products and outputs are valid, and the CPU supports the instructions of `V`.
    #[inline(always)]
    unsafe fn add_run<V: Simd<Element = f32>>(from: *const f32, to: *mut f32, len: usize) {
        let mut at = 0;
        // SAFETY: guaranteed by the caller.
        unsafe {
            while at + V::LANES <= len {
                V::load(to.add(at)).add(V::load(from.add(at))).store(to.add(at));
                at += V::LANES;
            }
            while at + 4 <= len {
                _mm_storeu_ps(to.add(at), _mm_add_ps(_mm_loadu_ps(to.add(at)), _mm_loadu_ps(from.add(at))));
                at += 4;
            }
            while at < len {
                *to.add(at) += *from.add(at);
                at += 1;
            }
        }
    }

    /// # Safety
    /// Same as [`Runs::add`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    pub(crate) unsafe fn add_runs_avx512(runs: &Runs) {
        // SAFETY: guaranteed by the caller.
        unsafe { runs.add::<__m512>() }
    }

    /// # Safety
    /// Same as [`Runs::add`].
    #[target_feature(enable = "avx2,fma")]
    pub(crate) unsafe fn add_runs_avx2(runs: &Runs) {
        // SAFETY: guaranteed by the caller.
        unsafe { runs.add::<__m256>() }
    }
}
