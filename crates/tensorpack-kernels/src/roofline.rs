//! The roofline model of this machine: peak multiply-adds per second and copy bandwidth, to judge
//! kernels by.

use crate::{Isa, Team};
use std::hint::black_box;
use std::time::Instant;

/// Measured limits of this machine.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "Machine")]
pub struct Roofline {
    /// Peak GFLOP/s in f32; a fused multiply-add counts as two operations.
    pub gflops: f64,
    /// Bandwidth of a large copy in GB/s, reads and writes counted.
    pub copy_gbs: f64,
}

impl Roofline {
    /// Measures on all threads of `team` for about a quarter of a second, with `isa` or, if the CPU
    /// does not support it, the best instruction set available.
    pub fn measure(team: &mut Team, isa: Isa) -> Roofline {
        let isa = isa.min(Isa::detect());
        Roofline { gflops: gflops(team, isa), copy_gbs: copy_gbs(team) }
    }

    /// Returns the shortest time that a kernel of `flops` operations and `bytes` bytes of memory
    /// traffic can take.
    #[doc(alias = "roof_seconds")]
    pub fn min_seconds(&self, flops: f64, bytes: f64) -> f64 {
        (flops / (self.gflops * 1e9)).max(bytes / (self.copy_gbs * 1e9))
    }
}

/// Returns the shortest of several run times, the one least disturbed by other processes.
fn best(mut run: impl FnMut()) -> f64 {
    let times = (0..8).map(|_| {
        let began = Instant::now();
        run();
        began.elapsed().as_secs_f64()
    });
    times.fold(f64::INFINITY, f64::min)
}

const STEPS: usize = 200_000;
/// Independent chains of dependent multiply-adds: enough to keep every FMA unit busy.
const CHAINS: usize = 12;

fn gflops(team: &mut Team, isa: Isa) -> f64 {
    let members = team.len();
    let lanes = match isa {
        Isa::Avx512 => 16,
        Isa::Avx2 => 8,
        Isa::Plain => 1,
    };
    let seconds = best(|| {
        team.run(members, &|_, _| {
            black_box(multiply_adds(isa));
        });
    });
    (members * STEPS * CHAINS * lanes * 2) as f64 / seconds * 1e-9
}

fn multiply_adds(isa: Isa) -> f32 {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `measure` limits `isa` to what the CPU supports.
        Isa::Avx512 => unsafe { avx512() },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { avx2() },
        _ => plain(),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn avx512() -> f32 {
    use std::arch::x86_64::*;
    let (mut acc, x) = ([_mm512_set1_ps(1.0); CHAINS], black_box(_mm512_set1_ps(0.5)));
    for _ in 0..STEPS {
        acc.iter_mut().for_each(|a| *a = _mm512_fmadd_ps(*a, x, x));
    }
    acc.into_iter().map(|a| _mm512_reduce_add_ps(a)).sum()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2() -> f32 {
    use std::arch::x86_64::*;
    let (mut acc, x) = ([_mm256_set1_ps(1.0); CHAINS], black_box(_mm256_set1_ps(0.5)));
    for _ in 0..STEPS {
        acc.iter_mut().for_each(|a| *a = _mm256_fmadd_ps(*a, x, x));
    }
    acc.into_iter().map(|a| _mm256_cvtss_f32(a)).sum()
}

fn plain() -> f32 {
    let (mut acc, x) = ([1.0f32; CHAINS], black_box(0.5f32));
    for _ in 0..STEPS {
        acc.iter_mut().for_each(|a| *a = *a * x + x);
    }
    acc.into_iter().sum()
}

fn copy_gbs(team: &mut Team) -> f64 {
    // Larger than the last-level cache, so that the copies go to memory.
    const BYTES: usize = 64 << 20;
    let members = team.len();
    let source = vec![1u8; BYTES];
    let mut target = vec![0u8; BYTES];
    let piece = BYTES / members;
    let to = target.as_mut_ptr() as usize;
    let seconds = best(|| {
        team.run(members, &|i, _| {
            // SAFETY: each chunk writes its own piece of the target, which outlives the call.
            let mine = unsafe { std::slice::from_raw_parts_mut((to + i * piece) as *mut u8, piece) };
            mine.copy_from_slice(&source[i * piece..(i + 1) * piece]);
        });
    });
    black_box(&target);
    2.0 * (piece * members) as f64 / seconds * 1e-9
}
