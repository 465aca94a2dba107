//! Tests of `Copy` and `Pad` against scalar reference code.

use super::oracle::{self, Memory, TestRng, isas, unflatten};
use proptest::prelude::*;
use tensorpack_kernels::{Copy, Pad};

fn dims() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        4 => prop::collection::vec(0usize..7, 0..5),
        2 => prop::collection::vec(1usize..70, 1..4),
        1 => (1usize..300, 1usize..300).prop_map(|(a, b)| vec![a, b]),
        1 => (1usize..100_000).prop_map(|a| vec![a]),
    ]
}

/// Returns the strides of a layout with the dimensions in random order, possibly with gaps,
/// reversed or (if allowed) broadcast; the number of elements it spans; and the offset of the first
/// index.
fn layout(rng: &mut TestRng, dims: &[usize], repeats: bool) -> (Vec<isize>, usize, usize) {
    let mut order: Vec<usize> = (0..dims.len()).collect();
    if rng.chance(2) {
        (1..dims.len()).rev().for_each(|i| order.swap(i, rng.below(i + 1)));
    }
    let (mut strides, mut step, mut start) = (vec![0; dims.len()], 1, 0);
    if rng.chance(4) {
        step = 2;
    }
    for &d in order.iter().rev() {
        if repeats && rng.chance(5) {
            continue;
        }
        strides[d] = step as isize;
        if rng.chance(8) {
            strides[d] = -strides[d];
            start += step * dims[d].saturating_sub(1);
        }
        step *= dims[d].max(1);
        if rng.chance(8) {
            step += 3;
        }
    }
    (strides, step, start)
}

fn offset(start: usize, index: &[usize], strides: &[isize]) -> usize {
    (start as isize + index.iter().zip(strides).map(|(&i, &s)| i as isize * s).sum::<isize>()) as usize
}

proptest! {
    #![proptest_config(oracle::cases(400))]

    #[test]
    fn copies_every_element(dims in dims(), seed: u64, log in 0usize..4) {
        let mut rng = TestRng::new(seed);
        let (size, len) = (1 << log, dims.iter().product::<usize>());
        let (from, src_len, src_start) = layout(&mut rng, &dims, true);
        let (to, dst_len, dst_start) = layout(&mut rng, &dims, false);
        let mut src = Memory::new(src_len * size);
        src.bytes_mut().iter_mut().for_each(|b| *b = rng.below(256) as u8);
        let copy = Copy::new(&dims, size, &from, &to);
        let mut want = Memory::new(dst_len * size);
        for at in 0..len {
            let index = unflatten(&dims, at);
            let (s, d) = (offset(src_start, &index, &from), offset(dst_start, &index, &to));
            want.bytes_mut()[d * size..][..size].copy_from_slice(&src.bytes()[s * size..][..size]);
        }
        for isa in isas() {
            let mut dst = Memory::new(dst_len * size);
            for chunk in (0..copy.chunks()).rev() {
                let s = src.ptr().wrapping_add(src_start * size);
                let d = dst.ptr_mut().wrapping_add(dst_start * size);
                // SAFETY: the memory covers every element that the strides reach.
                unsafe { copy.run(isa, chunk, s, d) };
            }
            prop_assert!(want.bytes() == dst.bytes(), "{isa}, {dims:?} {from:?} to {to:?}");
        }
    }

    #[test]
    fn pads_with_zeros(dims in dims(), seed: u64, log in 0usize..4) {
        let mut rng = TestRng::new(seed);
        let size = 1 << log;
        let (strides, src_len, start) = layout(&mut rng, &dims, true);
        let mut src = Memory::new(src_len * size);
        src.bytes_mut().iter_mut().for_each(|b| *b = rng.below(256) as u8);
        let mut some = |odds| -> Vec<usize> { dims.iter().map(|_| if rng.chance(odds) { rng.below(4) } else { 0 }).collect() };
        let (low, high, interior) = (some(2), some(2), some(4));
        let pad = Pad::new(&dims, size, &strides, &low, &high, &interior);
        let out: Vec<usize> = (0..dims.len())
            .map(|d| low[d] + dims[d] + dims[d].saturating_sub(1) * interior[d] + high[d])
            .collect();
        prop_assert_eq!(pad.out_dims(), &out[..]);
        let len: usize = out.iter().product();
        let mut want = vec![0u8; len * size];
        for at in 0..dims.iter().product() {
            let index = unflatten(&dims, at);
            let to = (0..dims.len()).fold(0, |a, d| a * out[d] + low[d] + index[d] * (interior[d] + 1));
            let from = offset(start, &index, &strides);
            want[to * size..][..size].copy_from_slice(&src.bytes()[from * size..][..size]);
        }
        for isa in isas() {
            let mut dst = Memory::new(len * size);
            for chunk in (0..pad.chunks()).rev() {
                // SAFETY: the memory covers every element that the strides reach, and the output.
                unsafe { pad.run(isa, chunk, src.ptr().wrapping_add(start * size), dst.ptr_mut()) };
            }
            prop_assert!(dst.bytes() == want, "{isa}, {dims:?} {low:?} {high:?} {interior:?}");
        }
    }
}
