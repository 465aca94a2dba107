//! Reductions over the same iteration space share a pass where possible.

use super::barrier::same_without_fusion;
use super::graph_builder::{for_random_graphs, sizes};
use tensorpack::DType;
use tensorpack::graph::Tensor;

#[test]
fn reductions_of_one_space_are_the_same() {
    for_random_graphs("reductions", 200, |choices| {
        same_without_fusion(choices, |b, c| {
            let dtype = c.pick(&[
                DType::F32,
                DType::F32,
                DType::F64,
                DType::I64,
                DType::I32,
                DType::Bf16,
                DType::F16,
            ]);
            let shape: Vec<usize> = (0..2 + c.below(2)).map(|_| c.pick(&[3, 4, 1, 2, 17, 4])).collect();
            let rank = shape.len();
            let mut seen: Vec<Tensor> = Vec::new();
            for _ in 0..2 {
                let x = b.feed(&shape, dtype);
                let x = match c.below(4) {
                    0 => x.reverse(&[c.below(rank) as isize]),
                    1 if shape.iter().all(|&n| n == shape[0]) => x.transpose(&c.permutation(rank)),
                    2 => x.sum_keep(&[0]).cast(dtype).broadcast_like(&x),
                    _ => x,
                };
                seen.push(b.stored(x));
            }
            let axes: Vec<isize> = (0..rank as isize).filter(|_| c.below(2) == 0).collect();
            let axes = if axes.is_empty() { vec![0] } else { axes };
            let mut outputs: Vec<Tensor> = Vec::new();
            for _ in 0..2 + c.below(5) {
                let x = seen[c.below(seen.len())].clone();
                let x = match c.below(5) {
                    0 => &x * &seen[0],
                    1 => x.abs(),
                    2 => x.cast(c.pick(&[DType::F32, DType::F64, DType::I64])),
                    _ => x,
                };
                let x = b.stored(x);
                let made = match c.below(8) {
                    0 | 1 => x.sum_axes(&axes),
                    2 => x.max_axes(&axes),
                    3 => x.min_axes(&axes),
                    4 if x.dtype().is_float() => {
                        let (mean, variance) = x.moments(&axes);
                        outputs.push(b.stored(mean));
                        variance
                    }
                    5 => x.argmax(axes[0]),
                    6 => x.prod_axes(&axes),
                    _ => x.sum_keep(&axes),
                };
                let made = b.stored(made);
                // A later one may need an earlier one.
                if sizes(&made).len() == rank && made.dtype() == dtype && c.below(2) == 0 {
                    seen.push(b.stored(&seen[0] - &made));
                }
                outputs.push(made);
            }
            outputs
        })
    });
}
