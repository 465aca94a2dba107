//! What matrix products and convolutions have in common: two operands, one output that is a matrix, and sums over
//! the rest. The caller sees only phases, chunks and memory sizes, and can finish each part of the output (bias,
//! activation, ...) while it is still in cache.

use std::fmt::Debug;
use std::ops::{AddAssign, Mul};

use crate::simd::Isa;
use tensorpack_tensor::Result;

/// A rectangle of a kernel's output seen as a matrix: for a matrix product the output itself, for a convolution
/// pixels by channels. Kernels report each rectangle as it becomes final, while it is still in cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Rows of the matrix.
    pub rows: std::ops::Range<usize>,
    /// Columns of the matrix.
    pub cols: std::ops::Range<usize>,
}

/// The memory of one contraction.
#[derive(Clone, Copy, Debug)]
pub struct Operands<T> {
    /// The left operand, dense.
    pub lhs: *const T,
    /// The right operand, dense.
    pub rhs: *const T,
    /// The output, dense; what it held before is ignored.
    pub out: *mut T,
    /// [`Contract::shared_bytes`] bytes, aligned to 64, the same memory for all phases and chunks of one run.
    pub shared: *mut u8,
    /// What is done to sums as they are written; nothing, unless the contraction [takes it](Contract::takes_bias).
    pub bias: Bias<T>,
}

/// What most layers do to a sum: cheapest right after it was written, by the loop that wrote it.
#[derive(Clone, Copy, Debug)]
pub struct Bias<T> {
    /// A number for each column of the output, to be added; null for none.
    pub add: *const T,
    /// Whether negative results become zero, after that.
    pub relu: bool,
}

impl<T> Bias<T> {
    /// Nothing is done.
    pub const NONE: Bias<T> = Bias { add: std::ptr::null(), relu: false };

    /// Whether anything is done.
    pub(crate) fn is_some(&self) -> bool {
        self.relu || !self.add.is_null()
    }

    /// The same for the columns from `col` on.
    pub(crate) fn at(self, col: usize) -> Bias<T> {
        Bias { add: if self.add.is_null() { self.add } else { self.add.wrapping_add(col) }, ..self }
    }
}

/// A sum of products over two operands, cut into phases and chunks.
///
/// To run one: for each phase in turn, run all its chunks, in any order and on any threads, and wait for them
/// before the next phase. Neither the cut nor the order of any sum depends on the threads.
pub trait Contract: Debug + Send + Sync {
    /// Checks that the sizes stay within what the loops can count with. Nothing else here means anything before that.
    fn check(&self) -> Result<()>;

    /// The output as a dense row-major matrix: rows, columns.
    fn out_matrix(&self) -> (usize, usize);

    /// Elements of the left operand.
    fn lhs_len(&self) -> usize;

    /// Elements of the right operand.
    fn rhs_len(&self) -> usize;

    /// How many phases there are.
    fn phases(&self) -> usize;

    /// How many independent pieces a phase has: by the sizes alone, never by the number of threads.
    fn chunks(&self, phase: usize) -> usize;

    /// Bytes of the memory that all chunks share (packed weights, partial sums). Its first content is ignored.
    fn shared_bytes(&self) -> usize;

    /// Bytes of working memory that each thread needs while it runs a chunk. Its first content is ignored.
    fn scratch_bytes(&self) -> usize;

    /// Whether this contraction can do what [`Operands::bias`] says.
    fn takes_bias(&self) -> bool {
        false
    }

    /// Additions and multiplications in all.
    fn flops(&self) -> f64;

    /// Runs one chunk, and calls `finish` for each rectangle of the output once it is final. The rectangles of all
    /// chunks of all phases tile the output; `finish` may change the elements of its rectangle.
    ///
    /// # Safety
    /// - The machine has `isa`, and [`Contract::check`] has passed.
    /// - `lhs`, `rhs` and `out` are valid for the lengths this description gives, `bias`, if not null, for a number a
    ///   column, and it says nothing that this contraction does not take; `shared` is valid for `shared_bytes` and
    ///   aligned to 64 bytes, and none of them is touched by others while the chunk runs, but for other chunks of
    ///   this contraction.
    /// - `scratch` has at least `scratch_bytes` bytes and is aligned to 64 bytes.
    /// - Every chunk of earlier phases has returned, `chunk < chunks(phase)`, and no chunk runs twice at a time.
    unsafe fn run_f32(
        &self,
        isa: Isa,
        phase: usize,
        chunk: usize,
        mem: Operands<f32>,
        scratch: &mut [u8],
        finish: &mut dyn FnMut(Block),
    );

    /// As [`Contract::run_f32`] in double precision, always with the plain loops.
    ///
    /// # Safety
    /// As for [`Contract::run_f32`].
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

/// The numbers the plain loops compute with.
pub(crate) trait Float: Copy + Default + PartialOrd + AddAssign + Mul<Output = Self> {}

impl Float for f32 {}
impl Float for f64 {}
