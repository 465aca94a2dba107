//! Instruction sets, detected at run time so that one binary is fast on every CPU.

use std::fmt;

/// A vector instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Portable loops with the instructions that the target guarantees: the reference, and the only
    /// implementation on targets other than x86-64.
    Plain,
    /// AVX2 with fused multiply-add.
    Avx2,
    /// AVX-512 (F, BW, DQ and VL).
    Avx512,
}

impl Isa {
    /// Returns the best instruction set of this CPU.
    pub fn detect() -> Isa {
        #[cfg(target_arch = "x86_64")]
        {
            let fma = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            if fma
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
            {
                return Isa::Avx512;
            }
            if fma {
                return Isa::Avx2;
            }
        }
        Isa::Plain
    }

    /// Returns all instruction sets of this CPU, [`Isa::Plain`] first.
    pub fn available() -> impl Iterator<Item = Isa> {
        let best = Isa::detect();
        [Isa::Plain, Isa::Avx2, Isa::Avx512].into_iter().filter(move |&i| i <= best)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Plain => "plain",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        })
    }
}
