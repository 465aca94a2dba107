//! Measures the contractions for shapes of typical models, in GFLOP/s and as a share of the peak,
//! which a loop of fused multiply-adds measures in the same run. Arguments: number of threads
//! (default 1), a substring of the shape names to run, and an instruction set, `int8` or `f64`.

use std::time::Instant;

use tensorpack_kernels::{
    Bf16Contract, Bf16Isa, Bias, Contract, Conv2d, Conv2dFilterGrad, Conv2dForward, Conv2dInputGrad,
    Int8Contract, Isa, MatMul, Operands, Roofline, Team,
};
use tensorpack_tensor::DType;

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

/// Runs a chunk of a phase on this memory.
type RunChunk<'a, T, S> = dyn Fn(usize, usize, Operands<T, S>, &mut [u8]) + Sync + 'a;

/// Measures a contraction with elements of these sizes; `run` runs a chunk of a phase on its
/// memory.
fn gflops<T, S>(team: &mut Team, work: &Sizes, run: &RunChunk<'_, T, S>) -> f64 {
    let (rows, cols) = work.out;
    let (mut lhs, mut rhs) = (Buffer::new(size_of::<T>() * work.lhs), Buffer::new(size_of::<T>() * work.rhs));
    let (mut out, mut shared) = (Buffer::new(size_of::<S>() * rows * cols), Buffer::new(work.shared));
    let mut scratch: Vec<Buffer> = (0..team.len()).map(|_| Buffer::new(work.scratch)).collect();
    let scratch: Vec<usize> = scratch.iter_mut().map(Buffer::address).collect();
    let at = [lhs.address(), rhs.address(), out.address(), shared.address()];
    let seconds = best(|| {
        for (phase, &chunks) in work.chunks.iter().enumerate() {
            team.run(chunks, &|chunk, member| {
                let [lhs, rhs, out, shared] = at;
                let mem = Operands {
                    lhs: lhs as *const T,
                    rhs: rhs as *const T,
                    out: out as *mut S,
                    shared: shared as *mut u8,
                    bias: Bias::NONE,
                };
                // SAFETY: each member has its own scratch memory of this size.
                let scratch =
                    unsafe { std::slice::from_raw_parts_mut(scratch[member] as *mut u8, work.scratch) };
                run(phase, chunk, mem, scratch);
            });
        }
    });
    work.flops / seconds * 1e-9
}

/// The sizes of a contraction.
struct Sizes {
    out: (usize, usize),
    lhs: usize,
    rhs: usize,
    chunks: Vec<usize>,
    shared: usize,
    scratch: usize,
    flops: f64,
}

/// Reads the sizes of a contraction.
macro_rules! sizes {
    ($work:expr, $shared:expr, $scratch:expr) => {
        Sizes {
            out: $work.out_matrix(),
            lhs: $work.lhs_len(),
            rhs: $work.rhs_len(),
            chunks: (0..$work.phases()).map(|phase| $work.chunks(phase)).collect(),
            shared: $shared,
            scratch: $scratch,
            flops: $work.flops(),
        }
    };
}

fn gflops_f32(team: &mut Team, isa: Isa, work: &dyn Contract) -> f64 {
    gflops(
        team,
        &sizes!(work, work.shared_bytes(DType::F32), work.scratch_bytes(DType::F32)),
        &|phase, chunk, mem, scratch| {
            // SAFETY: the buffers have the sizes that the contraction needs, and `Team::run` waits
            // between phases.
            unsafe { work.run_f32(isa, phase, chunk, mem, scratch, &mut |_| ()) }
        },
    )
}

fn gflops_f64(team: &mut Team, isa: Isa, work: &dyn Contract) -> f64 {
    gflops(
        team,
        &sizes!(work, work.shared_bytes(DType::F64), work.scratch_bytes(DType::F64)),
        &|phase, chunk, mem, scratch| {
            // SAFETY: as above.
            unsafe { work.run_f64(isa, phase, chunk, mem, scratch, &mut |_| ()) }
        },
    )
}

fn gflops_bf16(team: &mut Team, isa: Bf16Isa, work: &Bf16Contract) -> f64 {
    gflops(team, &sizes!(work, work.shared_bytes(), work.scratch_bytes()), &|phase, chunk, mem, scratch| {
        // SAFETY: as above.
        unsafe { work.run(isa, phase, chunk, mem, scratch, &mut |_| ()) }
    })
}

fn gflops_int8(team: &mut Team, work: &Int8Contract) -> f64 {
    gflops(team, &sizes!(work, work.shared_bytes(), work.scratch_bytes()), &|phase, chunk, mem, scratch| {
        // SAFETY: as above.
        unsafe { work.run(Isa::detect(), phase, chunk, mem, scratch, &mut |_| ()) }
    })
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

/// The products and convolutions of bytes, with shapes of a transformer and of ResNet-50.
fn int8_shapes() -> Vec<(String, Int8Contract)> {
    let matmul = |(m, n, k)| (format!("matmul {m}x{k} * {k}x{n}"), Int8Contract::matmul(m, n, k));
    let conv = |(size, kernel, stride, [from, to]): (usize, usize, usize, [usize; 2])| {
        let c = Conv2d { batch: 1, ..conv(size, kernel, stride, [from, to]) };
        (format!("conv {kernel}x{kernel}/{stride} {size}x{size} {from}->{to}"), Int8Contract::conv2d(c))
    };
    let matmuls = [(128, 512, 512), (128, 2048, 512), (128, 512, 2048), (1024, 1024, 1024), (1, 1000, 2048)];
    let convs = [
        (56, 1, 1, [64, 256]),
        (56, 3, 1, [64, 64]),
        (28, 3, 1, [128, 128]),
        (14, 1, 1, [1024, 256]),
        (14, 3, 1, [256, 256]),
        (7, 3, 1, [512, 512]),
    ];
    matmuls.into_iter().map(matmul).chain(convs.into_iter().map(conv)).collect()
}

/// A contraction in f32, in f64 and in bf16.
struct Shape {
    name: String,
    f32: Box<dyn Contract>,
    f64: Box<dyn Contract>,
    bf16: Bf16Contract,
}

fn shape<C: Contract + Copy + 'static>(name: String, work: C) -> Shape
where
    Bf16Contract: From<C>,
{
    Shape { name, f32: Box::new(work), f64: Box::new(work), bf16: work.into() }
}

/// In f64, convolutions are direct.
fn conv_shape<C: Contract + Copy + 'static>(name: String, c: Conv2d, kind: impl Fn(Conv2d) -> C) -> Shape
where
    Bf16Contract: From<C>,
{
    Shape { f64: Box::new(kind(Conv2d { exact: true, ..c })), ..shape(name, kind(c)) }
}

fn shapes(threads: usize) -> Vec<Shape> {
    let mut all: Vec<Shape> = Vec::new();
    for (m, n, k) in [
        (128, 512, 784),
        (128, 512, 1568),
        (128, 512, 512),
        (128, 10, 512),
        (20, 2600, 650),
        (700, 2600, 650),
        (700, 10_000, 650),
    ] {
        all.push(shape(format!("matmul {m}x{k} * {k}x{n}"), matmul(threads, [m, n, k], false, false)));
        all.push(shape(format!("matmul {k}x{m}' * {m}x{n}"), matmul(threads, [k, n, m], true, false)));
        all.push(shape(format!("matmul {m}x{n} * {k}x{n}'"), matmul(threads, [m, k, n], false, true)));
    }
    for (m, n, k) in [(20, 2600, 650), (20, 650, 2600)] {
        let product = MatMul { rhs_panels: true, ..matmul(threads, [m, n, k], false, false) };
        all.push(shape(format!("matmul {m}x{k} * {k}x{n} in panels"), product));
    }
    for (m, n, k) in [(512, 512, 512), (1024, 1024, 1024), (32, 32, 25088), (1, 512, 784), (128, 1, 512)] {
        all.push(shape(format!("matmul {m}x{k} * {k}x{n}"), matmul(threads, [m, n, k], false, false)));
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
        (14, 3, 1, [512, 512]),
        (7, 3, 1, [512, 512]),
        (32, 3, 2, [16, 32]),
        (16, 3, 2, [32, 64]),
        (32, 3, 1, [3, 16]),
        (16, 1, 2, [32, 64]),
        (14, 1, 1, [256, 256]),
        (8, 4, 2, [128, 256]),
        (16, 4, 2, [64, 128]),
        (32, 4, 2, [32, 64]),
        (16, 4, 2, [32, 32]),
        (32, 4, 2, [3, 64]),
        (32, 3, 1, [64, 3]),
        (32, 3, 1, [16, 3]),
        (32, 3, 1, [16, 7]),
        (32, 5, 1, [16, 1]),
        (32, 4, 2, [8, 16]),
        (32, 3, 2, [3, 16]),
        (32, 9, 1, [32, 3]),
        (128, 3, 1, [32, 3]),
        (32, 3, 1, [8, 8]),
        (32, 3, 1, [12, 12]),
        (32, 3, 1, [8, 32]),
        (32, 3, 1, [32, 8]),
        (32, 3, 1, [20, 20]),
        (32, 3, 1, [24, 24]),
        (32, 3, 1, [40, 40]),
        (32, 3, 1, [48, 48]),
        (16, 3, 1, [96, 96]),
        (16, 3, 1, [128, 128]),
    ] {
        let c = conv(size, kernel, stride, [from, to]);
        let name = format!("{kernel}x{kernel}/{stride} {size}x{size} {from}->{to}");
        all.push(conv_shape(format!("conv {name}"), c, Conv2dForward));
        all.push(conv_shape(format!("conv input grad {name}"), c, Conv2dInputGrad));
        all.push(conv_shape(format!("conv filter grad {name}"), c, Conv2dFilterGrad));
    }
    all
}

fn main() {
    let mut args = std::env::args().skip(1);
    let mut team = Team::new(
        args.next().map_or(1, |a| a.parse().expect("the first argument must be the number of threads")),
    );
    let (only, with) = (args.next().unwrap_or_default(), args.next().unwrap_or_default());
    let (only, with) = (only.as_str(), with.as_str());
    let report = |name: &str, speed: f64, peak: f64| {
        println!("{name:36} {speed:7.1} GFLOP/s {:4.0} %", 100.0 * speed / peak);
    };
    for isa in
        Isa::available().filter(|&isa| isa != Isa::Plain && ["", isa.to_string().as_str()].contains(&with))
    {
        println!("{isa}, {team:?}: peak {:.0} GFLOP/s", Roofline::measure(&mut team, isa).gflops);
        for shape in shapes(team.len()).iter().filter(|s| s.name.contains(only)) {
            let speed = gflops_f32(&mut team, isa, &*shape.f32);
            report(&shape.name, speed, Roofline::measure(&mut team, isa).gflops);
        }
    }
    for isa in Bf16Isa::available().filter(|isa| ["", isa.to_string().as_str()].contains(&with)) {
        println!("{isa}, {team:?}: share of the f32 peak");
        for shape in shapes(team.len()).iter().filter(|s| s.name.contains(only)) {
            let speed = gflops_bf16(&mut team, isa, &shape.bf16);
            report(&shape.name, speed, Roofline::measure(&mut team, Isa::Avx512).gflops);
        }
    }
    if ["", "int8"].contains(&with) {
        println!("int8, {team:?}: share of the f32 peak");
        for (name, work) in int8_shapes().iter().filter(|s| s.0.contains(only)) {
            let speed = gflops_int8(&mut team, work);
            report(name, speed, Roofline::measure(&mut team, Isa::detect()).gflops);
        }
    }
    if ["", "f64"].contains(&with) {
        println!("f64, {team:?}: share of the f32 peak");
        for shape in shapes(team.len()).iter().filter(|s| s.name.contains(only)) {
            let speed = gflops_f64(&mut team, Isa::detect(), &*shape.f64);
            report(&shape.name, speed, Roofline::measure(&mut team, Isa::detect()).gflops);
        }
    }
}
