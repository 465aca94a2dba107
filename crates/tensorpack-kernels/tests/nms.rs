//! Tests of `Nms` against the definition.

use super::oracle::{self, TestRng};
use proptest::prelude::*;
use tensorpack_kernels::Nms;

proptest! {
    #![proptest_config(oracle::cases(200))]

    #[test]
    fn nms_matches_the_definition(rows in 0usize..4, len in 0usize..40, one_in in 2usize..9, seed: u64) {
        let mut rng = TestRng::new(seed);
        let nms = Nms { rows, len };
        prop_assert!(nms.check().is_ok());
        let suppresses: Vec<u8> = (0..rows * len * len).map(|_| u8::from(rng.chance(one_in))).collect();
        let mut found = vec![7u8; rows * len];
        for chunk in 0..nms.chunks() {
            // SAFETY: the buffers have the sizes of the descriptor.
            unsafe { nms.run(chunk, suppresses.as_ptr(), found.as_mut_ptr()) };
        }
        let mut want = Vec::new();
        for r in 0..rows {
            for j in 0..len {
                let is_hit = |i: usize| want[r * len + i] == 1 && suppresses[(r * len + i) * len + j] == 1;
                let hit = (0..j).any(is_hit);
                want.push(u8::from(!hit));
            }
        }
        prop_assert_eq!(found, want, "{:?}", nms);
    }
}
