//! What this machine can do at most: multiply-adds a second, and bytes copied a second. For judging kernels.

use crate::{Isa, Team};
use std::hint::black_box;
use std::time::Instant;

/// A machine's measured limits.
#[derive(Clone, Copy, Debug)]
pub struct Roofline {
    /// Billions of f32 operations a second, a multiply-add counting as two.
    pub gflops: f64,
    /// Billions of bytes a second read and written in a large copy, both counted.
    pub copy_gbs: f64,
}

impl Roofline {
    /// Measures with all of `team`, for about a quarter of a second, with the instructions of `isa` or the best that
    /// this machine has.
    pub fn measure(team: &mut Team, isa: Isa) -> Roofline {
        let isa = isa.min(Isa::detect());
        Roofline { gflops: gflops(team, isa), copy_gbs: copy_gbs(team) }
    }

    /// The least time a kernel of so many operations and bytes can take.
    pub fn roof_seconds(&self, flops: f64, bytes: f64) -> f64 {
        (flops / (self.gflops * 1e9)).max(bytes / (self.copy_gbs * 1e9))
    }
}

/// The shortest of several runs: what the machine can do when nobody disturbs it.
fn best(mut run: impl FnMut()) -> f64 {
    let times = (0..8).map(|_| {
        let began = Instant::now();
        run();
        began.elapsed().as_secs_f64()
    });
    times.fold(f64::INFINITY, f64::min)
}

const STEPS: usize = 200_000;
/// Chains of dependent multiply-adds side by side: enough to keep every unit busy.
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
        // SAFETY: `measure` takes no more than the machine has.
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
    // Larger than the last cache, so that it is memory that is measured.
    const BYTES: usize = 64 << 20;
    let members = team.len();
    let source = vec![1u8; BYTES];
    let mut target = vec![0u8; BYTES];
    let piece = BYTES / members;
    let to = target.as_mut_ptr() as usize;
    let seconds = best(|| {
        team.run(members, &|i, _| {
            // SAFETY: each member writes its own piece of the target, which outlives the call.
            let mine = unsafe { std::slice::from_raw_parts_mut((to + i * piece) as *mut u8, piece) };
            mine.copy_from_slice(&source[i * piece..(i + 1) * piece]);
        });
    });
    black_box(&target);
    2.0 * (piece * members) as f64 / seconds * 1e-9
}
