//! Tests of every contraction over random shapes: the reference loops and each instruction set
//! against the definition in double precision. The blocks must tile the output exactly, no
//! uninitialized memory may be read, and the result must not depend on the order of chunks.

mod bf16;
mod conv2d;
mod depthwise;
mod int8;
mod matmul;

use tensorpack_kernels::{Bias, Block, Contract, Isa, Operands};
use tensorpack_tensor::DType;

/// Memory aligned to cache lines, filled with NaN.
struct Buffer {
    lines: Vec<[u64; 8]>,
    bytes: usize,
}

impl Buffer {
    fn new(bytes: usize) -> Buffer {
        // One extra line, since a `Vec` of u64 does not guarantee the alignment.
        Buffer { lines: vec![[u64::MAX; 8]; bytes.div_ceil(64) + 1], bytes }
    }

    fn slice(&mut self) -> &mut [u8] {
        let start = self.lines.as_mut_ptr().cast::<u8>();
        let skip = start.align_offset(64);
        // SAFETY: `lines` has one line more than `bytes` needs.
        unsafe { std::slice::from_raw_parts_mut(start.add(skip), self.bytes) }
    }
}

/// A float type with its method of [`Contract`].
trait Number: Copy + From<f32> + Into<f64> {
    const NAN: Self;
    const DTYPE: DType;
    unsafe fn run(
        work: &dyn Contract,
        isa: Isa,
        at: (usize, usize),
        mem: Operands<Self>,
        scratch: &mut [u8],
        finish: &mut dyn FnMut(Block),
    );
}

macro_rules! number {
    ($type:ty, $dtype:ident, $run:ident) => {
        impl Number for $type {
            const NAN: Self = <$type>::NAN;
            const DTYPE: DType = DType::$dtype;
            unsafe fn run(
                work: &dyn Contract,
                isa: Isa,
                (phase, chunk): (usize, usize),
                mem: Operands<Self>,
                scratch: &mut [u8],
                finish: &mut dyn FnMut(Block),
            ) {
                // SAFETY: passed on from `run`.
                unsafe { work.$run(isa, phase, chunk, mem, scratch, finish) }
            }
        }
    };
}
number!(f32, F32, run_f32);
number!(f64, F64, run_f64);

fn run<T: Number>(work: &dyn Contract, isa: Isa, lhs: &[T], rhs: &[T], reverse: bool) -> Vec<T> {
    run_with(work, isa, lhs, rhs, Bias::NONE, reverse)
}

fn run_with<T: Number>(
    work: &dyn Contract,
    isa: Isa,
    lhs: &[T],
    rhs: &[T],
    bias: Bias<T>,
    reverse: bool,
) -> Vec<T> {
    assert_eq!((lhs.len(), rhs.len()), (work.lhs_len(), work.rhs_len()));
    let (rows, cols) = work.out_matrix();
    let mut out = vec![T::NAN; rows * cols];
    let mut finished = vec![0; rows * cols];
    let (mut shared, mut scratch) =
        (Buffer::new(work.shared_bytes(T::DTYPE)), Buffer::new(work.scratch_bytes(T::DTYPE)));
    let mem = Operands {
        lhs: lhs.as_ptr(),
        rhs: rhs.as_ptr(),
        out: out.as_mut_ptr(),
        shared: shared.slice().as_mut_ptr(),
        bias,
    };
    for phase in 0..work.phases() {
        let chunks = work.chunks(phase);
        for chunk in 0..chunks {
            let chunk = if reverse { chunks - 1 - chunk } else { chunk };
            scratch.slice().fill(0xff);
            // SAFETY: all memory has the size that the contraction needs, and one chunk runs at a
            // time.
            unsafe {
                T::run(work, isa, (phase, chunk), mem, scratch.slice(), &mut |block| {
                    for row in block.rows {
                        finished[row * cols..][block.cols.clone()].iter_mut().for_each(|f| *f += 1);
                    }
                });
            }
        }
    }
    assert!(
        finished.iter().all(|&f| f == 1),
        "{work:?} on {isa}: the finished blocks do not tile the output"
    );
    out
}

/// Returns numbers between -1 and 1, the same for every run.
fn numbers(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9).wrapping_add(1);
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        })
        .collect()
}

/// Checks all instruction sets of `work` against `define`, which calls its argument with the
/// positions (output, lhs, rhs) of each product.
fn check(work: &dyn Contract, define: impl Fn(&mut dyn FnMut(usize, usize, usize))) {
    let (lhs, rhs) = (numbers(work.lhs_len(), 1), numbers(work.rhs_len(), 2));
    let (rows, cols) = work.out_matrix();
    let mut exact = vec![(0.0f64, 0.0f64); rows * cols];
    define(&mut |out, l, r| {
        let product = f64::from(lhs[l]) * f64::from(rhs[r]);
        exact[out].0 += product;
        exact[out].1 += product.abs();
    });
    let near = |got: f64, i: usize, tolerance: f64, what: &str| {
        let (sum, size) = exact[i];
        assert!((got - sum).abs() <= tolerance * size, "{work:?} {what}: element {i} is {got}, not {sum}");
    };
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    for isa in Isa::available() {
        let out = run::<f64>(work, isa, &wide(&lhs), &wide(&rhs), false);
        out.iter().enumerate().for_each(|(i, &x)| near(x, i, 1e-13, &format!("in f64 on {isa}")));
        let again = run::<f64>(work, isa, &wide(&lhs), &wide(&rhs), true);
        let same = out.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "{work:?} in f64 on {isa}: bits depend on the order of chunks");
        let out = run::<f32>(work, isa, &lhs, &rhs, false);
        out.iter().enumerate().for_each(|(i, &x)| near(x.into(), i, 1e-5, &format!("on {isa}")));
        let again = run::<f32>(work, isa, &lhs, &rhs, true);
        let same = out.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "{work:?} on {isa}: bits depend on the order of chunks");
    }
}
