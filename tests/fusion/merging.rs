//! Equal operations on equal inputs are computed once; operations on inputs that are merely similar
//! are not merged.

use super::barrier::same_without_fusion;
use super::graph_builder::{for_random_graphs, sizes};
use tensorpack::DType;
use tensorpack::graph::Tensor;

#[test]
fn only_equal_operations_are_merged() {
    for_random_graphs("merging", 150, |choices| {
        same_without_fusion(choices, |b, c| {
            let dtype = c.pick(&[DType::F32, DType::F64]);
            let n = c.pick(&[3, 1, 4]);
            let x = b.feed(&[2 * n, n], dtype);
            let half = |k: usize| x.strided_slice(&[k * n, 0], &[Some(k * n + n), None], &[1, 1]);
            // Views of one buffer and of one size: other offsets, orders and strides.
            let mut seen: Vec<Tensor> = Vec::new();
            for _ in 0..3 + c.below(5) {
                let view = half(c.below(2));
                let view = match c.below(6) {
                    0 => view.transpose(&[1, 0]),
                    1 => view.reverse(&[c.below(2) as isize]),
                    2 => view.sum_keep(&[c.below(2) as isize]).broadcast_like(&view),
                    3 => x.strided_slice(&[0, 0], &[None, None], &[2, 1]),
                    _ => view,
                };
                seen.push(b.stored(view));
            }
            let like: Vec<Tensor> =
                [vec![n * n], vec![n, 1, n], vec![2, n, n]].iter().map(|s| b.feed(s, dtype)).collect();
            let (kind, axis) = (c.below(6), c.below(2) as isize);
            let mut outputs = Vec::new();
            for x in &seen {
                // Mostly the same operation, so that results differ only by their views.
                let kind = if c.below(4) == 0 { c.below(6) } else { kind };
                let y = match kind {
                    0 => x.exp(),
                    1 => x.cumsum(axis),
                    2 => x.matmul(&seen[0]),
                    3 => x.sum_axes(&[axis]),
                    4 => {
                        let like = &like[c.below(3)];
                        if sizes(like).len() == 3 && sizes(like)[0] == 2 {
                            x.broadcast_like(like)
                        } else {
                            x.reshape_like(like)
                        }
                    }
                    _ => x.pad(&[1, 0], &[0, 1], &[0, 0]),
                };
                outputs.push(b.stored(y.tanh()));
            }
            outputs
        })
    });
}
