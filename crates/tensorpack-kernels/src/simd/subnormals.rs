//! Flush-to-zero mode: subnormal numbers, below 1.2e-38 in f32, count as zero while kernels run.
//!
//! CPUs compute with subnormals many times slower. Without this, a model that has memorized its
//! data, whose gradients vanish, would train several times slower. XLA and TensorFlow do the same.

#[cfg(target_arch = "x86_64")]
use std::arch::asm;

/// A guard: while it lives, subnormal operands and results are zero on this thread (FTZ and DAZ).
#[derive(Debug)]
pub(crate) struct SubnormalsAreZero {
    /// The previous MXCSR of the thread.
    #[cfg(target_arch = "x86_64")]
    before: u32,
}

#[cfg(target_arch = "x86_64")]
impl SubnormalsAreZero {
    /// Flush-to-zero (results) and denormals-are-zero (operands).
    const BITS: u32 = 1 << 15 | 1 << 6;

    pub(crate) fn begin() -> SubnormalsAreZero {
        let mut before = 0u32;
        // SAFETY: stores MXCSR, which every x86-64 CPU has, to a local.
        unsafe { asm!("stmxcsr [{}]", in(reg) &mut before, options(nostack, preserves_flags)) }
        set(before | SubnormalsAreZero::BITS);
        SubnormalsAreZero { before }
    }
}

#[cfg(target_arch = "x86_64")]
impl Drop for SubnormalsAreZero {
    fn drop(&mut self) {
        set(self.before);
    }
}

#[cfg(target_arch = "x86_64")]
fn set(word: u32) {
    // SAFETY: a previous MXCSR except for the two bits, which neither change rounding nor unmask
    // exceptions. It also restores old exception flags, which nothing reads. Compiled code assumes
    // the default control word: a constant folded at compile time may keep a subnormal that an
    // instruction would flush, which changes that value and nothing else.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &word, options(nostack, readonly)) }
}

#[cfg(not(target_arch = "x86_64"))]
impl SubnormalsAreZero {
    /// Does nothing: MXCSR exists on x86 only.
    pub(crate) fn begin() -> SubnormalsAreZero {
        SubnormalsAreZero {}
    }
}
