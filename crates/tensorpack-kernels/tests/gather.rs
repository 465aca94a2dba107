//! Tests of `Concat` and `GatherScatter` against scalar reference code.

use super::oracle::{self, Memory, TestRng, isas, unflatten};
use proptest::prelude::*;
use tensorpack_kernels::{Concat, GatherScatter};
use tensorpack_tensor::DType;

fn descriptors() -> impl Strategy<Value = GatherScatter> {
    let sizes = prop_oneof![
        4 => (0usize..4, 0usize..6, 0usize..9, 0usize..12),
        1 => (1usize..3, 1usize..400, 1usize..400, 1usize..200),
        1 => (1usize..3, 1usize..3, 30_000usize..80_000, 1usize..4),
        1 => (1usize..3, 10_000usize..80_000, 1usize..3, 1usize..500),
    ];
    (sizes, any::<bool>()).prop_map(|((batch, rows, width, count), shared)| GatherScatter {
        batch,
        rows,
        width,
        count,
        shared,
    })
}

/// Returns a small size or, one time in `odds`, a size below `large`.
fn random_size(rng: &mut TestRng, odds: usize, large: usize) -> usize {
    if rng.chance(odds) { rng.below(large) } else { rng.below(6) }
}

/// Returns random indices, sometimes with one out of range, and the position of the first such
/// index.
fn indices(rng: &mut TestRng, l: &GatherScatter) -> (Vec<i64>, Option<usize>) {
    let n = if l.shared { l.count } else { l.batch * l.count };
    let mut all: Vec<i64> = (0..n).map(|_| rng.below(l.rows.max(1)) as i64).collect();
    if n > 0 && rng.chance(4) {
        all[rng.below(n)] = if rng.chance(2) { -1 } else { l.rows as i64 };
    }
    let bad = all.iter().position(|&i| i < 0 || i >= l.rows as i64).filter(|_| l.batch > 0);
    (all, bad)
}

proptest! {
    #![proptest_config(oracle::cases(200))]

    #[test]
    fn concat_matches_the_reference(seed: u64, log in 0usize..4) {
        let mut rng = TestRng::new(seed);
        let (size, rank) = (1usize << log, 1 + rng.below(3));
        let axis = rng.below(rank);
        let mut dims: Vec<usize> = (0..rank).map(|_| random_size(&mut rng, 4, 200)).collect();
        let parts: Vec<(Vec<usize>, Vec<isize>, Memory)> = (0..1 + rng.below(4))
            .map(|_| {
                dims[axis] = random_size(&mut rng, 3, 90);
                // Rows or columns first.
                let mut strides = vec![1isize; rank];
                let backwards = rng.chance(2);
                for i in 1..rank {
                    let (d, inner) = if backwards { (i, i - 1) } else { (rank - 1 - i, rank - i) };
                    strides[d] = strides[inner] * dims[inner].max(1) as isize;
                }
                let mut memory = Memory::new(dims.iter().product::<usize>() * size);
                memory.bytes_mut().iter_mut().for_each(|b| *b = rng.below(256) as u8);
                (dims.clone(), strides, memory)
            })
            .collect();
        let sources: Vec<(&[usize], &[isize])> = parts.iter().map(|(d, s, _)| (&d[..], &s[..])).collect();
        let concat = Concat::new(size, axis, &sources);
        let mut out = dims.clone();
        out[axis] = parts.iter().map(|(d, ..)| d[axis]).sum();
        let mut want = vec![0xFFu8; out.iter().product::<usize>() * size];
        let mut ahead = 0;
        for (dims, strides, memory) in &parts {
            for at in 0..dims.iter().product() {
                let index = unflatten(dims, at);
                let from: usize = index.iter().zip(strides).map(|(&i, &s)| i * s as usize).sum();
                let to = (0..rank).fold(0, |a, d| a * out[d] + index[d] + if d == axis { ahead } else { 0 });
                want[to * size..][..size].copy_from_slice(&memory.bytes()[from * size..][..size]);
            }
            ahead += dims[axis];
        }
        let pointers: Vec<*const u8> = parts.iter().map(|(.., m)| m.ptr()).collect();
        for isa in isas() {
            let mut dst = Memory::new(want.len());
            for chunk in (0..concat.chunks()).rev() {
                // SAFETY: the buffers have the sizes of the descriptor.
                unsafe { concat.run(isa, chunk, &pointers, dst.ptr_mut()) };
            }
            prop_assert!(dst.bytes() == want, "{isa}: {sources:?} along {axis}");
        }
    }

    #[test]
    fn gather_matches_the_reference(l in descriptors(), seed: u64, log in 0usize..4) {
        let mut rng = TestRng::new(seed);
        let size = 1 << log;
        let (indices, bad) = indices(&mut rng, &l);
        let mut tables = Memory::new(l.batch * l.rows * l.width * size);
        tables.bytes_mut().iter_mut().for_each(|b| *b = rng.below(256) as u8);
        let row = l.width * size;
        let mut want = vec![0xFFu8; l.batch * l.count * row];
        for item in 0..l.batch * l.count {
            let (b, k) = (item / l.count, item % l.count);
            let index = indices[if l.shared { k } else { item }];
            if (0..l.rows as i64).contains(&index) {
                let from = (b * l.rows + index as usize) * row;
                want[item * row..][..row].copy_from_slice(&tables.bytes()[from..][..row]);
            }
        }
        let mut out = Memory::new(want.len());
        let mut found = None;
        for chunk in 0..l.gather_chunks() {
            // SAFETY: the buffers have the sizes of the descriptor.
            let b = unsafe { l.gather(size, chunk, tables.ptr(), indices.as_ptr(), out.ptr_mut()) };
            found = found.into_iter().chain(b).min();
        }
        prop_assert!(out.bytes() == want, "{l:?}");
        prop_assert_eq!(found, bad);
    }

    #[test]
    fn scatter_add_matches_the_reference_in_order(l in descriptors(), seed: u64, float: bool) {
        let mut rng = TestRng::new(seed);
        let dtype = if float { DType::F32 } else { DType::I32 };
        let (indices, bad) = indices(&mut rng, &l);
        let n = l.batch * l.count * l.width;
        let mut updates = Memory::new(n * 4);
        let mut values = vec![0.0f32; n];
        for (i, v) in values.iter_mut().enumerate() {
            // Thirds of integers: their sums depend on the order.
            *v = if float { (rng.below(2000) as f32 - 1000.0) / 3.0 } else { rng.below(2000) as f32 - 1000.0 };
            updates.set(dtype, i, oracle::Scalar::F((*v).into()));
        }
        let mut want = vec![0.0f32; l.batch * l.rows * l.width];
        for item in 0..l.batch * l.count {
            let (b, k) = (item / l.count, item % l.count);
            let index = indices[if l.shared { k } else { item }];
            if (0..l.rows as i64).contains(&index) {
                for c in 0..l.width {
                    want[(b * l.rows + index as usize) * l.width + c] += values[item * l.width + c];
                }
            }
        }
        for isa in isas() {
            let mut out = Memory::new(want.len() * 4);
            let mut found = None;
            for chunk in (0..l.scatter_chunks()).rev() {
                // SAFETY: the buffers have the sizes of the descriptor.
                let b = unsafe {
                    l.scatter_add(isa, dtype, chunk, updates.ptr(), indices.as_ptr(), out.ptr_mut())
                };
                found = found.into_iter().chain(b).min();
            }
            for (i, w) in want.iter().enumerate() {
                prop_assert_eq!(out.get(dtype, i).f(), f64::from(*w), "{} {:?} at {}", isa, l, i);
            }
            prop_assert_eq!(found, bad);
        }
    }
}
