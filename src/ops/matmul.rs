//! Matrix products.

use crate::graph::{Autocast, GradCx, OpDef, Spec, Tensor};
use crate::kir::{self, ContractKind, LowerCx, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx};
use serde::{Deserialize, Serialize};
use tensorpack_tensor::{Dim, Error, Result, element_count};

/// The matrix product over the last two dims, for every index of the leading ones. Both inputs have
/// the same leading dims, or one of them is a plain matrix.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct MatMul;
crate::exported!(MatMul, 2..=2);

impl OpDef for MatMul {
    fn name(&self) -> &str {
        "MatMul"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let (a, b) = (&inputs[0], &inputs[1]);
        super::float_input(a)?;
        if a.dtype != b.dtype {
            return Err(Error::dtype(format!("element types {} and {} differ", a.dtype, b.dtype)));
        }
        let (ra, rb) = (a.shape.rank(), b.shape.rank());
        if ra < 2 || rb < 2 {
            return Err(Error::shape(format!("expected matrices, got {} and {}", a.shape, b.shape)));
        }
        let (inner_a, inner_b) = (a.shape[ra - 1], b.shape[rb - 2]);
        if let (Dim::Known(x), Dim::Known(y)) = (inner_a, inner_b)
            && x != y
        {
            return Err(Error::shape(format!(
                "the inner sizes {x} and {y} of {} and {} differ",
                a.shape, b.shape
            )));
        }
        let leading = match (&a.shape[..ra - 2], &b.shape[..rb - 2]) {
            (l, []) | ([], l) => l.to_vec(),
            (l, r) if l.len() == r.len() => l
                .iter()
                .zip(r)
                .map(|(&x, &y)| match (x, y) {
                    (Dim::Known(x), Dim::Known(y)) if x != y => {
                        Err(Error::shape(format!("the leading sizes of {} and {} differ", a.shape, b.shape)))
                    }
                    (Dim::Known(_), _) => Ok(x),
                    _ => Ok(y),
                })
                .collect::<Result<Vec<Dim>>>()?,
            _ => return Err(Error::shape(format!("the leading dims of {} and {} differ", a.shape, b.shape))),
        };
        let dims: Vec<Dim> = leading.into_iter().chain([a.shape[ra - 2], b.shape[rb - 1]]).collect();
        Ok(vec![Spec { dtype: a.dtype, shape: dims.into() }])
    }

    fn autocast(&self, _i: usize) -> Autocast {
        Autocast::Narrow
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let (a, b, dy) = (cx.input(0), cx.input(1), cx.dy());
        let da = || match a.rank() < dy.rank() {
            // One matrix is multiplied by many: its gradient is the sum over all of them, which is
            // one product.
            true => (0..dy.rank() - a.rank()).fold(dy.matmul(&b.matrix_transpose()), |t, _| t.sum_axes(&[0])),
            false => dy.matmul(&b.matrix_transpose()),
        };
        let db = || match b.rank() < dy.rank() {
            true => a.as_matrix().matrix_transpose().matmul(&dy.as_matrix()),
            false => a.matrix_transpose().matmul(dy),
        };
        Ok(vec![cx.needs(0).then(da), cx.needs(1).then(db)])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (a, b, out) = (cx.input(0), cx.input(1), cx.output_sizes(0));
        let (a, lhs_transposed) = untransposed(cx, &a);
        let (b, rhs_transposed) = untransposed(cx, &b);
        let [m, n] = [out[out.len() - 2], out[out.len() - 1]];
        let k = cx.input_sizes(0)[cx.input_sizes(0).len() - 1];
        let batch = element_count(&out[..out.len() - 2])?;
        let (lhs_shared, rhs_shared) = (a.sizes.len() < out.len(), b.sizes.len() < out.len());
        // Many matrices times one matrix are a single product of all their rows.
        let (batch, m) =
            if rhs_shared && !lhs_transposed { (1, element_count(&[batch, m])?) } else { (batch, m) };
        let kind = kir::MatMul { batch, m, n, k, lhs_transposed, rhs_transposed, lhs_shared, rhs_shared };
        Ok(vec![cx.contract(ContractKind::MatMul(kind), &a, &b)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let (a, b) = (cx.input(0), cx.input(1));
        let inner = a.sizes()[a.sizes().len() - 1];
        Ok(cx.float_output(|i| {
            let (leading, at) = i.split_at(i.len() - 2);
            // A plain matrix has no leading dims.
            let of = |m: &Array, row: usize, column: usize| match m.sizes().len() {
                2 => m.float(&[row, column]),
                _ => m.float(&[leading, &[row, column]].concat()),
            };
            cx.sum((0..inner).map(|k| of(a, at[0], k) * of(b, k, at[1])))
        }))
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let (dtype, shape) = (cx.output_dtype(0), cx.output_shape(0).clone());
        Ok(vec![cx.node("MatMul", &[&cx.input(0), &cx.input(1)], &[], dtype, shape)?])
    }
}

/// Reads a view whose last two dims are swapped in its memory order, and returns true for the
/// kernel to transpose it.
fn untransposed(cx: &mut LowerCx<'_>, view: &View) -> (View, bool) {
    let mut order: Vec<usize> = (0..view.sizes.len()).collect();
    let n = order.len();
    order.swap(n - 2, n - 1);
    let swapped = view.permute(&order);
    match !view.is_dense() && swapped.is_dense() {
        true => (swapped, true),
        false => (cx.dense(view), false),
    }
}

impl Tensor {
    /// Returns the matrix product over the last two dims. Both tensors have the same leading dims,
    /// or one of them is a plain matrix.
    #[track_caller]
    pub fn matmul(&self, other: &Tensor) -> Tensor {
        Tensor::apply_one(MatMul, &[self, other])
    }
}

#[cfg(test)]
mod tests {
    use crate::op_cases::*;

    cases![
        case("MatMul", Twice, |draw| {
            let mut size = || draw.pick(&[1, 2, 3, 5, 0, 8, 17]);
            let [m, k, n, b] = [size(), size(), size(), size()];
            let (a, c) = match draw.below(5) {
                1 => (vec![b, m, k], vec![k, n]),
                2 => (vec![m, k], vec![b, k, n]),
                3 => (vec![b, m, k], vec![b, k, n]),
                4 => (vec![2, b, m, k], vec![2, b, k, n]),
                _ => (vec![m, k], vec![k, n]),
            };
            let inputs = vec![Input::floats(draw, a, Any), Input::floats(draw, c, Any)];
            Trial::new(inputs, |x| vec![x[0].matmul(&x[1])])
        })
        .empty("x.matmul(y)", "[0, 3], [3, 4]", "empty [0, 4]", |x| x[0].matmul(&x[1]))
        .empty("x.matmul(y)", "[2, 0], [0, 4]", "zeros [2, 4]", |x| x[0].matmul(&x[1]))
        .empty("x.matmul(y)", "[2, 3], [3, 0]", "empty [2, 0]", |x| x[0].matmul(&x[1]))
        .empty("x.matmul(y)", "[0, 2, 3], [3, 4]", "empty [0, 2, 4]", |x| x[0].matmul(&x[1]))
        .empty("x.matmul(y)", "[2, 3], [0, 3, 4]", "empty [0, 2, 4]", |x| x[0].matmul(&x[1])),
        case("MatMul and epilogue", Twice, |draw| {
            let mut size = || draw.pick(&[1, 2, 3, 5, 0, 8, 17]);
            let [m, k, n] = [size(), size(), size()];
            let inputs = vec![
                Input::floats(draw, [m, k], Any),
                Input::floats(draw, [k, n], Any),
                Input::floats(draw, [n], Any),
            ];
            Trial::new(inputs, |x| vec![(x[0].matmul(&x[1]) + &x[2]).tanh()])
        }),
    ];
}
