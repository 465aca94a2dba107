//! Tests of `Pool` against the definition of pooling.

use super::oracle::{self, Memory, Scalar, TestRng, isas};
use proptest::prelude::*;
use tensorpack_kernels::Pool;
use tensorpack_tensor::DType;

fn pools() -> impl Strategy<Value = Pool> {
    let pair = |r: std::ops::Range<usize>| [r.clone(), r];
    (0usize..3, pair(1..9), 1usize..40, pair(1..5), pair(1..5), pair(0..4), pair(0..6)).prop_map(
        |(batch, in_size, channels, window, stride, pad_low, out_size)| Pool {
            batch,
            in_size,
            channels,
            window,
            stride,
            pad_low,
            out_size,
        },
    )
}

/// Returns the elements of an output's window inside the input: position in the window, and in the
/// input.
fn window(p: &Pool, n: usize, oh: usize, ow: usize, c: usize) -> Vec<(usize, usize)> {
    let mut elements = Vec::new();
    for kh in 0..p.window[0] {
        for kw in 0..p.window[1] {
            let h = (oh * p.stride[0] + kh).checked_sub(p.pad_low[0]).filter(|&h| h < p.in_size[0]);
            let w = (ow * p.stride[1] + kw).checked_sub(p.pad_low[1]).filter(|&w| w < p.in_size[1]);
            if let (Some(h), Some(w)) = (h, w) {
                let at = ((n * p.in_size[0] + h) * p.in_size[1] + w) * p.channels + c;
                elements.push((kh * p.window[1] + kw, at));
            }
        }
    }
    elements
}

proptest! {
    #![proptest_config(oracle::cases(300))]

    #[test]
    fn matches_the_definition(p in pools(), seed: u64) {
        let mut rng = TestRng::new(seed);
        let inputs = p.batch * p.in_size[0] * p.in_size[1] * p.channels;
        let outputs = p.batch * p.out_size[0] * p.out_size[1] * p.channels;
        for (dtype, limit) in [(DType::F32, 1e-5), (DType::F64, 1e-13)] {
            let size = dtype.size();
            let mut x = rng.fill(dtype, inputs);
            // Ties, of which the first must win; sums of small integers are exact.
            let mut dy = Memory::new(outputs * size);
            (0..outputs).for_each(|i| dy.set(dtype, i, Scalar::F(rng.below(9) as f64 - 4.0)));
            (0..inputs).for_each(|i| if rng.chance(2) { x.set(dtype, i, Scalar::F(1.0)) });
            let mut finite = x.clone();
            (0..inputs).filter(|&i| !x.get(dtype, i).f().is_finite()).for_each(|i| finite.set(dtype, i, Scalar::F(2.0)));
            for isa in isas() {
                let [mut y, mut picked, mut mean] = [0; 3].map(|_| Memory::new(outputs * size));
                let [mut dx, mut da] = [0; 2].map(|_| Memory::new(inputs * size));
                let mut index = Memory::new(outputs);
                // SAFETY: the buffers have the sizes of the descriptor.
                unsafe {
                    for chunk in (0..p.chunks()).rev() {
                        p.max(isa, dtype, chunk, x.ptr(), y.ptr_mut(), index.ptr_mut());
                        p.max_pick(isa, dtype, chunk, x.ptr(), index.ptr(), picked.ptr_mut());
                        p.average(isa, dtype, chunk, finite.ptr(), mean.ptr_mut());
                    }
                    for chunk in (0..p.in_chunks()).rev() {
                        p.max_grad(isa, dtype, chunk, dy.ptr(), index.ptr(), dx.ptr_mut());
                        p.average_grad(isa, dtype, chunk, dy.ptr(), da.ptr_mut());
                    }
                }
                let (mut want_dx, mut want_da) = (vec![0.0; inputs], vec![0.0; inputs]);
                for o in 0..outputs {
                    let at = oracle::unflatten(&[p.batch, p.out_size[0], p.out_size[1], p.channels], o);
                    let elements = window(&p, at[0], at[1], at[2], at[3]);
                    let g = dy.get(dtype, o).f();
                    let mut best: Option<(usize, usize)> = None;
                    for &(k, e) in &elements {
                        let (v, b) = (x.get(dtype, e).f(), best.map(|(_, e)| x.get(dtype, e).f()));
                        if b.is_none_or(|b| v > b || v.is_nan() && !b.is_nan()) {
                            best = Some((k, e));
                        }
                        want_da[e] += g / elements.len() as f64;
                    }
                    match best {
                        Some((k, e)) => {
                            prop_assert!(x.get(dtype, e).same(y.get(dtype, o)), "{isa} max at {at:?}");
                            prop_assert!(x.get(dtype, e).same(picked.get(dtype, o)), "{isa} pick at {at:?}");
                            prop_assert_eq!(index.get(DType::U8, o).i(), k as i64);
                            want_dx[e] += g;
                        }
                        None => {
                            prop_assert!(y.get(dtype, o).same(Scalar::F(f64::NEG_INFINITY)));
                            prop_assert!(picked.get(dtype, o).same(Scalar::F(0.0)));
                        }
                    }
                    let sum: f64 = elements.iter().map(|&(_, e)| finite.get(dtype, e).f()).sum();
                    let size: f64 = elements.iter().map(|&(_, e)| finite.get(dtype, e).f().abs()).sum();
                    let n = elements.len().max(1) as f64;
                    let off = (mean.get(dtype, o).f() - sum / n).abs();
                    prop_assert!(off <= limit * size, "{isa} average at {at:?}");
                }
                for i in 0..inputs {
                    prop_assert_eq!(dx.get(dtype, i).f(), want_dx[i], "{} max_grad", isa);
                    let off = (da.get(dtype, i).f() - want_da[i]).abs();
                    prop_assert!(off <= limit * 100.0, "{isa} average_grad");
                }
            }
        }
    }
}
