//! Maps read through views: a map is fused into its reader through every kind of view, or stored.

use super::barrier::{Building, same_without_fusion};
use super::graph_builder::{Choices, for_random_graphs, sizes};
use tensorpack::DType;
use tensorpack::graph::Tensor;

/// An operand of a map over `want`: dense, transposed, reversed, sliced, broadcast, or an index.
fn operand(b: &mut Building, want: &[usize], dtype: DType, c: &mut Choices<'_>) -> Tensor {
    let rank = want.len();
    match c.below(7) {
        0 => {
            let order = c.permutation(rank);
            let mut turned = vec![0; rank];
            order.iter().zip(want).for_each(|(&to, &n)| turned[to] = n);
            b.feed(&turned, dtype).transpose(&order)
        }
        1 => b.feed(want, dtype).reverse(&[c.below(rank) as isize]),
        2 => {
            let larger: Vec<usize> = want.iter().map(|n| 2 * n + 1).collect();
            b.feed(&larger, dtype).strided_slice(&vec![1; rank], &vec![None; rank], &vec![2; rank])
        }
        3 | 4 => {
            let some: Vec<usize> = want.iter().map(|&n| if c.below(2) == 0 { n } else { 1 }).collect();
            b.feed(&some, dtype)
        }
        5 => b.feed(want, dtype).iota_like(c.below(rank) as isize, dtype),
        _ => b.feed(want, dtype),
    }
}

/// Returns the same elements, or some of them, permuted or reshaped.
fn viewed(x: &Tensor, c: &mut Choices<'_>) -> Tensor {
    let have = sizes(x);
    let rank = have.len();
    let n: isize = have.iter().product::<usize>() as isize;
    match c.below(9) {
        0 => x.transpose(&c.permutation(rank)),
        1 => x.reverse(&[c.below(rank) as isize]),
        2 => x.reshape(&[n]),
        3 => {
            let cut = c.below(rank + 1);
            let first: isize = have[..cut].iter().product::<usize>() as isize;
            x.reshape(&[first, n / first])
        }
        4 => {
            let axis = (0..rank).find(|&d| have[d].is_multiple_of(2)).unwrap_or(0);
            if have[axis].is_multiple_of(2) { x.split_dim(axis as isize, &[2, -1]) } else { x.expand_dims(0) }
        }
        5 => {
            // The same number of elements: half of them, repeated twice.
            let axis = (0..rank).find(|&d| have[d].is_multiple_of(2)).unwrap_or(0);
            if !have[axis].is_multiple_of(2) {
                return x.clone();
            }
            let mut from = vec![0; rank];
            from[axis] = have[axis] / 2;
            let half = x.strided_slice(&from, &vec![None; rank], &vec![1; rank]).expand_dims(0);
            let mut want: Vec<isize> = sizes(&half).iter().map(|&n| n as isize).collect();
            want[0] = 2;
            half.broadcast_to(&want)
        }
        6 => {
            let from: Vec<usize> = have.iter().map(|&n| c.below(n)).collect();
            x.strided_slice(&from, &vec![None; rank], &vec![1 + c.below(2); rank])
        }
        7 => x.reshape(&have.iter().rev().map(|&n| n as isize).collect::<Vec<_>>()),
        _ => x.clone(),
    }
}

#[test]
fn reads_through_views_do_not_change_results() {
    for_random_graphs("views", 400, |choices| {
        same_without_fusion(choices, |b, c| {
            let dtype = c.pick(&[DType::I64, DType::F32, DType::F64]);
            let shape: Vec<usize> = (0..1 + c.below(3)).map(|_| c.pick(&[4, 2, 3, 1, 6])).collect();
            let made =
                operand(b, &shape, dtype, c) + operand(b, &shape, dtype, c) * operand(b, &shape, dtype, c);
            let full = shape.iter().map(|&n| n as isize).collect::<Vec<_>>();
            let made = b.stored(made.broadcast_to(&full).abs());
            let mut outputs = Vec::new();
            for _ in 0..1 + c.below(2) {
                let mut seen = viewed(&made, c);
                if c.below(2) == 0 {
                    seen = viewed(&seen, c);
                }
                let seen = b.stored(seen);
                let want = sizes(&seen);
                let other = operand(b, &want, dtype, c);
                let read = b.stored(&seen - &other);
                outputs.push(match c.below(4) {
                    0 => read.sum_axes(&[c.below(want.len()) as isize]),
                    1 => b.stored(read.reshape(&[-1])).max_axes(&[0]),
                    _ => read,
                });
            }
            if c.below(4) == 0 {
                outputs.push(made);
            }
            outputs
        })
    });
}

/// A result reuses the memory of an operand that is not read later, unless the map itself reads
/// other elements of it later. Larger than the chunk of a thread.
#[test]
fn a_result_does_not_overwrite_values_that_are_read_later() {
    for_random_graphs("in place", 12, |choices| {
        same_without_fusion(choices, |b, c| {
            let shape = c.pick(&[[300, 300], [2, 45_000], [90_000, 1]]);
            let x = b.feed(&shape, DType::F32);
            // A temporary that no map can be fused into.
            let made = b.stored(b.graph.concat(&[&x, &x], 0));
            let rows = made.strided_slice(&[0, 0], &[Some(shape[0]), None], &[1, 1]);
            let (seen, again) = match c.below(5) {
                0 => (made.clone(), made.reverse(&[0])),
                1 => (made.clone(), made.reverse(&[0, 1])),
                2 => (made.clone(), b.graph.concat(&[&rows, &rows], 0)),
                3 => (rows.clone(), made.strided_slice(&[0, 0], &[None, None], &[2, 1])),
                _ if shape[0] == shape[1] => (rows.clone(), rows.transpose(&[1, 0])),
                _ => (made.clone(), made.sum_keep(&[0]).broadcast_like(&made)),
            };
            let (seen, again) = (b.stored(seen), b.stored(again));
            let once = &seen * 2.0 - &again;
            if c.below(2) == 0 { vec![once] } else { vec![once.relu(), b.stored(&again + 1.0)] }
        })
    });
}
