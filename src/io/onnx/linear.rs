//! Products of matrices.

use super::node_cx::{NodeCx, one};
use super::value::Value;
use crate::graph::Tensor;
use tensorpack_tensor::{Dim, Result};

pub(super) fn matmul(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let (ra, rb) = (cx.rank(0), cx.rank(1));
    if ra == 0 || rb == 0 {
        return Err(cx.unsupported("the product of a scalar"));
    }
    let [mut a, mut b] = [cx.weight(0)?, cx.weight(1)?];
    // A vector is a row on the left and a column on the right.
    if ra == 1 {
        a = a.expand_dims(0);
    }
    if rb == 1 {
        b = b.expand_dims(1);
    }
    let mut y = batched(&a, &b);
    if rb == 1 {
        y = y.squeeze(-1);
    }
    if ra == 1 {
        y = y.squeeze(if rb == 1 { -1 } else { -2 });
    }
    one(y)
}

/// Multiplies matrices, with broadcasting of the leading dims.
fn batched(a: &Tensor, b: &Tensor) -> Tensor {
    let (ra, rb) = (a.rank(), b.rank());
    if ra == 2 || rb == 2 {
        return a.matmul(b);
    }
    let rank = ra.max(rb);
    let full = |x: &Tensor| (x.rank()..rank).fold(x.clone(), |x, _| x.expand_dims(0));
    let (a, b) = (full(a), full(b));
    let same = |i: usize| match (a.shape()[i], b.shape()[i]) {
        (Dim::Known(1), other) | (other, Dim::Known(1)) => other == Dim::Known(1),
        _ => true,
    };
    if (0..rank - 2).all(same) {
        return a.matmul(&b);
    }
    // Only the shape of the sum is used.
    let leading = a.sum_keep(&[-2, -1]) + b.sum_keep(&[-2, -1]);
    let spread = |x: &Tensor| x.broadcast_like(&(&leading + x));
    spread(&a).matmul(&spread(&b))
}

pub(super) fn gemm(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let node = cx.node;
    let (alpha, beta) = (node.float("alpha", 1.0)?, node.float("beta", 1.0)?);
    let order = |transposed: bool| if transposed { [1, 0] } else { [0, 1] };
    if cx.rank(0) != 2 || cx.rank(1) != 2 {
        return Err(cx.unsupported("a product of tensors that are not matrices"));
    }
    let a = cx.weight_as(0, &order(node.flag("transA")?))?;
    let b = cx.weight_as(1, &order(node.flag("transB")?))?;
    let mut y = a.matmul(&b);
    if alpha != 1.0 {
        y = y * alpha;
    }
    if cx.has(2) {
        let c = cx.operand(2)?;
        y = y + if beta == 1.0 { c } else { c * beta };
    }
    one(y)
}

pub(super) fn einsum(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>> {
    let equation: String = cx.node.text("equation", "")?.chars().filter(|c| !c.is_whitespace()).collect();
    if equation.contains("...") {
        return Err(cx.unsupported("an ellipsis in the equation"));
    }
    let inputs = (0..cx.inputs.len()).map(|i| cx.weight(i)).collect::<Result<Vec<Tensor>>>()?;
    let equation = match equation.contains("->") {
        true => equation,
        false => {
            // Without an output, it has the labels that occur once, in alphabetical order.
            let mut labels: Vec<char> = equation.chars().filter(|c| *c != ',').collect();
            labels.sort_unstable();
            let single = |c: &&char| labels.iter().filter(|l| l == c).count() == 1;
            format!("{equation}->{}", labels.iter().filter(single).collect::<String>())
        }
    };
    one(cx.graph().einsum(&equation, &inputs))
}
