//! Which vector instructions to use: found at run time, so that one binary is fast everywhere.

use std::fmt;

/// A level of vector instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Simple loops with whatever the target guarantees: the reference, and what other targets use for now.
    Plain,
    /// AVX2 with fused multiply-add.
    Avx2,
    /// AVX-512 (foundation, and the byte/word, double/quad and vector-length extensions).
    Avx512,
}

impl Isa {
    /// The best this machine has.
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

    /// All this machine has, plainest first.
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
