//! Tests of contractions of 8-bit integers: every instruction set gives the exact sums.

use proptest::prelude::*;
use tensorpack_kernels::{Bias, Conv2d, Int8Contract, Isa, Operands};

use super::Buffer;
use super::conv2d::{convolution, products, same};
use super::matmul::size;

/// Returns bytes, the same for every run; the extremes are frequent.
fn bytes(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as u8
    };
    (0..len).map(|_| if next() < 64 { [0, 255][usize::from(next() % 2)] } else { next() }).collect()
}

fn run(work: &Int8Contract, isa: Isa, [lhs, rhs]: [&[u8]; 2], reverse: bool) -> Vec<f32> {
    assert_eq!((lhs.len(), rhs.len()), (work.lhs_len(), work.rhs_len()));
    let (rows, cols) = work.out_matrix();
    let mut out = vec![f32::NAN; rows * cols];
    let mut finished = vec![0; rows * cols];
    let (mut shared, mut scratch) = (Buffer::new(work.shared_bytes()), Buffer::new(work.scratch_bytes()));
    let shared = shared.slice().as_mut_ptr();
    let mem =
        Operands { lhs: lhs.as_ptr(), rhs: rhs.as_ptr(), out: out.as_mut_ptr(), shared, bias: Bias::NONE };
    for phase in 0..work.phases() {
        let chunks = work.chunks(phase);
        for chunk in 0..chunks {
            let chunk = if reverse { chunks - 1 - chunk } else { chunk };
            scratch.slice().fill(0xff);
            // SAFETY: all memory has the size that the contraction needs, and one chunk runs at a
            // time.
            unsafe {
                work.run(isa, phase, chunk, mem, scratch.slice(), &mut |block| {
                    for row in block.rows {
                        finished[row * cols..][block.cols.clone()].iter_mut().for_each(|f| *f += 1);
                    }
                });
            }
        }
    }
    assert!(finished.iter().all(|&f| f == 1), "{work:?} on {isa}: the blocks do not tile the output");
    out
}

/// Checks `work` against `define`, which calls its argument with the positions (output, lhs, rhs)
/// of each product.
fn check(work: Int8Contract, define: impl Fn(&mut dyn FnMut(usize, usize, usize))) {
    work.check().unwrap();
    let (lhs, rhs) = (bytes(work.lhs_len(), 1), bytes(work.rhs_len(), 2));
    let (rows, cols) = work.out_matrix();
    let mut sums = vec![0i64; rows * cols];
    let integer = |byte: u8| i64::from(byte) - 128;
    define(&mut |out, l, r| sums[out] += integer(lhs[l]) * integer(rhs[r]));
    let want: Vec<f32> = sums.iter().map(|&sum| sum as f32).collect();
    for isa in Isa::available() {
        for reverse in [false, true] {
            assert_eq!(run(&work, isa, [&lhs, &rhs], reverse), want, "{work:?} on {isa}");
        }
    }
}

fn check_matmul(m: usize, n: usize, k: usize) {
    check(Int8Contract::matmul(m, n, k), |product| {
        for i in 0..m * n * k {
            let (row, col, term) = (i / k / n, i / k % n, i % k);
            product(row * n + col, row * k + term, term * n + col);
        }
    });
}

fn check_conv(c: Conv2d) {
    check(Int8Contract::conv2d(c), |product| products(&c, &mut |x, w, y| product(y, x, w)));
}

proptest! {
    #[test]
    fn any_matmul((m, n, k) in (size(), size(), size())) {
        check_matmul(m, n, 4 * k);
    }

    #[test]
    fn any_convolution(c in convolution()) {
        check_conv(Conv2d { in_channels: c.in_channels.next_multiple_of(4), ..c });
    }
}

#[test]
fn products_of_several_chunks() {
    check_matmul(130, 200, 2048);
    check_conv(same(2, 17, 3, 1, [64, 130]));
}

/// The largest sums that are accepted, of the extremes.
#[test]
fn the_longest_sums_do_not_overflow() {
    let work = Int8Contract::matmul(2, 3, 1 << 16);
    work.check().unwrap();
    for (x, w) in [(255, 0), (0, 0), (255, 255)] {
        let (lhs, rhs) = (vec![x; work.lhs_len()], vec![w; work.rhs_len()]);
        let sum = (f64::from(x) - 128.0) * (f64::from(w) - 128.0) * f64::from(1 << 16);
        for isa in Isa::available() {
            assert_eq!(run(&work, isa, [&lhs, &rhs], false), [sum as f32; 6], "{isa}");
        }
    }
    let error = Int8Contract::matmul(2, 3, (1 << 16) + 4).check().unwrap_err();
    assert!(error.to_string().contains("at most 65536"), "{error}");
}

#[test]
fn groups_of_four_are_required() {
    let error = Int8Contract::matmul(2, 3, 6).check().unwrap_err();
    assert!(error.to_string().contains("6 input channels"), "{error}");
}
