//! Tests of `Cumsum` and `Argsort` against scalar reference code.

use super::oracle::{self, Memory, Scalar, TestRng, isas};
use proptest::prelude::*;
use tensorpack_kernels::{Argsort, Cumsum};
use tensorpack_tensor::DType;

proptest! {
    #![proptest_config(oracle::cases(200))]

    #[test]
    fn cumsum_matches_the_reference(
        (outer, len, inner) in prop_oneof![
            4 => (0usize..6, 0usize..9, 0usize..9),
            1 => (1usize..40, 1usize..300, 1usize..3),
            1 => (1usize..3, 1usize..20, 900usize..3000),
            1 => (1usize..3, 20_000usize..50_000, 1usize..2),
        ],
        exclusive: bool, reverse: bool, seed: u64,
    ) {
        let mut rng = TestRng::new(seed);
        let sums = Cumsum { outer, len, inner, exclusive, reverse };
        let n = outer * len * inner;
        for dtype in [DType::F32, DType::F64, DType::I32, DType::I64] {
            let mut src = Memory::new(n * dtype.size());
            let values: Vec<i64> = (0..n).map(|_| rng.below(9) as i64 - 4).collect();
            values.iter().enumerate().for_each(|(i, &v)| src.set(dtype, i, Scalar::I(v)));
            let mut want = vec![0i64; n];
            for o in 0..outer {
                for c in 0..inner {
                    let mut sum = 0;
                    for k in 0..len {
                        let at = (o * len + if reverse { len - 1 - k } else { k }) * inner + c;
                        want[at] = if exclusive { sum } else { sum + values[at] };
                        sum += values[at];
                    }
                }
            }
            for isa in isas() {
                let mut dst = Memory::new(n * dtype.size());
                for chunk in (0..sums.chunks()).rev() {
                    // SAFETY: the buffers have the sizes of the descriptor.
                    unsafe { sums.run(isa, dtype, chunk, src.ptr(), dst.ptr_mut()) };
                }
                for (i, w) in want.iter().enumerate() {
                    prop_assert_eq!(dst.get(dtype, i).f(), *w as f64, "{} {:?} at {}", isa, sums, i);
                }
            }
        }
    }

    #[test]
    fn argsort_matches_a_stable_sort(
        (rows, len) in prop_oneof![4 => (0usize..6, 0usize..20), 1 => (1usize..4, 1usize..20_000)],
        descending: bool, seed: u64,
    ) {
        let mut rng = TestRng::new(seed);
        let take = rng.below(len + 1);
        let argsort = Argsort { rows, len, take, descending };
        let values: Vec<f32> = (0..rows * len)
            .map(|_| if rng.chance(9) { f32::NAN } else { rng.below(30) as f32 - 15.0 })
            .collect();
        let mut found = vec![-1i64; rows * take];
        let mut scratch = Memory::new(argsort.scratch_bytes());
        for chunk in 0..argsort.chunks() {
            // SAFETY: the buffers have the sizes of the descriptor.
            unsafe {
                let src = values.as_ptr().cast();
                argsort.run(DType::F32, chunk, src, found.as_mut_ptr(), scratch.bytes_mut());
            }
        }
        for r in 0..rows {
            let row = &values[r * len..][..len];
            // NaN is larger than any number.
            let key = |i: &i64| if row[*i as usize].is_nan() { 1000 } else { row[*i as usize] as i64 };
            let mut want: Vec<i64> = (0..len as i64).collect();
            want.sort_by_key(|i| if descending { -key(i) } else { key(i) });
            prop_assert_eq!(&found[r * take..][..take], &want[..take], "{:?}", argsort);
        }
    }
}

/// Checks that the error of a cumulative sum does not grow with its length, for one column and for
/// several, on every instruction set.
#[test]
fn long_cumulative_sums_are_accurate() {
    let len = 1_000_000;
    for (inner, exclusive) in [(1, false), (1, true), (3, false)] {
        let sums = Cumsum { outer: 1, len, inner, exclusive, reverse: false };
        let mut src = Memory::new(len * inner * 4);
        (0..len * inner).for_each(|i| src.set(DType::F32, i, Scalar::F(0.1)));
        for isa in isas() {
            let mut dst = Memory::new(len * inner * 4);
            // SAFETY: the buffers have the sizes of the descriptor.
            (0..sums.chunks())
                .for_each(|c| unsafe { sums.run(isa, DType::F32, c, src.ptr(), dst.ptr_mut()) });
            for k in (1..len).step_by(997).chain([len - 1]) {
                let terms = if exclusive { k } else { k + 1 };
                let want = terms as f64 * f64::from(0.1f32);
                let got = dst.get(DType::F32, k * inner).f();
                let off = (got - want).abs() / want;
                assert!(off <= 2f64.powi(-23), "sum {k} of {inner} columns is {got}, not {want} ({isa})");
            }
        }
    }
}
