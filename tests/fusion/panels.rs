//! Weights prepacked once for many small products: whole, sliced, transposed, and read in two ways.

use super::barrier::same_without_fusion;
use super::graph_builder::for_random_graphs;
use tensorpack::DType;

#[test]
fn products_with_shared_weights_are_the_same() {
    for_random_graphs("panels", 6, |choices| {
        same_without_fusion(choices, |b, c| {
            // Large enough for panels, but not a multiple of their columns.
            let (k, n) = c.pick(&[(256, 263), (263, 256)]);
            let rows = c.pick(&[1, 3, 8]);
            let all = b.feed(&[2, k, n], DType::F32);
            let weights = all.strided_slice(&[1, 0, 0], &[None; 3], &[1; 3]).squeeze(0);
            let weights = match c.below(3) {
                0 => b.feed(&[n, k], DType::F32).matrix_transpose(),
                1 => weights,
                _ => b.feed(&[k, n], DType::F32),
            };
            let mut outputs = Vec::new();
            for i in 0..8 {
                let x = b.feed(&[rows, k], DType::F32);
                let y = match (i, c.below(3)) {
                    // The same elements as a different matrix, which needs separate panels.
                    (6.., _) => {
                        let x = b.feed(&[rows, n], DType::F32);
                        x.matmul(&b.stored(weights.reshape(&[n as isize, k as isize])))
                    }
                    (_, 0) => {
                        let x = b.feed(&[2, rows, k], DType::F32);
                        x.matmul(&weights).sum_axes(&[0])
                    }
                    (_, 1) => b.feed(&[k, rows], DType::F32).matrix_transpose().matmul(&weights),
                    _ => x.matmul(&weights).relu(),
                };
                outputs.push(b.stored(y));
            }
            outputs
        })
    });
}
