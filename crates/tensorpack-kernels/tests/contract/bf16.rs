//! Tests of contractions of bf16, for every instruction set that this CPU has for them: against the
//! definition in double precision, with the error bound of an f32 sum.

use proptest::prelude::*;
use tensorpack_kernels::{
    Bf16Contract, Bf16Isa, Bias, Contract, Conv2d, Conv2dFilterGrad, Conv2dForward, Conv2dInputGrad, MatMul,
    Operands,
};
use tensorpack_tensor::bf16;

use super::conv2d::{convolution, large, products, same};
use super::matmul::{matmul_products, size};
use super::{Buffer, numbers};

/// Rounds to bf16. With `odd`, the first element is one element behind an address that is aligned
/// for pairs.
fn narrow(x: &[f32], odd: bool) -> Vec<bf16> {
    let rounded = x.iter().map(|&x| bf16::from_f32(x));
    if odd { [bf16::NAN].into_iter().chain(rounded).collect() } else { rounded.collect() }
}

fn run(
    work: &Bf16Contract,
    isa: Bf16Isa,
    [lhs, rhs]: [&[bf16]; 2],
    bias: Bias<f32>,
    reverse: bool,
) -> Vec<f32> {
    assert_eq!((lhs.len(), rhs.len()), (work.lhs_len(), work.rhs_len()));
    let (rows, cols) = work.out_matrix();
    let mut out = vec![f32::NAN; rows * cols];
    let mut finished = vec![0; rows * cols];
    let (mut shared, mut scratch) = (Buffer::new(work.shared_bytes()), Buffer::new(work.scratch_bytes()));
    let shared = shared.slice().as_mut_ptr();
    let mem = Operands { lhs: lhs.as_ptr(), rhs: rhs.as_ptr(), out: out.as_mut_ptr(), shared, bias };
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
///
/// Products of bf16 are exact in f32, so a sum of `k` terms is rounded less than `k + 8` times,
/// also if it is divided into partial sums: its error is below `(k + 8) * 2^-24` of the sum of the
/// terms' magnitudes, to first order.
fn check(work: impl Into<Bf16Contract>, odd: bool, define: impl Fn(&mut dyn FnMut(usize, usize, usize))) {
    let work = work.into();
    work.check().unwrap();
    let (lhs, rhs) = (numbers(work.lhs_len(), 1), numbers(work.rhs_len(), 2));
    let (rows, cols) = work.out_matrix();
    let (lhs, rhs) = (narrow(&lhs, odd), narrow(&rhs, odd));
    let (lhs, rhs) = (&lhs[usize::from(odd)..], &rhs[usize::from(odd)..]);
    let mut exact = vec![(0.0f64, 0.0f64, 0u32); rows * cols];
    define(&mut |out, l, r| {
        let product = lhs[l].to_f64() * rhs[r].to_f64();
        exact[out].0 += product;
        exact[out].1 += product.abs();
        exact[out].2 += 1;
    });
    for isa in Bf16Isa::available() {
        let out = run(&work, isa, [lhs, rhs], Bias::NONE, false);
        for (i, (&got, (sum, size, terms))) in out.iter().zip(exact.clone()).enumerate() {
            let bound = f64::from(terms + 8) * 2f64.powi(-24) * 1.01 * size;
            let near = (f64::from(got) - sum).abs() <= bound;
            assert!(near, "{work:?} on {isa}: element {i} is {got}, not {sum}");
        }
        let again = run(&work, isa, [lhs, rhs], Bias::NONE, true);
        let same = out.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "{work:?} on {isa}: bits depend on the order of chunks");
    }
}

fn check_matmul(p: MatMul, odd: bool) {
    check(p, odd, |product| matmul_products(&p, product));
}

fn check_conv(c: Conv2d, odd: bool) {
    check(Conv2dForward(c), odd, |product| products(&c, &mut |x, w, y| product(y, x, w)));
    check(Conv2dInputGrad(c), odd, |product| products(&c, &mut |x, w, y| product(x, y, w)));
    check(Conv2dFilterGrad(c), odd, |product| products(&c, &mut |x, w, y| product(w, x, y)));
}

proptest! {
    #![proptest_config(crate::oracle::cases(32))]

    #[test]
    fn any_matmul(
        (batch, m, n, k) in (0usize..4, size(), size(), size()),
        (lhs_transposed, rhs_transposed, lhs_shared, rhs_shared) in any::<(bool, bool, bool, bool)>(),
        threads in 0usize..70,
        odd in any::<bool>(),
    ) {
        let rhs_panels = false;
        check_matmul(MatMul {
            batch, m, n, k, lhs_transposed, rhs_transposed, lhs_shared, rhs_shared, rhs_panels, threads,
        }, odd);
    }

    #[test]
    fn any_convolution(c in convolution(), odd in any::<bool>()) {
        check_conv(c, odd);
    }
}

fn product([m, n, k]: [usize; 3], lhs_transposed: bool, rhs_transposed: bool) -> MatMul {
    let (lhs_shared, rhs_shared, rhs_panels) = (false, false, false);
    MatMul {
        batch: 1,
        m,
        n,
        k,
        lhs_transposed,
        rhs_transposed,
        lhs_shared,
        rhs_shared,
        rhs_panels,
        threads: 1,
    }
}

#[test]
fn large_products() {
    for sizes in [[350, 100, 40], [40, 50, 8001], [200, 200, 512], [70, 1, 300], [80, 70, 1501]] {
        for (lhs_transposed, rhs_transposed) in [(false, false), (true, false), (false, true), (true, true)] {
            check_matmul(product(sizes, lhs_transposed, rhs_transposed), lhs_transposed);
        }
    }
}

#[test]
fn large_convolutions() {
    large().into_iter().step_by(3).for_each(|c| check_conv(c, false));
}

#[test]
fn panels_of_pairs() {
    let plain = product([20, 90, 70], false, false);
    let (lhs, rhs) = (numbers(20 * 70, 1), numbers(70 * 90, 2));
    let (lhs, rhs) = (narrow(&lhs, false), narrow(&rhs, false));
    let panels = Bf16Contract::from(MatMul { rhs_panels: true, ..plain });
    panels.check().unwrap();
    let mut packed = vec![bf16::NAN; panels.rhs_len()];
    for (i, &x) in rhs.iter().enumerate() {
        let (k, n) = (i / 90, i % 90);
        packed[((n / MatMul::PANEL * 35 + k / 2) * MatMul::PANEL + n % MatMul::PANEL) * 2 + k % 2] = x;
    }
    for isa in Bf16Isa::available() {
        let want = run(&Bf16Contract::from(plain), isa, [&lhs, &rhs], Bias::NONE, false);
        assert_eq!(run(&panels, isa, [&lhs, &packed], Bias::NONE, false), want, "{isa}");
    }
    let odd = Bf16Contract::from(MatMul { rhs_panels: true, k: 71, ..plain });
    assert_eq!(odd.check().unwrap_err().kind(), tensorpack_tensor::ErrorKind::Argument);
}

#[test]
fn bias_and_relu_are_those_of_the_f32_sums() {
    let c = same(2, 9, 3, 1, [8, 20]);
    let work = Bf16Contract::from(Conv2dForward(c));
    let (lhs, rhs) = (numbers(work.lhs_len(), 1), numbers(work.rhs_len(), 2));
    let (lhs, rhs) = (narrow(&lhs, false), narrow(&rhs, false));
    let bias = numbers(20, 3);
    assert!(work.takes_bias());
    for isa in Bf16Isa::available() {
        let mut want = run(&work, isa, [&lhs, &rhs], Bias::NONE, false);
        want.iter_mut().enumerate().for_each(|(i, y)| *y = (*y + bias[i % 20]).max(0.0));
        let bias = Bias { add: bias.as_ptr(), relu: true };
        assert_eq!(run(&work, isa, [&lhs, &rhs], bias, false), want, "{isa}");
    }
}

#[test]
fn the_number_of_threads_changes_no_bits() {
    for sizes in [[128, 512, 784], [700, 130, 650], [33, 40, 9001]] {
        let one = product(sizes, true, false);
        let (lhs, rhs) = (numbers(one.lhs_len(), 1), numbers(one.rhs_len(), 2));
        let (lhs, rhs) = (narrow(&lhs, false), narrow(&rhs, false));
        for isa in Bf16Isa::available() {
            let bits = |threads: usize| -> Vec<u32> {
                let work = Bf16Contract::from(MatMul { threads, ..one });
                run(&work, isa, [&lhs, &rhs], Bias::NONE, false).into_iter().map(f32::to_bits).collect()
            };
            assert!(bits(1) == bits(48), "{sizes:?} on {isa}");
        }
    }
}

/// Subnormal operands and sums count as zero, whatever MXCSR says: `docs/numerics.md` promises it.
#[test]
fn subnormal_terms_count_as_zero() {
    let subnormal = bf16::from_bits(1);
    let (tiny, one) = (bf16::MIN_POSITIVE, bf16::ONE);
    for isa in Bf16Isa::available() {
        let dot = |lhs: [bf16; 2], rhs: [bf16; 2]| {
            run(&Bf16Contract::from(product([1, 1, 2], false, false)), isa, [&lhs, &rhs], Bias::NONE, false)
                [0]
        };
        assert_eq!(dot([subnormal, bf16::ZERO], [bf16::from_f32(1e30), one]), 0.0, "{isa}: operand");
        assert_eq!(dot([tiny, bf16::ZERO], [bf16::from_f32(0.5), one]), 0.0, "{isa}: product");
        assert_eq!(dot([tiny, bf16::ZERO], [one, one]), f32::MIN_POSITIVE, "{isa}: smallest");
    }
}
