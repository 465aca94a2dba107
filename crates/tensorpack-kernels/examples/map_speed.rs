//! Measures the elementwise, reduction and pooling kernels on one thread, next to a copy of as many
//! bytes: `cargo run --release -p tensorpack-kernels --example map_speed`.

use std::time::Instant;
use tensorpack_kernels::expr::{Binary, Class, Expr, Reg, Step, Unary};
use tensorpack_kernels::{Copy, Isa, Map, Operand, Pool, Random, Reduce, ReduceKind, all_finite};
use tensorpack_tensor::{CounterRng, DType};

/// Measures and prints a case: its bandwidth, and that of copies of as many bytes. They take turns,
/// and the best of many rounds counts, since other programs use the memory, too.
fn report(name: &str, bytes: usize, mut f: impl FnMut()) {
    let (from, mut to) = (Aligned::noise(bytes / 8), Aligned::zeros(bytes / 8));
    let (from, to) = (&from.memory[from.start..], &mut to.memory[to.start..]);
    let mut best = [f64::INFINITY; 3];
    // Each runs once untimed, so that it starts with its own data in the caches.
    let mut lap = |i: usize, f: &mut dyn FnMut()| {
        f();
        let start = Instant::now();
        f();
        best[i] = best[i].min(start.elapsed().as_secs_f64());
    };
    for _ in 0..30 {
        lap(0, &mut f);
        lap(1, &mut || to.copy_from_slice(std::hint::black_box(from)));
        // The library's copy may use non-temporal stores; this one does not, like kernels, whose
        // results should stay in the caches.
        lap(2, &mut || to.iter_mut().zip(std::hint::black_box(from)).for_each(|(t, f)| *t = f.abs()));
    }
    let [speed, copy, simple] = best.map(|t| bytes as f64 / t / 1e9);
    println!(
        "{name:44} {speed:6.2} GB/s  memcpy {copy:6.2} GB/s {:4.0} %  simple loop {simple:6.2} GB/s {:4.0} %",
        100.0 * speed / copy,
        100.0 * speed / simple
    );
}

/// Floats in memory aligned like tensors.
struct Aligned {
    memory: Vec<f32>,
    start: usize,
}

impl Aligned {
    fn new(len: usize, value: impl Fn(usize) -> f32) -> Aligned {
        let mut memory = vec![0f32; len + 16];
        let start = memory.as_ptr().align_offset(64);
        memory.truncate(start + len);
        memory[start..].iter_mut().enumerate().for_each(|(i, x)| *x = value(i));
        Aligned { memory, start }
    }
    fn noise(len: usize) -> Aligned {
        Aligned::new(len, |i| (i * 7919 % 1000) as f32 * 0.002 - 1.0)
    }
    fn zeros(len: usize) -> Aligned {
        Aligned::new(len, |_| 0.0)
    }
    fn ptr(&self) -> *const u8 {
        self.memory[self.start..].as_ptr().cast()
    }
    fn ptr_mut(&mut self) -> *mut u8 {
        self.memory[self.start..].as_mut_ptr().cast()
    }
    fn len(&self) -> usize {
        self.memory.len() - self.start
    }
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: any float is valid as bytes.
        unsafe { std::slice::from_raw_parts_mut(self.ptr_mut(), self.len() * 4) }
    }
}

fn operand(strides: &[isize]) -> Operand {
    Operand { dtype: DType::F32, strides: strides.to_vec() }
}

fn load(index: u16) -> Step {
    Step::Operand { index, class: Class::F32 }
}

fn constant(x: f64) -> Step {
    Step::Const(x, Class::F32)
}

fn binary(op: Binary, a: u16, b: u16) -> Step {
    Step::Binary(op, Reg(a), Reg(b))
}

fn run_map(isa: Isa, name: &str, map: &Map, operands: &[&Aligned], outputs: &mut [Aligned]) {
    let len =
        operands.iter().map(|o| o.len()).sum::<usize>() + outputs.iter().map(Aligned::len).sum::<usize>();
    let operands: Vec<*const u8> = operands.iter().map(|o| o.ptr()).collect();
    let outputs: Vec<*mut u8> = outputs.iter_mut().map(Aligned::ptr_mut).collect();
    let mut scratch = Aligned::zeros(map.scratch_bytes() / 4);
    report(name, len * 4, || {
        for chunk in 0..map.chunks() {
            // SAFETY: the buffers have the lengths of the map's operands and outputs.
            unsafe { map.run(isa, chunk, &operands, &outputs, scratch.bytes()) };
        }
    });
}

fn maps(isa: Isa) {
    let n = 128 * 28 * 28 * 32;
    let (x, c) = (Aligned::noise(n), Aligned::noise(32));
    let mut y = [Aligned::zeros(n)];
    let f32s = |n| vec![DType::F32; n];

    let relu = Expr { steps: vec![load(0), Step::Unary(Unary::Relu, Reg(0))], outputs: vec![Reg(1)] };
    let map = Map::new(&[128, 28, 28, 32], vec![operand(&[25088, 896, 32, 1])], relu, f32s(1));
    run_map(isa, "relu, 128x28x28x32", &map, &[&x], &mut y);

    let affine = Expr {
        steps: vec![load(0), load(1), load(2), binary(Binary::Mul, 0, 1), binary(Binary::Add, 3, 2)],
        outputs: vec![Reg(4)],
    };
    let line = [operand(&[1]), operand(&[0]), operand(&[0])].to_vec();
    let map = Map::new(&[n], line, affine.clone(), f32s(1));
    run_map(isa, "x * a + b, scalars", &map, &[&x, &c, &c], &mut y);
    let rows = [operand(&[32, 1]), operand(&[0, 1]), operand(&[0, 1])].to_vec();
    let map = Map::new(&[n / 32, 32], rows, affine, f32s(1));
    run_map(isa, "x * a + b, 32 channels", &map, &[&x, &c, &c], &mut y);

    let bias = Expr {
        steps: vec![load(0), load(1), binary(Binary::Add, 0, 1), Step::Unary(Unary::Relu, Reg(2))],
        outputs: vec![Reg(3)],
    };
    let map = Map::new(&[n / 32, 32], [operand(&[32, 1]), operand(&[0, 1])].to_vec(), bias.clone(), f32s(1));
    run_map(isa, "relu(x + bias), 32 channels", &map, &[&x, &c], &mut y);
    let map = Map::new(&[n / 10, 10], [operand(&[10, 1]), operand(&[0, 1])].to_vec(), bias, f32s(1));
    run_map(isa, "relu(x + bias), 10 channels", &map, &[&x, &c], &mut y);

    for op in [Unary::Exp, Unary::Log, Unary::Tanh, Unary::Sigmoid, Unary::Erf, Unary::Sin] {
        let expr = Expr { steps: vec![load(0), Step::Unary(op, Reg(0))], outputs: vec![Reg(1)] };
        let map = Map::new(&[n], vec![operand(&[1])], expr, f32s(1));
        run_map(isa, &format!("{op:?}"), &map, &[&x], &mut y);
    }

    // Adam: parameter, gradient and both moments in, parameter and moments out.
    let adam = Expr {
        steps: vec![
            load(0),
            load(1),
            load(2),
            load(3),
            constant(0.9),
            constant(0.1),
            constant(0.999),
            constant(0.001),
            binary(Binary::Mul, 2, 4),
            binary(Binary::Mul, 1, 5),
            binary(Binary::Add, 8, 9),
            binary(Binary::Mul, 3, 6),
            Step::Unary(Unary::Square, Reg(1)),
            binary(Binary::Mul, 12, 7),
            binary(Binary::Add, 11, 13),
            Step::Unary(Unary::Sqrt, Reg(14)),
            binary(Binary::Add, 15, 7),
            binary(Binary::Div, 10, 16),
            binary(Binary::Mul, 17, 7),
            binary(Binary::Sub, 0, 18),
        ],
        outputs: vec![Reg(19), Reg(10), Reg(14)],
    };
    for (name, n) in [("Adam, 1M elements", 1 << 20), ("Adam, 32K elements (in cache)", 1 << 15)] {
        let map = Map::new(&[n], vec![operand(&[1]); 4], adam.clone(), f32s(3));
        let x = [0.1, 0.2, 0.3, 0.5].map(|v| Aligned::new(n, |_| v));
        let mut y = [0; 3].map(|_| Aligned::zeros(n));
        run_map(isa, name, &map, &[&x[0], &x[1], &x[2], &x[3]], &mut y);
    }
}

fn run_reduce(isa: Isa, name: &str, reduce: &Reduce, operands: &[&Aligned], outputs: &mut [Aligned]) {
    let len = operands.iter().map(|o| o.len()).sum::<usize>();
    let operands: Vec<*const u8> = operands.iter().map(|o| o.ptr()).collect();
    let outputs: Vec<*mut u8> = outputs.iter_mut().map(Aligned::ptr_mut).collect();
    let mut scratch = Aligned::zeros(reduce.scratch_bytes() / 4);
    let mut shared = Aligned::zeros(reduce.shared_bytes() / 4);
    report(name, len * 4, || {
        for phase in 0..reduce.phases() {
            for chunk in 0..reduce.chunks(phase) {
                // SAFETY: the buffers have the sizes that the reduction needs.
                unsafe {
                    reduce.run(isa, phase, chunk, &operands, &outputs, shared.ptr_mut(), scratch.bytes());
                }
            }
        }
    });
}

fn reductions(isa: Isa) {
    let (rows, channels) = (128 * 32 * 32, 16);
    let (x, dy, mean) =
        (Aligned::noise(rows * channels), Aligned::noise(rows * channels), Aligned::noise(channels));
    let matrix = operand(&[channels as isize, 1]);
    let mut out = [0; 2].map(|_| Aligned::zeros(rows));

    let grads = Expr {
        steps: vec![load(0), load(1), load(2), binary(Binary::Sub, 1, 2), binary(Binary::Mul, 0, 3)],
        outputs: vec![Reg(0), Reg(4)],
    };
    let operands = vec![matrix.clone(), matrix.clone(), operand(&[0, 1])];
    let sums = vec![ReduceKind::Sum; 2];
    let reduce = Reduce::new(&[rows, channels], &[true, false], operands, grads, sums, vec![DType::F32; 2]);
    run_reduce(isa, "sums of dy, dy*(x-mean), [128*32*32, 16]", &reduce, &[&dy, &x, &mean], &mut out);

    let one = Expr { steps: vec![load(0)], outputs: vec![Reg(0)] };
    for (name, kind, reduced) in [
        ("Moments over rows of [128*32*32, 16]", ReduceKind::Moments, [true, false]),
        ("Sum over rows of [128*32*32, 16]", ReduceKind::Sum, [true, false]),
        ("Sum of each row of [128*32*32, 16]", ReduceKind::Sum, [false, true]),
        ("Max of each row of [128*32*32, 16]", ReduceKind::Max, [false, true]),
        ("Sum of everything", ReduceKind::Sum, [true, true]),
        ("Moments of everything", ReduceKind::Moments, [true, true]),
    ] {
        let outputs = vec![DType::F32; if kind == ReduceKind::Moments { 2 } else { 1 }];
        let reduce =
            Reduce::new(&[rows, channels], &reduced, vec![matrix.clone()], one.clone(), vec![kind], outputs);
        run_reduce(isa, name, &reduce, &[&x], &mut out);
    }
    report("all_finite", x.len() * 4, || {
        // SAFETY: the memory has `x.len()` elements.
        assert!(unsafe { all_finite(isa, DType::F32, x.ptr(), x.len()) });
    });
}

fn pooling(isa: Isa) {
    let pool = Pool {
        batch: 128,
        in_size: [28; 2],
        channels: 32,
        window: [2; 2],
        stride: [2; 2],
        pad_low: [0; 2],
        out_size: [14; 2],
    };
    let n = 128 * 28 * 28 * 32;
    let (x, mut dx) = (Aligned::noise(n), Aligned::zeros(n));
    let (mut y, mut index) = (Aligned::zeros(n / 4), Aligned::zeros(n / 16));
    let bytes = n * 4 + n + n / 4;
    report("max pool 2x2, 128x28x28x32", bytes, || {
        // SAFETY: the buffers have the sizes of the descriptor.
        (0..pool.chunks())
            .for_each(|c| unsafe { pool.max(isa, DType::F32, c, x.ptr(), y.ptr_mut(), index.ptr_mut()) });
    });
    report("its gradient", bytes, || {
        // SAFETY: as above.
        (0..pool.in_chunks())
            .for_each(|c| unsafe { pool.max_grad(isa, DType::F32, c, y.ptr(), index.ptr(), dx.ptr_mut()) });
    });
    report("average pool 2x2", n * 5, || {
        // SAFETY: as above.
        (0..pool.chunks()).for_each(|c| unsafe { pool.average(isa, DType::F32, c, x.ptr(), y.ptr_mut()) });
    });
    report("its gradient", n * 5, || {
        // SAFETY: as above.
        (0..pool.in_chunks())
            .for_each(|c| unsafe { pool.average_grad(isa, DType::F32, c, y.ptr(), dx.ptr_mut()) });
    });
}

fn copies(isa: Isa) {
    let n = 128 * 28 * 28 * 32;
    let (x, mut y) = (Aligned::noise(n), Aligned::zeros(n));
    let mut run = |name: &str, copy: Copy| {
        report(name, n * 8, || {
            // SAFETY: both buffers have n elements.
            (0..copy.chunks()).for_each(|c| unsafe { copy.run(isa, c, x.ptr(), y.ptr_mut()) });
        });
    };
    run("copy, plain", Copy::new(&[n], 4, &[1], &[1]));
    run("transposition, 128 of 784x32", Copy::new(&[128, 784, 32], 4, &[25088, 1, 784], &[25088, 32, 1]));
    run("transposition, 1792x1792", Copy::new(&[1792, 1792], 4, &[1, 1792], &[1792, 1]));
    let random = Random::new(n, DType::F32);
    report("uniform random numbers", n * 4, || {
        let rng = CounterRng::new(1, "speed");
        // SAFETY: the buffer has n elements.
        (0..random.chunks()).for_each(|c| unsafe { random.run(isa, c, rng, 0, 0, y.ptr_mut()) });
    });
}

fn main() {
    let isa = Isa::detect();
    println!("one thread, {isa}");
    maps(isa);
    reductions(isa);
    pooling(isa);
    copies(isa);
}
