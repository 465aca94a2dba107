//! Instructions that multiply bf16, detected at run time.

use std::fmt;

/// Instructions that multiply pairs of bf16 and add the products in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Bf16Isa {
    /// `vdpbf16ps` of AVX-512 BF16.
    Avx512Bf16,
    /// `tdpbf16ps` of AMX, and `vdpbf16ps` where a kernel does not use tiles. It is used only after
    /// a trial in a child process; the environment variable `TENSORPACK_NO_AMX=1` turns it off.
    Amx,
}

impl Bf16Isa {
    /// Returns the best such instructions of this CPU, if it has any that are faster than f32.
    /// `vdpbf16ps` is on AMD's CPUs; Intel's issue half as many of them as multiply-adds in f32.
    pub fn detect() -> Option<Bf16Isa> {
        Bf16Isa::available().last().filter(|&isa| isa == Bf16Isa::Amx || is_amd())
    }

    /// Returns all such instructions of this CPU, the best last.
    pub fn available() -> impl Iterator<Item = Bf16Isa> {
        #[cfg(target_arch = "x86_64")]
        let avx512 = crate::Isa::detect() == crate::Isa::Avx512 && is_x86_feature_detected!("avx512bf16");
        #[cfg(not(target_arch = "x86_64"))]
        let avx512 = false;
        #[cfg(target_arch = "x86_64")]
        let amx = avx512 && super::amx::available();
        #[cfg(not(target_arch = "x86_64"))]
        let amx = false;
        [(Bf16Isa::Avx512Bf16, avx512), (Bf16Isa::Amx, amx)].into_iter().filter(|isa| isa.1).map(|isa| isa.0)
    }
}

/// Returns whether AMD made this CPU.
fn is_amd() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let vendor = std::arch::x86_64::__cpuid(0);
        [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == *b"AuthenticAMD"
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

impl fmt::Display for Bf16Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Bf16Isa::Avx512Bf16 => "avx512bf16",
            Bf16Isa::Amx => "amx",
        })
    }
}
