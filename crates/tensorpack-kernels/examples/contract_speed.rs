//! Measures the contractions for shapes of typical models, in GFLOP/s and as a share of the peak,
//! which a loop of fused multiply-adds measures in the same run. Arguments: number of threads
//! (default 1), then a substring of the shape names to run.

use std::time::Instant;

use tensorpack_kernels::{
    Bias, Contract, Conv2d, Conv2dFilterGrad, Conv2dForward, Conv2dInputGrad, Isa, MatMul, Operands,
    Roofline, Team,
};

/// Memory aligned to cache lines.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([f32; 16]);

struct Buffer(Vec<Line>);

impl Buffer {
    fn new(bytes: usize) -> Buffer {
        let mut seed = 1u32;
        let mut next = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) as f32 / 16_777_216.0 - 0.5
        };
        Buffer((0..bytes.div_ceil(64)).map(|_| Line(std::array::from_fn(|_| next()))).collect())
    }
    fn address(&mut self) -> usize {
        self.0.as_mut_ptr() as usize
    }
}

/// Returns the shortest of several run times of `work`, in seconds.
fn best(mut work: impl FnMut()) -> f64 {
    let (mut best, start) = (f64::MAX, Instant::now());
    let mut rounds = 0;
    while rounds < 5 || (start.elapsed().as_secs_f64() < 0.2 && rounds < 1000) {
        let t = Instant::now();
        work();
        best = best.min(t.elapsed().as_secs_f64());
        rounds += 1;
    }
    best
}

fn gflops(team: &mut Team, isa: Isa, work: &dyn Contract) -> f64 {
    let (rows, cols) = work.out_matrix();
    let (mut lhs, mut rhs) = (Buffer::new(4 * work.lhs_len()), Buffer::new(4 * work.rhs_len()));
    let (mut out, mut shared) = (Buffer::new(4 * rows * cols), Buffer::new(work.shared_bytes()));
    let mut scratch: Vec<Buffer> = (0..team.len()).map(|_| Buffer::new(work.scratch_bytes())).collect();
    let scratch: Vec<usize> = scratch.iter_mut().map(Buffer::address).collect();
    let at = [lhs.address(), rhs.address(), out.address(), shared.address()];
    let seconds = best(|| {
        for phase in 0..work.phases() {
            team.run(work.chunks(phase), &|chunk, member| {
                let [lhs, rhs, out, shared] = at;
                let mem = Operands {
                    lhs: lhs as *const f32,
                    rhs: rhs as *const f32,
                    out: out as *mut f32,
                    shared: shared as *mut u8,
                    bias: Bias::NONE,
                };
                // SAFETY: the buffers have the sizes that the contraction needs, each member has
                // its own scratch memory, and `Team::run` waits between phases.
                unsafe {
                    let scratch =
                        std::slice::from_raw_parts_mut(scratch[member] as *mut u8, work.scratch_bytes());
                    work.run_f32(isa, phase, chunk, mem, scratch, &mut |_| ());
                }
            });
        }
    });
    work.flops() / seconds * 1e-9
}

fn matmul(threads: usize, [m, n, k]: [usize; 3], lhs_transposed: bool, rhs_transposed: bool) -> MatMul {
    let (lhs_shared, rhs_shared, rhs_panels) = (false, false, false);
    MatMul { batch: 1, m, n, k, lhs_transposed, rhs_transposed, lhs_shared, rhs_shared, rhs_panels, threads }
}

/// Returns a convolution with a square filter and "same" padding.
fn conv(size: usize, kernel: usize, stride: usize, channels: [usize; 2]) -> Conv2d {
    let out = size.div_ceil(stride);
    let pad = ((out - 1) * stride + kernel).saturating_sub(size);
    Conv2d {
        batch: 128,
        in_size: [size; 2],
        in_channels: channels[0],
        out_channels: channels[1],
        kernel: [kernel; 2],
        stride: [stride; 2],
        dilation: [1; 2],
        pad_low: [pad / 2; 2],
        out_size: [out; 2],
        exact: false,
    }
}

fn shapes(threads: usize) -> Vec<(String, Box<dyn Contract>)> {
    let mut all: Vec<(String, Box<dyn Contract>)> = Vec::new();
    for (m, n, k) in [
        (128, 512, 784),
        (128, 512, 1568),
        (128, 512, 512),
        (128, 10, 512),
        (20, 2600, 650),
        (700, 2600, 650),
        (700, 10_000, 650),
    ] {
        all.push((format!("matmul {m}x{k} * {k}x{n}"), Box::new(matmul(threads, [m, n, k], false, false))));
        all.push((format!("matmul {k}x{m}' * {m}x{n}"), Box::new(matmul(threads, [k, n, m], true, false))));
        all.push((format!("matmul {m}x{n} * {k}x{n}'"), Box::new(matmul(threads, [m, k, n], false, true))));
    }
    for (m, n, k) in [(20, 2600, 650), (20, 650, 2600)] {
        let product = MatMul { rhs_panels: true, ..matmul(threads, [m, n, k], false, false) };
        all.push((format!("matmul {m}x{k} * {k}x{n} in panels"), Box::new(product)));
    }
    for (m, n, k) in [(512, 512, 512), (1024, 1024, 1024), (32, 32, 25088), (1, 512, 784), (128, 1, 512)] {
        all.push((format!("matmul {m}x{k} * {k}x{n}"), Box::new(matmul(threads, [m, n, k], false, false))));
    }
    for (size, kernel, stride, [from, to]) in [
        (28, 3, 1, [1, 32]),
        (14, 3, 1, [32, 32]),
        (7, 3, 1, [32, 32]),
        (32, 3, 1, [16, 16]),
        (16, 3, 1, [32, 32]),
        (8, 3, 1, [64, 64]),
        (28, 3, 1, [128, 128]),
        (14, 3, 1, [256, 256]),
        (32, 3, 2, [16, 32]),
        (16, 3, 2, [32, 64]),
        (32, 3, 1, [3, 16]),
        (16, 1, 2, [32, 64]),
        (14, 1, 1, [256, 256]),
        (8, 4, 2, [128, 256]),
        (16, 4, 2, [64, 128]),
        (32, 4, 2, [3, 64]),
    ] {
        let c = conv(size, kernel, stride, [from, to]);
        let name = format!("{kernel}x{kernel}/{stride} {size}x{size} {from}->{to}");
        all.push((format!("conv {name}"), Box::new(Conv2dForward(c))));
        all.push((format!("conv input grad {name}"), Box::new(Conv2dInputGrad(c))));
        all.push((format!("conv filter grad {name}"), Box::new(Conv2dFilterGrad(c))));
    }
    all
}

fn main() {
    let mut args = std::env::args().skip(1);
    let mut team = Team::new(
        args.next().map_or(1, |a| a.parse().expect("the first argument must be the number of threads")),
    );
    let only = args.next().unwrap_or_default();
    for isa in Isa::available().filter(|&isa| isa != Isa::Plain) {
        println!("{isa}, {team:?}: peak {:.0} GFLOP/s", Roofline::measure(&mut team, isa).gflops);
        for (name, work) in shapes(team.len()) {
            if name.contains(&only) {
                let speed = gflops(&mut team, isa, &*work);
                let share = 100.0 * speed / Roofline::measure(&mut team, isa).gflops;
                println!("{name:36} {speed:7.1} GFLOP/s {share:4.0} %");
            }
        }
    }
}
