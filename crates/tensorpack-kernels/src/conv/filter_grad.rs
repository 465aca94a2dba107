//! The gradient of a two-dimensional convolution with respect to its filter: for each tap, the
//! products of the input, shifted by the tap, and the output gradient, summed over all pixels of
//! all images.
//!
//! The filter is small and the sum long, so images are divided among groups, each with its own
//! partial result, and a second phase adds those in order. A filter too large for the cache is also
//! divided by rows, and one too large for many partial results by columns.

use std::ops::Range;

use crate::conv::choose::Algorithm;
use crate::conv::conv2d::Conv2d;
use crate::conv::correlation::Correlation;
#[cfg(target_arch = "x86_64")]
use crate::conv::filter_grad_direct;
#[cfg(target_arch = "x86_64")]
use crate::conv::kernel_table::WinogradKernels;
use crate::conv::winograd_filter_grad::WinogradFilterGrad;
use crate::conv::winograd_stride2_filter_grad::WinogradStride2FilterGrad;
#[cfg(target_arch = "x86_64")]
use crate::gemm::amx::Amx;
use crate::gemm::contract::{Contract, Float, Operands, PairContract};
use crate::partition;
#[cfg(target_arch = "x86_64")]
use crate::simd::Pairs512;
use crate::{Bf16Isa, Block, Isa};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256, __m256d, __m512, __m512d};
use tensorpack_tensor::{DType, Result};

/// The gradient with respect to `w`: the left operand is `x [n, h, w, in]`, the right one `dy [n,
/// oh, ow, out]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conv2dFilterGrad(pub Conv2d);

/// Maximum size of all partial results together.
const PARTIAL_BYTES: usize = 16 << 20;
/// Maximum number of partial results, and enough chunks for all threads.
const ENOUGH_CHUNKS: usize = 16;
/// A filter larger than this is divided by rows: the sums of a chunk should stay in the L2 cache.
const CACHED_BYTES: usize = 256 << 10;
/// The columns of a chunk are a multiple of this, the width of the widest panel.
const BLOCK_COLS: usize = 32;
/// A tile sums about this many pixels, of some rows of a large image or of several small ones:
/// enough that its products are most of its cost, and few enough for the L1 cache.
pub(crate) const TILE_PIXELS: usize = 128;
/// Maximum size of what a chunk reads at a time: it should stay in a part of the L2 cache.
const WINDOW_BYTES: usize = 320 << 10;
/// Elements of the filter that a chunk of the second phase sums.
const SUM_ELEMENTS: usize = 1 << 13;

/// The partition of the sum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocking {
    /// Bands of output rows of an image; a band of an image is a unit of work.
    pub(crate) bands: usize,
    /// Images processed together if each is a single band.
    pub(crate) together: usize,
    /// Groups of units, each with its own partial result.
    pub(crate) groups: usize,
    /// Parts of the filter's rows.
    taps: usize,
    /// Columns of a chunk.
    cols: usize,
    col_blocks: usize,
}

impl Conv2dFilterGrad {
    fn conv(&self) -> Conv2d {
        self.0.folded()
    }
}

/// Returns the gap between the pixels of a copied image, in elements. Without it, pixels many cache
/// lines apart would map to few sets of the L1 cache.
pub(crate) fn gap(c: &Conv2d) -> usize {
    if (c.stride[1] * c.in_channels).is_multiple_of(128) { 16 } else { 0 }
}

/// Returns the number of elements of an image that `rows` rows of output read under `taps` rows of
/// the filter.
fn window_len(c: &Conv2d, rows: usize, taps: usize) -> usize {
    let sums = Correlation { conv: *c, backward: false };
    let beyond = c.kernel[0].saturating_sub(taps) * c.dilation[0];
    let high = sums.reach(0, 0..rows).1.saturating_sub(beyond);
    high * sums.reach(1, 0..c.out_size[1]).1 * (c.in_channels + gap(c))
}

/// Returns the number of elements of a copy of `rows` rows of the output gradient, with columns
/// padded to whole vectors.
fn gradient_len(c: &Conv2d, rows: usize) -> usize {
    rows * c.out_size[1] * c.out_channels.next_multiple_of(16)
}

pub(crate) fn blocking(c: &Conv2d) -> Blocking {
    let rows = c.out_size[0].max(1);
    let partial = (c.filter_rows() * c.out_channels * size_of::<f32>()).max(1);
    let taps = if partial > CACHED_BYTES { c.kernel[0].max(1) } else { 1 };
    let bytes = |rows: usize| {
        (window_len(c, rows, c.kernel[0].div_ceil(taps)) + gradient_len(c, rows)) * size_of::<f32>()
    };
    let band = partition::largest_fitting(rows, |rows| bytes(rows) <= WINDOW_BYTES);
    let bands = rows.div_ceil(band);
    let pixels = (c.out_size[0] * c.out_size[1]).max(1);
    let few = TILE_PIXELS.div_ceil(pixels);
    let together = if bands == 1 { few.min(WINDOW_BYTES / bytes(rows).max(1)) } else { 1 };
    let enough = ENOUGH_CHUNKS.div_ceil(taps);
    let groups = (PARTIAL_BYTES / partial).clamp(1, enough).min((c.batch * bands).max(1));
    let panels = c.out_channels.div_ceil(BLOCK_COLS).max(1);
    let cols = panels.div_ceil(enough.div_ceil(groups)) * BLOCK_COLS;
    Blocking {
        bands,
        together: together.max(1),
        groups,
        taps,
        cols,
        col_blocks: c.out_channels.div_ceil(cols),
    }
}

/// Returns the number of chunks of the second phase.
fn sum_blocks(c: &Conv2d) -> usize {
    (c.filter_rows() * c.out_channels).div_ceil(SUM_ELEMENTS).clamp(1, c.filter_rows().max(1))
}

/// A chunk of the first phase.
pub(crate) struct Part {
    pub(crate) group: usize,
    /// Rows of taps.
    pub(crate) taps: Range<usize>,
    pub(crate) cols: Range<usize>,
}

impl Blocking {
    pub(crate) fn part(&self, c: &Conv2d, chunk: usize) -> Part {
        let (chunk, block) = (chunk / self.col_blocks, chunk % self.col_blocks);
        Part {
            group: chunk / self.taps,
            taps: partition::part(c.kernel[0], self.taps, chunk % self.taps),
            cols: block * self.cols..((block + 1) * self.cols).min(c.out_channels),
        }
    }
}

/// Returns the block of the output that a chunk of the last phase completes.
pub(crate) fn block(c: &Conv2d, blocking: &Blocking, chunk: usize) -> Block {
    match blocking.groups {
        1 => {
            let Part { taps, cols, .. } = blocking.part(c, chunk);
            let row = c.kernel[1] * c.in_channels;
            Block { rows: taps.start * row..taps.end * row, cols }
        }
        _ => Block { rows: partition::part(c.filter_rows(), sum_blocks(c), chunk), cols: 0..c.out_channels },
    }
}

/// Reference loops: tap by tap, over all pixels.
///
/// # Safety
/// The operands are valid, and no other thread accesses this part of the output.
unsafe fn plain<T: Float>(c: &Conv2d, mem: Operands<T>, rows: Range<usize>, cols: Range<usize>) {
    for row in rows {
        let (ky, kx, i) =
            (row / (c.kernel[1] * c.in_channels), row / c.in_channels % c.kernel[1], row % c.in_channels);
        // SAFETY: inside this thread's part of the output.
        let out = unsafe {
            std::slice::from_raw_parts_mut(
                mem.out.wrapping_add(row * c.out_channels + cols.start),
                cols.len(),
            )
        };
        out.fill(T::default());
        for n in 0..c.batch {
            for (oy, ox) in (0..c.out_size[0]).flat_map(|oy| (0..c.out_size[1]).map(move |ox| (oy, ox))) {
                let (Some(y), Some(x)) = (c.input_at(0, oy, ky), c.input_at(1, ox, kx)) else { continue };
                let from = ((n * c.in_size[0] + y) * c.in_size[1] + x) * c.in_channels + i;
                let dy = ((n * c.out_size[0] + oy) * c.out_size[1] + ox) * c.out_channels + cols.start;
                // SAFETY: inside the sizes of both operands.
                let (x, dy) =
                    unsafe { (*mem.lhs.add(from), std::slice::from_raw_parts(mem.rhs.add(dy), cols.len())) };
                for (out, &dy) in out.iter_mut().zip(dy) {
                    *out += x * dy;
                }
            }
        }
    }
}

/// Runs one chunk with the reference loops, which use no groups: the last phase does all the work.
///
/// # Safety
/// Same as [`Contract::run_f32`].
unsafe fn run_plain<T: Float>(
    c: &Conv2d,
    phase: usize,
    chunk: usize,
    mem: Operands<T>,
    finish: &mut dyn FnMut(Block),
) {
    let planned = Planned::new(c);
    if phase + 1 < planned.phases() {
        return;
    }
    planned.for_each_block(c, chunk, |block| {
        // SAFETY: blocks of different chunks are disjoint, the rest is guaranteed by the caller.
        unsafe { plain(c, mem, block.rows.clone(), block.cols.clone()) }
        finish(block);
    });
}

/// A filter gradient with the algorithm chosen for it.
enum Planned {
    Direct(Blocking),
    Winograd(WinogradFilterGrad),
    WinogradStride2(WinogradStride2FilterGrad),
}

impl Planned {
    fn new(c: &Conv2d) -> Planned {
        match Algorithm::for_filter_grad(c) {
            Algorithm::Direct => Planned::Direct(blocking(c)),
            Algorithm::Winograd(size) => Planned::Winograd(WinogradFilterGrad::new(c, size)),
            Algorithm::WinogradStride2 => Planned::WinogradStride2(WinogradStride2FilterGrad::new(c)),
        }
    }

    fn phases(&self) -> usize {
        match self {
            Planned::Direct(blocking) if blocking.groups == 1 => 1,
            Planned::Direct(_) => 2,
            Planned::Winograd(winograd) => winograd.phases(),
            Planned::WinogradStride2(_) => 1,
        }
    }

    fn chunks(&self, c: &Conv2d, phase: usize) -> usize {
        match (self, phase) {
            (Planned::Winograd(winograd), _) => winograd.chunks(phase),
            (Planned::WinogradStride2(winograd), _) => winograd.chunks(),
            (Planned::Direct(_), _) if c.filter_rows() * c.out_channels == 0 => 0,
            (Planned::Direct(blocking), 0) => blocking.groups * blocking.taps * blocking.col_blocks,
            (Planned::Direct(_), _) => sum_blocks(c),
        }
    }

    /// Calls `each` with the blocks of the output that a chunk of the last phase completes.
    fn for_each_block(&self, c: &Conv2d, chunk: usize, each: impl FnMut(Block)) {
        match self {
            Planned::Direct(blocking) => std::iter::once(block(c, blocking, chunk)).for_each(each),
            Planned::Winograd(winograd) => winograd.blocks(chunk).for_each(each),
            Planned::WinogradStride2(winograd) => winograd.blocks(chunk).for_each(each),
        }
    }

    /// Returns the number of elements of partial results.
    fn shared_len(&self, c: &Conv2d) -> usize {
        match self {
            Planned::Direct(blocking) if blocking.groups == 1 => 0,
            Planned::Direct(blocking) => blocking.groups * c.filter_rows() * c.out_channels,
            Planned::Winograd(winograd) => winograd.shared_len(),
            Planned::WinogradStride2(_) => 0,
        }
    }

    fn scratch_len(&self, c: &Conv2d) -> usize {
        match self {
            Planned::Direct(blocking) => {
                let rows = c.out_size[0].div_ceil(blocking.bands);
                let window = window_len(c, rows, c.kernel[0].div_ceil(blocking.taps)).next_multiple_of(16);
                blocking.together * (window + gradient_len(c, rows))
            }
            Planned::Winograd(winograd) => winograd.scratch_len(),
            Planned::WinogradStride2(winograd) => winograd.scratch_len(),
        }
    }

    /// # Safety
    /// Same as [`Contract::run_f32`], on a CPU that supports the instructions of `V`.
    #[cfg(target_arch = "x86_64")]
    unsafe fn run_fast<V: WinogradKernels>(
        &self,
        c: &Conv2d,
        phase: usize,
        chunk: usize,
        mem: Operands<f32>,
        scratch: &mut [u8],
        finish: &mut dyn FnMut(Block),
    ) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self {
                Planned::Direct(blocking) => {
                    filter_grad_direct::run::<V>(c, blocking, phase, chunk, mem, scratch, finish)
                }
                Planned::Winograd(winograd) => winograd.run::<V>(phase, chunk, mem, scratch, finish),
                Planned::WinogradStride2(winograd) => winograd.run::<V>(chunk, mem, scratch, finish),
            }
        }
    }
}

impl Contract for Conv2dFilterGrad {
    fn check(&self) -> Result<()> {
        self.0.check_sizes()
    }

    fn out_matrix(&self) -> (usize, usize) {
        (self.0.filter_rows(), self.0.out_channels)
    }

    fn lhs_len(&self) -> usize {
        self.0.in_len()
    }

    fn rhs_len(&self) -> usize {
        self.0.out_len()
    }

    fn phases(&self) -> usize {
        Planned::new(&self.conv()).phases()
    }

    fn chunks(&self, phase: usize) -> usize {
        let c = self.conv();
        Planned::new(&c).chunks(&c, phase)
    }

    fn shared_bytes(&self, dtype: DType) -> usize {
        let c = self.conv();
        Planned::new(&c).shared_len(&c) * dtype.size()
    }

    fn scratch_bytes(&self, dtype: DType) -> usize {
        let c = self.conv();
        Planned::new(&c).scratch_len(&c) * dtype.size()
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
        let c = self.conv();
        debug_assert!(scratch.len() >= self.scratch_bytes(DType::F32));
        // SAFETY: guaranteed by the caller, who has checked that the CPU supports `isa`.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => Planned::new(&c).run_fast::<__m512>(&c, phase, chunk, mem, scratch, finish),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => Planned::new(&c).run_fast::<__m256>(&c, phase, chunk, mem, scratch, finish),
                _ => run_plain(&c, phase, chunk, mem, finish),
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
        let c = self.conv();
        debug_assert!(scratch.len() >= self.scratch_bytes(DType::F64));
        // SAFETY: guaranteed by the caller, who has checked that the CPU supports `isa`.
        unsafe {
            match (isa, Planned::new(&c)) {
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx512, Planned::Direct(blocking)) => {
                    filter_grad_direct::run::<__m512d>(&c, &blocking, phase, chunk, mem, scratch, finish)
                }
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx2, Planned::Direct(blocking)) => {
                    filter_grad_direct::run::<__m256d>(&c, &blocking, phase, chunk, mem, scratch, finish)
                }
                _ => run_plain(&c, phase, chunk, mem, finish),
            }
        }
    }
}

impl PairContract for Conv2dFilterGrad {
    unsafe fn run_pairs(
        &self,
        isa: Bf16Isa,
        phase: usize,
        chunk: usize,
        mem: Operands<f32>,
        scratch: &mut [u8],
        finish: &mut dyn FnMut(Block),
    ) {
        let c = self.conv();
        let Planned::Direct(blocking) = Planned::new(&c) else {
            unreachable!("convolutions of pairs are exact")
        };
        // SAFETY: guaranteed by the caller, who has checked that the CPU supports `isa`.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            match isa {
                Bf16Isa::Avx512Bf16 => {
                    filter_grad_direct::run::<Pairs512>(&c, &blocking, phase, chunk, mem, scratch, finish)
                }
                Bf16Isa::Amx => {
                    Amx::begin_chunk();
                    filter_grad_direct::run::<Amx>(&c, &blocking, phase, chunk, mem, scratch, finish)
                }
            }
        }
    }
}
