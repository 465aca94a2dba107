//! Two-dimensional convolution of NHWC images with HWIO filters: the output, and the gradient with
//! respect to the input.
//!
//! With channels last, an output pixel is the product of a few runs of contiguous elements with the
//! filter, which is already a matrix. So there is no im2col: a first phase packs (or transforms)
//! the filter, and each chunk of the second copies the part of the images it reads, with padding,
//! and multiplies. `choose` picks the algorithm; the gradient with respect to the filter is in
//! `filter_grad`.

use crate::conv::choose::{self, Algorithm};
use crate::conv::col2im::Col2im;
use crate::conv::correlation::{Blocking, Correlation, PACK_COLS};
#[cfg(target_arch = "x86_64")]
use crate::conv::direct;
#[cfg(target_arch = "x86_64")]
use crate::conv::kernel_table::WinogradKernels;
use crate::conv::winograd::Winograd;
use crate::conv::winograd_stride2::WinogradStride2;
#[cfg(target_arch = "x86_64")]
use crate::gemm::amx::Amx;
use crate::gemm::contract::{Contract, FilterPacking, Float, Operands, PackedForm, PairContract};
#[cfg(target_arch = "x86_64")]
use crate::simd::Pairs512;
use crate::{Bf16Isa, Block, Isa};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256d, __m512d};
use tensorpack_tensor::{DType, Result};

/// The sizes of a convolution; pairs are (height, width). Elements beyond the edges of the input
/// are zero; the padding at the high ends follows from `out_size`.
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
    /// Whether to use the direct algorithm only. Otherwise 3x3 filters, and 4x4 filters with stride
    /// 2, may use Winograd: fewer multiplications, slightly more rounding error.
    #[doc(alias = "by_definition")]
    pub exact: bool,
}

/// `y = conv(x, w)`: the left operand is `x [n, h, w, in]`, the right one `w [kh, kw, in, out]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conv2dForward(pub Conv2d);

/// The gradient with respect to `x`: the left operand is `dy [n, oh, ow, out]`, the right one `w
/// [kh, kw, in, out]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conv2dInputGrad(pub Conv2d);

/// The longest row of a folded image; longer ones would leave too few rows for the threads to
/// share.
const FOLDED_WIDTH: usize = 1024;
/// Rows up to this length are folded even if few rows remain.
const SHORT_FOLDED_WIDTH: usize = 128;
/// Rows of all images that remain after folding into rows longer than that.
const FOLDED_ROWS: usize = 8;

impl Conv2d {
    pub(crate) fn in_len(&self) -> usize {
        self.batch * self.in_size[0] * self.in_size[1] * self.in_channels
    }

    pub(crate) fn out_len(&self) -> usize {
        self.batch * self.out_size[0] * self.out_size[1] * self.out_channels
    }

    /// Returns the rows of the filter as a matrix: height x width x input channels.
    pub(crate) fn filter_rows(&self) -> usize {
        self.kernel[0] * self.kernel[1] * self.in_channels
    }

    /// Returns the number of floating-point operations, padding included.
    pub(crate) fn flops(&self) -> f64 {
        2.0 * self.out_len() as f64 * self.filter_rows() as f64
    }

    /// Returns the same convolution with several rows of pixels merged into one, if it is pointwise
    /// (1x1, stride 1): longer rows fill more tiles.
    pub(crate) fn folded(&self) -> Conv2d {
        let [height, width] = self.in_size;
        let pointwise = self.kernel == [1, 1] && self.stride == [1, 1] && self.pad_low == [0, 0];
        if !pointwise || self.in_size != self.out_size {
            return *self;
        }
        let fits = |rows: &usize| {
            let enough = rows * width <= SHORT_FOLDED_WIDTH || self.batch * (height / rows) >= FOLDED_ROWS;
            height.is_multiple_of(*rows) && rows * width <= FOLDED_WIDTH && enough
        };
        let most = height.min(FOLDED_WIDTH / width.max(1));
        let rows = (1..=most).rev().find(fits).unwrap_or(1);
        let size = [height / rows, width * rows];
        Conv2d { in_size: size, out_size: size, ..*self }
    }

    /// Returns the input position that tap `k` of output `o` reads along an axis; `None` in the
    /// padding.
    pub(crate) fn input_at(&self, axis: usize, o: usize, k: usize) -> Option<usize> {
        let at = o * self.stride[axis] + k * self.dilation[axis];
        at.checked_sub(self.pad_low[axis]).filter(|&i| i < self.in_size[axis])
    }

    /// Returns the output position to which tap `k` contributes input `i` along an axis, if there
    /// is one.
    fn output_at(&self, axis: usize, i: usize, k: usize) -> Option<usize> {
        let at = (i + self.pad_low[axis]).checked_sub(k * self.dilation[axis])?;
        let o = at / self.stride[axis];
        (at.is_multiple_of(self.stride[axis]) && o < self.out_size[axis]).then_some(o)
    }
}

/// Returns the image, y and x of row `row` of a matrix of pixels.
fn pixel(row: usize, size: [usize; 2]) -> (usize, usize, usize) {
    (row / (size[0] * size[1]), row / size[1] % size[0], row % size[1])
}

/// Reference loops for the output: pixel by pixel, tap by tap.
///
/// # Safety
/// The operands are valid, and no other thread accesses this block of the output.
unsafe fn plain_forward<T: Float>(c: &Conv2d, mem: Operands<T>, block: &Block) {
    let cols = &block.cols;
    for row in block.rows.clone() {
        let (n, oy, ox) = pixel(row, c.out_size);
        // SAFETY: this pixel is in this thread's part of the output.
        let out = unsafe {
            std::slice::from_raw_parts_mut(
                mem.out.wrapping_add(row * c.out_channels + cols.start),
                cols.len(),
            )
        };
        out.fill(T::default());
        for (ky, kx) in (0..c.kernel[0]).flat_map(|ky| (0..c.kernel[1]).map(move |kx| (ky, kx))) {
            let (Some(y), Some(x)) = (c.input_at(0, oy, ky), c.input_at(1, ox, kx)) else { continue };
            let from = ((n * c.in_size[0] + y) * c.in_size[1] + x) * c.in_channels;
            let tap = (ky * c.kernel[1] + kx) * c.in_channels;
            for i in 0..c.in_channels {
                // SAFETY: inside the sizes of both operands.
                let (a, w) = unsafe {
                    let w = mem.rhs.add((tap + i) * c.out_channels + cols.start);
                    (*mem.lhs.add(from + i), std::slice::from_raw_parts(w, cols.len()))
                };
                for (out, &w) in out.iter_mut().zip(w) {
                    *out += a * w;
                }
            }
        }
    }
}

/// Reference loops for the input gradient: pixel by pixel, tap by tap.
///
/// # Safety
/// The operands are valid, and no other thread accesses this block of the output.
unsafe fn plain_input_grad<T: Float>(c: &Conv2d, mem: Operands<T>, block: &Block) {
    let cols = &block.cols;
    for row in block.rows.clone() {
        let (n, iy, ix) = pixel(row, c.in_size);
        // SAFETY: this pixel is in this thread's part of the output.
        let out = unsafe {
            std::slice::from_raw_parts_mut(mem.out.wrapping_add(row * c.in_channels + cols.start), cols.len())
        };
        out.fill(T::default());
        for (ky, kx) in (0..c.kernel[0]).flat_map(|ky| (0..c.kernel[1]).map(move |kx| (ky, kx))) {
            let (Some(y), Some(x)) = (c.output_at(0, iy, ky), c.output_at(1, ix, kx)) else { continue };
            let from = ((n * c.out_size[0] + y) * c.out_size[1] + x) * c.out_channels;
            let tap = (ky * c.kernel[1] + kx) * c.in_channels * c.out_channels;
            for o in 0..c.out_channels {
                // SAFETY: inside the sizes of both operands.
                unsafe {
                    let dy = *mem.lhs.add(from + o);
                    for (i, out) in cols.clone().zip(out.iter_mut()) {
                        *out += dy * *mem.rhs.add(tap + i * c.out_channels + o);
                    }
                }
            }
        }
    }
}

/// Reference loops for bias and activation.
///
/// # Safety
/// The operands are valid, and no other thread accesses this block of the output.
unsafe fn plain_bias<T: Float>(width: usize, mem: Operands<T>, block: &Block) {
    for (row, col) in block.rows.clone().flat_map(|row| block.cols.clone().map(move |col| (row, col))) {
        // SAFETY: inside the output, and the bias has an element for each column.
        unsafe {
            let out = &mut *mem.out.add(row * width + col);
            if !mem.bias.add.is_null() {
                *out += *mem.bias.add.add(col);
            }
            if mem.bias.relu && *out < T::default() {
                *out = T::default();
            }
        }
    }
}

/// A convolution with the algorithm chosen for it.
enum Planned {
    Direct(Correlation, Blocking),
    Winograd(Winograd),
    WinogradStride2(WinogradStride2),
    Col2im(Col2im),
}

impl Planned {
    /// Returns the number of chunks of the first phase, which packs the filter.
    fn pack_chunks(&self, out_channels: usize) -> usize {
        match self {
            Planned::Winograd(winograd) => winograd.panels(),
            Planned::Col2im(col2im) => col2im.panels(),
            Planned::Direct(..) | Planned::WinogradStride2(_) => out_channels.div_ceil(PACK_COLS),
        }
    }

    fn chunks(&self) -> usize {
        match self {
            Planned::Direct(_, blocking) => blocking.chunks(),
            Planned::Winograd(winograd) => winograd.chunks,
            Planned::WinogradStride2(winograd) => winograd.chunks(),
            Planned::Col2im(col2im) => col2im.chunks(),
        }
    }

    /// Returns the block of the output that a chunk computes.
    fn block(&self, chunk: usize) -> Block {
        match self {
            Planned::Direct(sums, blocking) => sums.block(blocking, chunk),
            Planned::Winograd(winograd) => winograd.block(chunk),
            Planned::WinogradStride2(winograd) => winograd.block(chunk),
            Planned::Col2im(col2im) => col2im.block(chunk),
        }
    }

    /// Returns the number of elements of the packed filter.
    fn shared_len(&self) -> usize {
        match self {
            Planned::Direct(sums, _) => sums.depth() * sums.out_channels().next_multiple_of(PACK_COLS),
            Planned::Winograd(winograd) => winograd.shared_len(),
            Planned::WinogradStride2(winograd) => winograd.shared_len(),
            Planned::Col2im(col2im) => col2im.shared_len(),
        }
    }

    fn scratch_len(&self) -> usize {
        match self {
            Planned::Direct(sums, blocking) => sums.scratch_len(blocking),
            Planned::Winograd(winograd) => winograd.scratch_len(),
            Planned::WinogradStride2(winograd) => winograd.scratch_len(),
            Planned::Col2im(col2im) => col2im.scratch_len(),
        }
    }

    /// # Safety
    /// Same as [`Contract::run_f32`], on a CPU that supports the instructions of `V`.
    #[cfg(target_arch = "x86_64")]
    unsafe fn run_fast<V: WinogradKernels>(
        &self,
        phase: usize,
        chunk: usize,
        mem: Operands<f32>,
        scratch: &mut [u8],
        finish: &mut dyn FnMut(Block),
    ) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match (self, phase) {
                (Planned::Direct(sums, blocking), _) => {
                    direct::run_phase::<V>(sums, blocking, phase, chunk, mem, scratch, finish)
                }
                (Planned::Winograd(winograd), 0) => {
                    winograd.pack::<V>(chunk, mem.rhs, mem.shared.cast(), scratch)
                }
                (Planned::Winograd(winograd), _) => winograd.run::<V>(chunk, mem, scratch, finish),
                (Planned::WinogradStride2(winograd), 0) => {
                    winograd.pack::<V>(chunk, mem.rhs, mem.shared.cast(), scratch)
                }
                (Planned::WinogradStride2(winograd), _) => winograd.run::<V>(chunk, mem, scratch, finish),
                (Planned::Col2im(col2im), 0) => col2im.pack::<V>(chunk, mem.rhs, mem.shared.cast()),
                (Planned::Col2im(col2im), _) => col2im.run::<V>(chunk, mem, scratch, finish),
            }
        }
    }
}

impl Correlation {
    /// Chooses the algorithm. The reference loops use the same chunks.
    fn planned(self) -> Planned {
        match Algorithm::for_outputs(&self) {
            Algorithm::Direct if choose::col2im_pays(&self) => Planned::Col2im(Col2im::new(&self)),
            Algorithm::Direct => Planned::Direct(self, self.blocking_with_columns()),
            Algorithm::Winograd(size) => Planned::Winograd(Winograd::new(&self, size)),
            Algorithm::WinogradStride2 => Planned::WinogradStride2(WinogradStride2::new(&self)),
        }
    }

    /// # Safety
    /// Same as [`Contract::run_f32`].
    unsafe fn run_plain<T: Float>(
        &self,
        phase: usize,
        chunk: usize,
        mem: Operands<T>,
        finish: &mut dyn FnMut(Block),
    ) {
        // The reference loops read the filter in place: there is nothing to pack.
        if phase == 0 {
            return;
        }
        let block = self.planned().block(chunk);
        // SAFETY: blocks of different chunks are disjoint, the rest is guaranteed by the caller.
        unsafe {
            match self.backward {
                false => plain_forward(&self.conv, mem, &block),
                true => plain_input_grad(&self.conv, mem, &block),
            }
            plain_bias(self.out_channels(), mem, &block);
        }
        finish(block);
    }
}

/// Output and input gradient are both correlations: only operands and output differ.
macro_rules! impl_contract {
    ($type:ident, $backward:literal, $lhs:ident, $out:ident) => {
        impl $type {
            fn sums(&self) -> Correlation {
                Correlation { conv: self.0.folded(), backward: $backward }
            }
        }

        impl Contract for $type {
            fn check(&self) -> Result<()> {
                self.0.check_sizes()
            }

            fn out_matrix(&self) -> (usize, usize) {
                let sums = self.sums();
                let [height, width] = sums.out_size();
                (self.0.batch * height * width, sums.out_channels())
            }

            fn lhs_len(&self) -> usize {
                self.0.$lhs()
            }

            fn rhs_len(&self) -> usize {
                self.0.filter_rows() * self.0.out_channels
            }

            fn phases(&self) -> usize {
                2
            }

            fn chunks(&self, phase: usize) -> usize {
                let sums = self.sums();
                match phase {
                    _ if self.0.$out() == 0 => 0,
                    0 => sums.planned().pack_chunks(sums.out_channels()),
                    _ => sums.planned().chunks(),
                }
            }

            fn shared_bytes(&self, dtype: DType) -> usize {
                self.sums().planned().shared_len() * dtype.size()
            }

            fn scratch_bytes(&self, dtype: DType) -> usize {
                self.sums().planned().scratch_len() * dtype.size()
            }

            fn takes_bias(&self) -> bool {
                true
            }

            fn packing(&self) -> Option<FilterPacking> {
                let sums = self.sums();
                let ([height, width], channels) =
                    (sums.conv.kernel, [sums.in_channels(), sums.out_channels()]);
                let form = match sums.planned() {
                    Planned::Winograd(winograd) => {
                        PackedForm::Winograd { outputs: winograd.tile_size().outputs() }
                    }
                    Planned::WinogradStride2(_) => PackedForm::WinogradStride2,
                    Planned::Col2im(_) => PackedForm::Col2im,
                    Planned::Direct(..) => PackedForm::Direct,
                };
                // The classes of pixels of an input gradient depend on more than that.
                (!sums.backward)
                    .then_some(FilterPacking { sizes: [height, width, channels[0], channels[1]], form })
            }

            fn flops(&self) -> f64 {
                self.0.flops()
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
                let sums = self.sums();
                debug_assert!(scratch.len() >= self.scratch_bytes(DType::F32));
                // SAFETY: guaranteed by the caller, who has checked that the CPU supports `isa`.
                unsafe {
                    match isa {
                        #[cfg(target_arch = "x86_64")]
                        Isa::Avx512 => sums
                            .planned()
                            .run_fast::<std::arch::x86_64::__m512>(phase, chunk, mem, scratch, finish),
                        #[cfg(target_arch = "x86_64")]
                        Isa::Avx2 => sums
                            .planned()
                            .run_fast::<std::arch::x86_64::__m256>(phase, chunk, mem, scratch, finish),
                        _ => sums.run_plain(phase, chunk, mem, finish),
                    }
                }
            }

            unsafe fn run_f64(
                &self,
                isa: Isa,
                phase: usize,
                chunk: usize,
                mem: Operands<f64>,
                scratch: &mut [u8],
                finish: &mut dyn FnMut(Block),
            ) {
                debug_assert!(scratch.len() >= self.scratch_bytes(DType::F64));
                // SAFETY: guaranteed by the caller, who has checked that the CPU supports `isa`.
                unsafe {
                    match (isa, self.sums().planned()) {
                        #[cfg(target_arch = "x86_64")]
                        (Isa::Avx512, Planned::Direct(sums, blocking)) => {
                            direct::run_phase::<__m512d>(&sums, &blocking, phase, chunk, mem, scratch, finish)
                        }
                        #[cfg(target_arch = "x86_64")]
                        (Isa::Avx2, Planned::Direct(sums, blocking)) => {
                            direct::run_phase::<__m256d>(&sums, &blocking, phase, chunk, mem, scratch, finish)
                        }
                        _ => self.sums().run_plain(phase, chunk, mem, finish),
                    }
                }
            }
        }

        impl PairContract for $type {
            unsafe fn run_pairs(
                &self,
                isa: Bf16Isa,
                phase: usize,
                chunk: usize,
                mem: Operands<f32>,
                scratch: &mut [u8],
                finish: &mut dyn FnMut(Block),
            ) {
                let Planned::Direct(sums, blocking) = self.sums().planned() else {
                    unreachable!("convolutions of pairs are exact")
                };
                // SAFETY: guaranteed by the caller, who has checked that the CPU supports `isa`.
                #[cfg(target_arch = "x86_64")]
                unsafe {
                    match isa {
                        Bf16Isa::Avx512Bf16 => direct::run_phase::<Pairs512>(
                            &sums, &blocking, phase, chunk, mem, scratch, finish,
                        ),
                        Bf16Isa::Amx => {
                            Amx::begin_chunk();
                            direct::run_phase::<Amx>(&sums, &blocking, phase, chunk, mem, scratch, finish)
                        }
                    }
                }
            }
        }
    };
}

impl_contract!(Conv2dForward, false, in_len, out_len);
impl_contract!(Conv2dInputGrad, true, out_len, in_len);
