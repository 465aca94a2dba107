//! Measures attention and its gradient, in milliseconds, GFLOP/s and as a share of the peak.
//! Argument: number of threads (default 1).

use std::time::Instant;

use tensorpack_kernels::{Attention, AttentionPass, Isa, Roofline, Team};
use tensorpack_tensor::DType;

/// Memory aligned to cache lines.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([f32; 16]);

/// Returns `len` numbers between -0.5 and 0.5.
fn numbers(len: usize) -> Vec<Line> {
    let mut seed = 1u32;
    let mut next = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as f32 / 16_777_216.0 - 0.5
    };
    (0..len.div_ceil(16).max(1)).map(|_| Line(std::array::from_fn(|_| next()))).collect()
}

/// Returns the shortest of several run times, in seconds.
fn seconds(team: &mut Team, isa: Isa, attention: &Attention) -> f64 {
    let len = attention.batch * attention.queries * attention.heads * attention.width;
    // Queries, keys, values, result, sums of exponentials and gradient have at most `len` elements.
    let reads: Vec<Vec<Line>> = (0..6).map(|_| numbers(len)).collect();
    let mut writes: Vec<Vec<Line>> = (0..3).map(|_| numbers(len)).collect();
    let mut shared = numbers(attention.shared_bytes(DType::F32) / 4);
    let bytes = attention.scratch_bytes(DType::F32);
    let mut scratch: Vec<Vec<Line>> = (0..team.len()).map(|_| numbers(bytes / 4)).collect();
    let reads: Vec<usize> = reads.iter().map(|x| x.as_ptr() as usize).collect();
    let writes: Vec<usize> = writes.iter_mut().map(|x| x.as_mut_ptr() as usize).collect();
    let scratch: Vec<usize> = scratch.iter_mut().map(|x| x.as_mut_ptr() as usize).collect();
    let shared = shared.as_mut_ptr() as usize;
    let (mut best, start) = (f64::MAX, Instant::now());
    while start.elapsed().as_secs_f64() < 1.0 {
        let t = Instant::now();
        for phase in 0..attention.phases() {
            team.run(attention.chunks(phase), &|chunk, member| {
                let reads: [*const u8; 6] = std::array::from_fn(|i| reads[i] as *const u8);
                let writes: [*mut u8; 3] = std::array::from_fn(|i| writes[i] as *mut u8);
                // SAFETY: the buffers have the sizes that the kernel needs, each member has its own
                // scratch memory, and `Team::run` waits between phases.
                unsafe {
                    let scratch = std::slice::from_raw_parts_mut(scratch[member] as *mut u8, bytes);
                    let shared = shared as *mut u8;
                    attention.run(isa, DType::F32, phase, chunk, &reads, &writes, shared, scratch);
                }
            });
        }
        best = best.min(t.elapsed().as_secs_f64());
    }
    best
}

fn main() {
    let threads = std::env::args().nth(1).map_or(1, |a| a.parse().expect("a number of threads"));
    let mut team = Team::new(threads);
    let isa = Isa::detect();
    let peak = Roofline::measure(&mut team, isa).gflops;
    println!("{isa}, {team:?}: peak {peak:.0} GFLOP/s");
    for (batch, heads, time, width) in [(8, 6, 256, 64), (32, 4, 128, 32), (1, 6, 8192, 64)] {
        for causal in [false, true] {
            for pass in [AttentionPass::Forward, AttentionPass::Grad] {
                let attention = Attention {
                    pass,
                    batch,
                    heads,
                    kv_heads: heads,
                    queries: time,
                    keys: time,
                    width,
                    value_width: width,
                    scale: 1.0 / (width as f64).sqrt(),
                    causal,
                    mask: false,
                    bias: None,
                    dropout: None,
                };
                let seconds = seconds(&mut team, isa, &attention);
                let speed = attention.flops() / seconds * 1e-9;
                println!(
                    "{batch} x {heads} heads x {time} x {width}, causal {causal:5}, {pass:?}: {:.2} ms, {speed:.1} GFLOP/s, {:.0} %",
                    seconds * 1e3,
                    100.0 * speed / peak
                );
            }
        }
    }
}
