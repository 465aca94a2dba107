//! Tests of matrix multiplication in all layouts.

use proptest::prelude::*;
use tensorpack_kernels::{Contract, MatMul};

use super::check;

fn check_matmul(p: MatMul) {
    check(&p, |product| {
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
    });
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![1 => Just(0usize), 2 => Just(1usize), 4 => 2usize..20, 2 => 20usize..80]
}

proptest! {
    #[test]
    fn any_shape(
        (batch, m, n, k) in (0usize..4, size(), size(), size()),
        (lhs_transposed, rhs_transposed, lhs_shared, rhs_shared) in any::<(bool, bool, bool, bool)>(),
        panels in any::<bool>(),
    ) {
        let rhs_panels = panels && !rhs_transposed;
        check_matmul(MatMul { batch, m, n, k, lhs_transposed, rhs_transposed, lhs_shared, rhs_shared, rhs_panels });
    }
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
    };
    assert_eq!(p.phases(), 2);
    assert!(p.chunks(0) >= 8);
}
