//! What matrix products and convolutions have in common: two operands, one output that is a matrix, and sums over
//! the rest. The caller sees only phases, chunks and memory sizes, and can finish each part of the output (bias,
//! activation, ...) while it is still in cache.

use std::fmt::Debug;
use std::ops::{AddAssign, Mul};

use crate::{Block, Isa};

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
}

/// A sum of products over two operands, cut into phases and chunks.
///
/// To run one: for each phase in turn, run all its chunks, in any order and on any threads, and wait for them
/// before the next phase. Neither the cut nor the order of any sum depends on the threads.
pub trait Contract: Debug + Send + Sync {
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

    /// Additions and multiplications in all.
    fn flops(&self) -> f64;

    /// Runs one chunk, and calls `finish` for each rectangle of the output once it is final. The rectangles of all
    /// chunks of all phases tile the output; `finish` may change the elements of its rectangle.
    ///
    /// # Safety
    /// - The machine has `isa`.
    /// - `lhs`, `rhs` and `out` are valid for the lengths this description gives, `shared` for `shared_bytes` and
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
pub(crate) trait Float: Copy + Default + AddAssign + Mul<Output = Self> {}

impl Float for f32 {}
impl Float for f64 {}
