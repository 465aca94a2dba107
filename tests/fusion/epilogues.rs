//! Maps of a contraction's result, which become its epilogue where possible.

use super::barrier::{Building, same_without_fusion};
use super::graph_builder::{Choices, for_random_graphs, sizes};
use tensorpack::DType;
use tensorpack::autodiff::gradients;
use tensorpack::graph::Tensor;
use tensorpack::ops::{Conv2dOptions, Layout, Padding};

/// Returns a random contraction and its left operand.
fn contraction(b: &mut Building, c: &mut Choices<'_>, dtype: DType) -> (Tensor, Tensor) {
    let [m, k, n, batch] = [0; 4].map(|_| c.pick(&[3, 1, 4, 2, 17, 5]));
    let turned = |b: &mut Building, rows: usize, cols: usize, turn: bool| match turn {
        true => b.feed(&[cols, rows], dtype).matrix_transpose(),
        false => b.feed(&[rows, cols], dtype),
    };
    match c.below(9) {
        0 | 1 => {
            let (x, w) = (turned(b, m, k, c.below(2) == 1), turned(b, k, n, c.below(2) == 1));
            (x.matmul(&w), x)
        }
        2 => {
            let (x, w) = (b.feed(&[batch, m, k], dtype), b.feed(&[batch, k, n], dtype));
            (x.matmul(&w), x)
        }
        3 => {
            let (x, w) = (b.feed(&[batch, m, k], dtype), turned(b, k, n, c.below(2) == 1));
            (x.matmul(&w), x)
        }
        4 => {
            let x = b.feed(&[batch, m, k], dtype);
            let w = b.feed(&[k, n, 2], dtype);
            (b.graph.einsum(c.pick(&["abc,cde->abde", "abc,cde->deab", "abc,cde->ade"]), &[&x, &w]), x)
        }
        way => {
            let options = Conv2dOptions {
                stride: [1 + c.below(2); 2],
                padding: c.pick(&[Padding::Same, Padding::Valid]),
                layout: c.pick(&[Layout::Nhwc, Layout::Nchw]),
                groups: 1,
                dilation: [1; 2],
            };
            let (size, channels) = (c.pick(&[[4, 5], [3, 3], [1, 1], [8, 8]]), c.pick(&[1, 3, 16]));
            let image = match options.layout {
                Layout::Nhwc => [batch, size[0], size[1], channels],
                Layout::Nchw => [batch, channels, size[0], size[1]],
            };
            let window = if c.below(3) == 0 { size } else { [3.min(size[0]), 3.min(size[1])] };
            let x = b.feed(&image, dtype);
            let depthwise = c.below(4) == 0;
            let groups = if depthwise { channels } else { 1 };
            let out = if depthwise { channels } else { n };
            let w = b.feed(&[window[0], window[1], channels / groups, out], dtype);
            let options = Conv2dOptions { groups, ..options };
            let y = x.conv2d(&w, options);
            if way < 7 {
                return (y, x);
            }
            let found = gradients(&y.square().sum(), &[&x, &w]);
            match found.as_deref() {
                Ok([Some(dx), Some(dw)]) => (if way == 7 { dx.clone() } else { dw.clone() }, x),
                _ => (y, x),
            }
        }
    }
}

/// Returns a tensor that can be added to `y`: a scalar, one value per column or row, one per
/// element, or `y` itself.
fn operand(b: &mut Building, y: &Tensor, lhs: &Tensor, c: &mut Choices<'_>) -> Tensor {
    let (want, dtype) = (sizes(y), y.dtype());
    let rank = want.len();
    match c.below(9) {
        0 | 1 => b.feed(&want[rank.saturating_sub(1)..], dtype),
        2 => b.feed(&[], dtype),
        3 => {
            let some: Vec<usize> = want.iter().map(|&n| if c.below(2) == 0 { n } else { 1 }).collect();
            b.feed(&some, dtype)
        }
        4 => b.feed(&want, dtype).reverse(&[c.below(rank) as isize]),
        5 => {
            // A slice of a larger tensor: the right sizes, other strides, and an offset.
            let larger: Vec<usize> = want.iter().map(|n| n + 1).collect();
            let end: Vec<Option<usize>> = vec![None; rank];
            b.feed(&larger, dtype).strided_slice(&vec![1; rank], &end, &vec![1; rank])
        }
        6 => y.iota_like(c.below(rank) as isize, dtype) * 0.125,
        7 if sizes(lhs) == want => lhs.clone(),
        _ => {
            let order = c.permutation(rank);
            let turned = y.transpose(&order);
            if sizes(&turned) == want { turned } else { b.feed(&want, dtype) }
        }
    }
}

#[test]
fn epilogues_do_not_change_results() {
    for_random_graphs("epilogues", 300, |choices| {
        same_without_fusion(choices, |b, c| {
            let dtype = c.pick(&[DType::F32, DType::F32, DType::F32, DType::F64, DType::Bf16, DType::F16]);
            let (y, lhs) = contraction(b, c, dtype);
            let y = b.stored(y);
            let rank = y.rank();
            let y = match c.below(6) {
                0 => y.transpose(&c.permutation(rank)),
                1 => y.reshape(&[sizes(&y).iter().product::<usize>() as isize]),
                2 => y.expand_dims(c.below(rank + 1) as isize),
                _ => y,
            };
            let other = operand(b, &y, &lhs, c);
            let other = b.stored(other);
            let made = match c.below(8) {
                0 => &y + &other,
                1 => (&y + &other).relu(),
                2 => y.relu(),
                3 => &other - &y,
                4 => y.greater(&other).select(&y, &other),
                5 => &y * &y + &other,
                6 => (&other * &y).relu() + &other,
                _ => (&y + &other).tanh(),
            };
            let mut outputs = vec![match c.below(7) {
                0 => made.cast(DType::F64),
                1 => made.cast(DType::Bf16),
                2 => made.cast(DType::F16),
                _ => made,
            }];
            if c.below(4) == 0 {
                outputs.push(y.sum());
            }
            outputs
        })
    });
}
