//! Matrix products and convolutions of bf16.

use crate::bf16::pairing::Pairing;
use crate::conv::{Conv2d, Conv2dFilterGrad, Conv2dForward, Conv2dInputGrad};
use crate::gemm::{Block, Contract, MatMul, Operands, PairContract};
use crate::simd::{Bf16Isa, Isa};
use tensorpack_tensor::{DType, Error, Result, bf16};

/// A contraction of bf16 operands with f32 sums: a [`Contract`] whose operands are first copied as
/// pairs, where their layout needs it.
///
/// Products are exact. The sum is rounded to f32 after every addition, to nearest even, and
/// subnormal terms and sums count as zero. The order of the terms depends on the sizes alone.
#[derive(Debug)]
pub struct Bf16Contract {
    /// The sizes in elements.
    sizes: Box<dyn Contract>,
    /// The same contraction of pairs.
    pairs: Box<dyn PairContract>,
    lhs: Pairing,
    rhs: Pairing,
}

impl From<MatMul> for Bf16Contract {
    /// A right operand in panels is stored in pairs: `[batch, ceil(n / PANEL), k / 2, PANEL, 2]`.
    fn from(product: MatMul) -> Bf16Contract {
        let MatMul { batch, m, n, k, .. } = product;
        let lhs_count = if product.lhs_shared { 1 } else { batch };
        let rhs_count = if product.rhs_shared { 1 } else { batch };
        let lhs = match product.lhs_transposed {
            true => Pairing::Transpose { count: lhs_count, terms: k, cols: m },
            false => Pairing::along(lhs_count.saturating_mul(m), k),
        };
        let rhs = match (product.rhs_panels, product.rhs_transposed) {
            (true, _) => Pairing::InPlace,
            (_, true) => Pairing::along(rhs_count.saturating_mul(n), k),
            (_, false) => Pairing::Rows { count: rhs_count, terms: k, cols: n },
        };
        let pairs = Box::new(MatMul { k: k.div_ceil(2), lhs_transposed: false, ..product });
        Bf16Contract { sizes: Box::new(product), pairs, lhs, rhs }
    }
}

/// Returns the number of pixels of a batch of images.
fn pixels(batch: usize, size: [usize; 2]) -> usize {
    batch.saturating_mul(size[0]).saturating_mul(size[1])
}

impl From<Conv2dForward> for Bf16Contract {
    fn from(work: Conv2dForward) -> Bf16Contract {
        let c = work.0;
        let taps = pixels(1, c.kernel);
        let pairs = Conv2d { in_channels: c.in_channels.div_ceil(2), exact: true, ..c };
        Bf16Contract {
            sizes: Box::new(work),
            pairs: Box::new(Conv2dForward(pairs)),
            lhs: Pairing::along(pixels(c.batch, c.in_size), c.in_channels),
            rhs: Pairing::Rows { count: taps, terms: c.in_channels, cols: c.out_channels },
        }
    }
}

impl From<Conv2dInputGrad> for Bf16Contract {
    fn from(work: Conv2dInputGrad) -> Bf16Contract {
        let c = work.0;
        let rows = pixels(c.in_channels, c.kernel);
        let pairs = Conv2d { out_channels: c.out_channels.div_ceil(2), exact: true, ..c };
        Bf16Contract {
            sizes: Box::new(work),
            pairs: Box::new(Conv2dInputGrad(pairs)),
            lhs: Pairing::along(pixels(c.batch, c.out_size), c.out_channels),
            rhs: Pairing::along(rows, c.out_channels),
        }
    }
}

impl From<Conv2dFilterGrad> for Bf16Contract {
    /// The sum is over pixels of all images: a pair has the same pixel of two images, so that it
    /// fits every tap of the filter.
    fn from(work: Conv2dFilterGrad) -> Bf16Contract {
        let c = work.0;
        let images = |size: [usize; 2], channels: usize| Pairing::Rows {
            count: 1,
            terms: c.batch,
            cols: pixels(channels, size),
        };
        let pairs = Conv2d { batch: c.batch.div_ceil(2), exact: true, ..c };
        Bf16Contract {
            sizes: Box::new(work),
            pairs: Box::new(Conv2dFilterGrad(pairs)),
            lhs: images(c.in_size, c.in_channels),
            rhs: images(c.out_size, c.out_channels),
        }
    }
}

/// Returns the size of some pairs, to the next cache line.
fn bytes(pairs: usize) -> usize {
    (pairs * size_of::<u32>()).next_multiple_of(64)
}

impl Bf16Contract {
    /// Checks that no product of the sizes overflows. Call this before any other method.
    pub fn check(&self) -> Result<()> {
        self.sizes.check()?;
        self.pairs.check()?;
        if matches!(self.rhs, Pairing::InPlace) && self.sizes.rhs_len() != 2 * self.pairs.rhs_len() {
            return Err(Error::argument("a right operand in panels of bf16 needs an even number of rows"));
        }
        Ok(())
    }

    /// Returns the rows and columns of the output as a dense row-major matrix.
    pub fn out_matrix(&self) -> (usize, usize) {
        self.sizes.out_matrix()
    }

    /// Returns the number of elements of the left operand.
    pub fn lhs_len(&self) -> usize {
        self.sizes.lhs_len()
    }

    /// Returns the number of elements of the right operand.
    pub fn rhs_len(&self) -> usize {
        self.sizes.rhs_len()
    }

    /// Returns whether a first phase copies operands as pairs.
    fn copies(&self) -> bool {
        self.lhs.len() + self.rhs.len() > 0
    }

    /// Returns the number of phases.
    pub fn phases(&self) -> usize {
        usize::from(self.copies()) + self.pairs.phases()
    }

    /// Returns the number of independent chunks of a phase.
    pub fn chunks(&self, phase: usize) -> usize {
        match phase.checked_sub(usize::from(self.copies())) {
            None => self.lhs.chunks() + self.rhs.chunks(),
            Some(phase) => self.pairs.chunks(phase),
        }
    }

    /// Returns the bytes of memory that all chunks share. Its initial contents are ignored.
    pub fn shared_bytes(&self) -> usize {
        bytes(self.lhs.len()) + bytes(self.rhs.len()) + self.pairs.shared_bytes(DType::F32)
    }

    /// Returns the bytes of scratch memory each thread needs. Its initial contents are ignored.
    pub fn scratch_bytes(&self) -> usize {
        self.pairs.scratch_bytes(DType::F32)
    }

    /// Returns whether this contraction supports [`Operands::bias`].
    pub fn takes_bias(&self) -> bool {
        self.pairs.takes_bias()
    }

    /// Returns the number of floating-point operations: additions plus multiplications.
    pub fn flops(&self) -> f64 {
        self.sizes.flops()
    }

    /// Runs one chunk, and calls `finish` for each block of the output once it is final, like
    /// [`Contract::run_f32`].
    ///
    /// # Safety
    /// Same as [`Contract::run_f32`], with the CPU, memory sizes and chunks of this contraction.
    pub unsafe fn run(
        &self,
        isa: Bf16Isa,
        phase: usize,
        chunk: usize,
        mem: Operands<bf16, f32>,
        scratch: &mut [u8],
        finish: &mut dyn FnMut(Block),
    ) {
        let lhs_pairs = mem.shared;
        let rhs_pairs = lhs_pairs.wrapping_add(bytes(self.lhs.len()));
        let Some(phase) = phase.checked_sub(usize::from(self.copies())) else {
            // SAFETY: guaranteed by the caller; the pairs are at the start of the shared memory,
            // and every CPU with instructions for bf16 has AVX-512.
            return unsafe {
                match chunk.checked_sub(self.lhs.chunks()) {
                    None => self.lhs.run(Isa::Avx512, chunk, mem.lhs.cast(), lhs_pairs.cast()),
                    Some(chunk) => self.rhs.run(Isa::Avx512, chunk, mem.rhs.cast(), rhs_pairs.cast()),
                }
            };
        };
        let operand = |pairing: &Pairing, place: *const bf16, pairs: *mut u8| match pairing {
            Pairing::InPlace => place.cast::<f32>(),
            _ => pairs.cast_const().cast(),
        };
        let mem = Operands {
            lhs: operand(&self.lhs, mem.lhs, lhs_pairs),
            rhs: operand(&self.rhs, mem.rhs, rhs_pairs),
            out: mem.out,
            shared: rhs_pairs.wrapping_add(bytes(self.rhs.len())),
            bias: mem.bias,
        };
        // SAFETY: guaranteed by the caller; the operands are pairs, in place or in the shared
        // memory, which all chunks of the first phase have written.
        unsafe { self.pairs.run_pairs(isa, phase, chunk, mem, scratch, finish) }
    }
}
