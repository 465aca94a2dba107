//! The interface of matrix products and convolutions: two operands, an output that is a matrix, and
//! sums over the other dimensions.
//!
//! The caller sees only phases, chunks and memory sizes, and can run an epilogue (bias, activation,
//! ...) on each block of the output while it is still in cache.

use std::fmt::Debug;
use std::ops::{AddAssign, Mul};

use crate::simd::{Bf16Isa, Isa};
use tensorpack_tensor::{DType, Result};

/// A rectangle of a kernel's output matrix: the output itself for a matrix product, pixels by
/// channels for a convolution. Kernels report each block as it becomes final, while it is still in
/// cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Rows of the matrix.
    pub rows: std::ops::Range<usize>,
    /// Columns of the matrix.
    pub cols: std::ops::Range<usize>,
}

/// The memory that one contraction reads and writes: operands of type `T`, sums of type `S`.
#[derive(Clone, Copy, Debug)]
pub struct Operands<T, S = T> {
    /// The left operand, dense.
    pub lhs: *const T,
    /// The right operand, dense.
    pub rhs: *const T,
    /// The output, dense; its previous contents are ignored.
    pub out: *mut S,
    /// [`Contract::shared_bytes`] bytes, aligned to 64, the same memory for all phases and chunks
    /// of one run.
    pub shared: *mut u8,
    /// The epilogue applied to sums as they are written. Must be [`Bias::NONE`] unless the
    /// contraction [supports it](Contract::takes_bias).
    pub bias: Bias<S>,
}

/// The most common epilogue: bias and ReLU, cheapest in the loop that writes the sums.
#[derive(Clone, Copy, Debug)]
pub struct Bias<T> {
    /// The bias, one element per output column; null for none.
    pub add: *const T,
    /// Whether to apply ReLU after the bias.
    pub relu: bool,
}

impl<T> Bias<T> {
    /// No epilogue.
    pub const NONE: Bias<T> = Bias { add: std::ptr::null(), relu: false };

    /// Returns whether there is a bias or a ReLU.
    pub(crate) fn is_some(&self) -> bool {
        self.relu || !self.add.is_null()
    }

    /// Returns the epilogue of the columns from `col` on.
    pub(crate) fn at(self, col: usize) -> Bias<T> {
        Bias { add: if self.add.is_null() { self.add } else { self.add.wrapping_add(col) }, ..self }
    }
}

/// The form in which a convolution packs its filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FilterPacking {
    /// Height, width, input and output channels.
    pub(crate) sizes: [usize; 4],
    pub(crate) form: PackedForm,
}

/// What a packed filter consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PackedForm {
    /// Its own elements.
    Direct,
    /// Its Winograd transform for tiles with this number of outputs along each side.
    Winograd { outputs: usize },
    /// Its transform for stride 2.
    WinogradStride2,
    /// Its elements with taps times output channels as columns.
    Col2im,
    /// Signed bytes in groups, and the offset of each column.
    Int8,
}

/// A contraction: a sum of products of two operands, divided into phases and chunks.
///
/// To run one, take the phases in turn: run all chunks of a phase, in any order and on any threads,
/// and wait for them before the next phase. The order of a sum never depends on the number of
/// threads.
pub trait Contract: Debug + Send + Sync {
    /// Checks that no product of the sizes overflows. Call this before any other method.
    fn check(&self) -> Result<()>;

    /// Returns the rows and columns of the output as a dense row-major matrix.
    fn out_matrix(&self) -> (usize, usize);

    /// Returns the number of elements of the left operand.
    fn lhs_len(&self) -> usize;

    /// Returns the number of elements of the right operand.
    fn rhs_len(&self) -> usize;

    /// Returns the number of phases.
    fn phases(&self) -> usize;

    /// Returns the number of independent chunks of a phase.
    fn chunks(&self, phase: usize) -> usize;

    /// Returns the bytes of memory that all chunks share (packed weights, partial sums) if the sums
    /// are f32 or f64. Its initial contents are ignored.
    fn shared_bytes(&self, dtype: DType) -> usize;

    /// Returns the bytes of scratch memory each thread needs, likewise.
    fn scratch_bytes(&self, dtype: DType) -> usize;

    /// Returns whether this contraction supports [`Operands::bias`].
    fn takes_bias(&self) -> bool {
        false
    }

    /// Returns how the first phase packs the right operand, if that is all it does: then it reads
    /// nothing else, and later phases only read the shared memory. With the packed operand in it,
    /// from this contraction or from another one with the same packing and instruction set, the
    /// first phase can be left out.
    fn packing(&self) -> Option<FilterPacking> {
        None
    }

    /// Returns the number of floating-point operations: additions plus multiplications.
    fn flops(&self) -> f64;

    /// Runs one chunk, and calls `finish` for each block of the output once it is final. The blocks
    /// of all chunks of all phases tile the output; `finish` may modify the elements of its block.
    ///
    /// # Safety
    /// - The CPU supports `isa`, and [`Contract::check`] has passed.
    /// - `lhs`, `rhs` and `out` are valid for the lengths of this descriptor, and the bias, if not
    ///   null, for one element per column. It is [`Bias::NONE`] unless [`Contract::takes_bias`]
    ///   returns true.
    /// - `shared` is valid for `shared_bytes` bytes and aligned to 64 bytes.
    /// - While the chunk runs, only other chunks of this contraction access any of them.
    /// - `scratch` has at least `scratch_bytes` bytes and is aligned to 64 bytes.
    /// - Every chunk of earlier phases has returned, `chunk < chunks(phase)`, and no two calls run
    ///   the same chunk at the same time.
    unsafe fn run_f32(
        &self,
        isa: Isa,
        phase: usize,
        chunk: usize,
        mem: Operands<f32>,
        scratch: &mut [u8],
        finish: &mut dyn FnMut(Block),
    );

    /// Like [`Contract::run_f32`] in double precision. Winograd and depthwise convolutions use the
    /// reference loops, so convolutions should be `exact`.
    ///
    /// # Safety
    /// Same as [`Contract::run_f32`].
    unsafe fn run_f64(
        &self,
        isa: Isa,
        phase: usize,
        chunk: usize,
        mem: Operands<f64>,
        scratch: &mut [u8],
        finish: &mut dyn FnMut(Block),
    );
}

/// A contraction that can also sum the products of bf16 pairs.
pub(crate) trait PairContract: Contract {
    /// Like [`Contract::run_f32`] on operands whose elements, typed as f32, are pairs of bf16: two
    /// neighboring terms of a sum, the first in the low half. The sizes of this contraction count
    /// pairs. It never uses Winograd.
    ///
    /// # Safety
    /// Same as [`Contract::run_f32`]; convolutions have `exact` set. Operands need only the
    /// alignment of bf16.
    unsafe fn run_pairs(
        &self,
        isa: Bf16Isa,
        phase: usize,
        chunk: usize,
        mem: Operands<f32>,
        scratch: &mut [u8],
        finish: &mut dyn FnMut(Block),
    );
}

/// The float types of the reference loops.
pub(crate) trait Float: Copy + Default + PartialOrd + AddAssign + Mul<Output = Self> {}

impl Float for f32 {}
impl Float for f64 {}
