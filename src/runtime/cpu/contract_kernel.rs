//! Contractions as the CPU engine runs them: in f32 or f64, of bf16 with f32 sums, or of bytes with
//! exact sums.

use super::compiled_kernel::Memory;
use super::epilogue::CompiledEpilogue;
use super::memory::padded;
use tensorpack_kernels::{Bf16Contract, Bf16Isa, Block, Contract, FilterPacking, Int8Contract};
use tensorpack_tensor::{DType, Result};

/// A contraction with the type of its operands.
#[derive(Debug)]
pub(super) enum ContractKernel {
    F32(Box<dyn Contract>),
    F64(Box<dyn Contract>),
    /// Operands in bf16, sums in f32. With an output in bf16, the sums are stored in shared memory,
    /// from which the epilogue makes the output.
    Bf16 {
        kernel: Bf16Contract,
        isa: Bf16Isa,
        out: DType,
    },
    /// Operands in u8, sums of integers rounded to f32.
    Int8(Int8Contract),
}

/// Calls a method that all kinds of kernels have.
macro_rules! either {
    ($self:ident, $kernel:ident => $call:expr) => {
        match $self {
            ContractKernel::F32($kernel) | ContractKernel::F64($kernel) => $call,
            ContractKernel::Bf16 { kernel: $kernel, .. } => $call,
            ContractKernel::Int8($kernel) => $call,
        }
    };
}

impl ContractKernel {
    pub(super) fn new(kernel: Box<dyn Contract>, dtype: DType) -> ContractKernel {
        if dtype == DType::F64 { ContractKernel::F64(kernel) } else { ContractKernel::F32(kernel) }
    }

    pub(super) fn check(&self) -> Result<()> {
        either!(self, kernel => kernel.check())
    }

    /// Returns the number of columns of the output.
    pub(super) fn columns(&self) -> usize {
        either!(self, kernel => kernel.out_matrix()).1
    }

    pub(super) fn phases(&self) -> usize {
        either!(self, kernel => kernel.phases())
    }

    pub(super) fn chunks(&self, phase: usize) -> usize {
        either!(self, kernel => kernel.chunks(phase))
    }

    /// Returns the bytes of shared memory for sums of another type than the output's.
    fn sums_bytes(&self) -> usize {
        let (rows, cols) = either!(self, kernel => kernel.out_matrix());
        if self.sums_apart() { padded(rows * cols * size_of::<f32>()) } else { 0 }
    }

    /// Returns whether the sums are stored in shared memory rather than in the output.
    pub(super) fn sums_apart(&self) -> bool {
        matches!(self, ContractKernel::Bf16 { out: DType::Bf16, .. })
    }

    /// Returns the bytes of shared memory, which begins with the sums if they are apart.
    pub(super) fn shared_bytes(&self) -> usize {
        self.sums_bytes()
            + match self {
                ContractKernel::F32(kernel) => kernel.shared_bytes(DType::F32),
                ContractKernel::F64(kernel) => kernel.shared_bytes(DType::F64),
                ContractKernel::Bf16 { kernel, .. } => kernel.shared_bytes(),
                ContractKernel::Int8(kernel) => kernel.shared_bytes(),
            }
    }

    pub(super) fn scratch_bytes(&self) -> usize {
        match self {
            ContractKernel::F32(kernel) => kernel.scratch_bytes(DType::F32),
            ContractKernel::F64(kernel) => kernel.scratch_bytes(DType::F64),
            ContractKernel::Bf16 { kernel, .. } => kernel.scratch_bytes(),
            ContractKernel::Int8(kernel) => kernel.scratch_bytes(),
        }
    }

    /// Returns whether the kernel itself can add a bias to the sums, as the last operation.
    pub(super) fn takes_bias(&self) -> bool {
        !self.sums_apart() && either!(self, kernel => kernel.takes_bias())
    }

    /// Returns how the first phase packs the right operand: see [`Contract::packing`].
    pub(super) fn packing(&self) -> Option<FilterPacking> {
        match self {
            ContractKernel::F32(kernel) => kernel.packing(),
            ContractKernel::Int8(kernel) => Some(kernel.packing()),
            _ => None,
        }
    }

    pub(super) fn flops(&self) -> f64 {
        either!(self, kernel => kernel.flops())
    }

    /// Runs one chunk.
    ///
    /// # Safety
    /// Same as [`Contract::run_f32`], with the memory that this kernel was planned with.
    pub(super) unsafe fn run(
        &self,
        m: &Memory<'_>,
        epilogue: &CompiledEpilogue,
        (phase, chunk): (usize, usize),
        scratch: &mut [u8],
        finish: &mut dyn FnMut(Block),
    ) {
        // SAFETY: guaranteed by the caller; `pipeline::bf16_isa` has detected the instructions for
        // bf16 on this CPU.
        unsafe {
            match self {
                ContractKernel::F32(kernel) => {
                    kernel.run_f32(m.isa, phase, chunk, m.operands(epilogue), scratch, finish);
                }
                ContractKernel::F64(kernel) => {
                    kernel.run_f64(m.isa, phase, chunk, m.operands(epilogue), scratch, finish);
                }
                ContractKernel::Bf16 { kernel, isa, .. } => {
                    let mut operands = m.operands(epilogue);
                    if self.sums_apart() {
                        operands.out = operands.shared.cast();
                        operands.shared = operands.shared.add(self.sums_bytes());
                    }
                    kernel.run(*isa, phase, chunk, operands, scratch, finish);
                }
                ContractKernel::Int8(kernel) => {
                    kernel.run(m.isa, phase, chunk, m.operands(epilogue), scratch, finish);
                }
            }
        }
    }
}
