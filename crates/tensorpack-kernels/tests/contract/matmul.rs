//! Tests of matrix multiplication in all layouts.

use proptest::prelude::*;
use tensorpack_kernels::{Contract, Isa, MatMul};

use super::{check, numbers, run};

/// Calls `product` with the positions in output, left and right operand of every product.
pub(crate) fn matmul_products(p: &MatMul, product: &mut dyn FnMut(usize, usize, usize)) {
    for b in 0..p.batch {
        let lhs = if p.lhs_shared { 0 } else { b * p.m * p.k };
        let rhs = if p.rhs_shared { 0 } else { b * p.rhs_len() / p.batch };
        for m in 0..p.m {
            for n in 0..p.n {
                for k in 0..p.k {
                    let l = if p.lhs_transposed { k * p.m + m } else { m * p.k + k };
                    let r = match (p.rhs_panels, p.rhs_transposed) {
                        (true, _) => (n / MatMul::PANEL * p.k + k) * MatMul::PANEL + n % MatMul::PANEL,
                        (_, true) => n * p.k + k,
                        (_, false) => k * p.n + n,
                    };
                    product((b * p.m + m) * p.n + n, lhs + l, rhs + r);
                }
            }
        }
    }
}

fn check_matmul(p: MatMul) {
    check(&p, |product| matmul_products(&p, product));
}

pub(crate) fn size() -> impl Strategy<Value = usize> {
    prop_oneof![1 => Just(0usize), 2 => Just(1usize), 4 => 2usize..20, 2 => 20usize..80]
}

proptest! {
    #[test]
    fn any_shape(
        (batch, m, n, k) in (0usize..4, size(), size(), size()),
        (lhs_transposed, rhs_transposed, lhs_shared, rhs_shared) in any::<(bool, bool, bool, bool)>(),
        panels in any::<bool>(),
        threads in 0usize..70,
    ) {
        let rhs_panels = panels && !rhs_transposed;
        check_matmul(MatMul {
            batch, m, n, k, lhs_transposed, rhs_transposed, lhs_shared, rhs_shared, rhs_panels, threads,
        });
    }
}

/// Products with few rows, columns or steps and with many, which are divided in every way.
fn large_size() -> impl Strategy<Value = usize> {
    prop_oneof![1usize..40, 40usize..400, 400usize..1500]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn the_number_of_threads_changes_chunks_but_no_bits(
        (m, n, k) in (large_size(), large_size(), large_size()),
        (lhs_transposed, rhs_transposed) in any::<(bool, bool)>(),
        threads in 5usize..70,
    ) {
        let (lhs_shared, rhs_shared, rhs_panels) = (false, false, false);
        let one = MatMul {
            batch: 1, m, n, k, lhs_transposed, rhs_transposed, lhs_shared, rhs_shared, rhs_panels, threads: 1,
        };
        let many = MatMul { threads, ..one };
        prop_assert!(many.chunks(many.phases() - 1) >= one.chunks(one.phases() - 1));
        let (lhs, rhs) = (numbers(m * k, 1), numbers(k * n, 2));
        for isa in Isa::available() {
            let bits = |work: &MatMul| -> Vec<u32> {
                run::<f32>(work, isa, &lhs, &rhs, false).into_iter().map(f32::to_bits).collect()
            };
            prop_assert!(bits(&one) == bits(&many), "{many:?} on {isa}");
        }
    }
}

#[test]
fn many_threads_share_a_product_of_few_rows() {
    let one = MatMul {
        batch: 1,
        m: 128,
        n: 512,
        k: 784,
        lhs_transposed: false,
        rhs_transposed: false,
        lhs_shared: false,
        rhs_shared: false,
        rhs_panels: true,
        threads: 1,
    };
    assert_eq!(one.chunks(0), 8);
    assert!(MatMul { threads: 16, ..one }.chunks(0) >= 32);
    // A small one is not worth it.
    let small = MatMul { m: 8, n: 64, k: 64, ..one };
    assert_eq!(MatMul { threads: 16, ..small }.chunks(0), small.chunks(0));
}

/// Checks shapes large enough for every kind of blocking: blocks of rows, several panels, slices,
/// blocks along `k`, a packed left operand.
#[test]
fn large_shapes() {
    for (m, n, k) in [
        (350, 100, 40),
        (30, 300, 600),
        (40, 50, 4000),
        (200, 200, 512),
        (3, 90, 700),
        (70, 1, 300),
        (80, 70, 1500),
    ] {
        for (lhs_transposed, rhs_transposed, rhs_panels) in [
            (false, false, false),
            (true, false, false),
            (false, true, false),
            (true, true, false),
            (false, false, true),
            (true, false, true),
        ] {
            check_matmul(MatMul {
                batch: 1,
                m,
                n,
                k,
                lhs_transposed,
                rhs_transposed,
                lhs_shared: false,
                rhs_shared: false,
                rhs_panels,
                threads: 1,
            });
        }
    }
}

#[test]
fn long_sums_are_sliced() {
    let p = MatMul {
        batch: 1,
        m: 32,
        n: 32,
        k: 25088,
        lhs_transposed: false,
        rhs_transposed: false,
        lhs_shared: false,
        rhs_shared: false,
        rhs_panels: false,
        threads: 1,
    };
    assert_eq!(p.phases(), 2);
    assert!(p.chunks(0) >= 8);
}
