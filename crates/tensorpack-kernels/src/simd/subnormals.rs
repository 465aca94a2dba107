//! Numbers too small for a full mantissa, below 1.2e-38 in f32, count as zero while kernels run.
//!
//! Processors compute with them many times slower: without this a model that has learned its data by heart, whose
//! gradients fade away, would train several times slower for it. XLA and TensorFlow do the same.

#[cfg(target_arch = "x86_64")]
use std::arch::asm;

/// While it lives, this thread takes subnormal numbers for zero and gives zero instead of them.
#[derive(Debug)]
pub(crate) struct SubnormalsAreZero {
    /// The thread's control word before.
    #[cfg(target_arch = "x86_64")]
    before: u32,
}

#[cfg(target_arch = "x86_64")]
impl SubnormalsAreZero {
    /// Results flushed to zero, and arguments taken for zero.
    const BITS: u32 = 1 << 15 | 1 << 6;

    pub(crate) fn begin() -> SubnormalsAreZero {
        let mut before = 0u32;
        // SAFETY: stores the control word, which every machine has, where there is room for it.
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
    // SAFETY: a control word that was there before, but for the two bits, which change no rounding and raise nothing. With
    // it come back the marks of past exceptions, which nobody reads.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &word, options(nostack, readonly)) }
}

#[cfg(not(target_arch = "x86_64"))]
impl SubnormalsAreZero {
    /// Nothing to do: the control word is that of x86.
    pub(crate) fn begin() -> SubnormalsAreZero {
        SubnormalsAreZero {}
    }
}
