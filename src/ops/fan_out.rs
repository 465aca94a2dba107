//! A weight that is used many times, such as once per time step of a recurrent network. Its
//! gradient is one matrix product instead of many: the sum over all uses of `a_i^T b_i` is `A^T B`,
//! where `A` and `B` stack all `a_i` and all `b_i`. Separate products would each write a whole
//! weight gradient, and these would then have to be summed.

use super::matmul::MatMul;
use crate::graph::{GradCx, NodeKind, OpDef, OpIdentity, Spec, Tensor};
use crate::kir::{LowerCx, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx};
use serde::{Deserialize, Serialize};
use tensorpack_tensor::{Error, Result};

/// The input, repeated as `.0` outputs.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct FanOut(usize);
crate::exported!(FanOut, 1..=1);

/// The maximum number of uses.
const MAX_USES: usize = 1 << 16;

impl OpDef for FanOut {
    fn name(&self) -> &str {
        "FanOut"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        match self.0 <= MAX_USES {
            true => Ok(vec![inputs[0].clone(); self.0]),
            false => {
                Err(Error::argument(format!("a tensor can have at most {MAX_USES} uses, got {}", self.0)))
            }
        }
    }

    fn output_count(&self) -> usize {
        self.0
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let grads: Vec<&Tensor> = (0..self.0).filter_map(|i| cx.output_grad(i)).collect();
        let products: Option<Vec<[Tensor; 2]>> = grads.iter().map(|g| operands(g)).collect();
        let sum = match products {
            Some(products) if products.len() > 1 => {
                let graph = cx.input(0).graph();
                let (a, b): (Vec<Tensor>, Vec<Tensor>) =
                    products.into_iter().map(|[a, b]| (a.matrix_transpose(), b)).unzip();
                Some(graph.concat(&a, 0).matrix_transpose().matmul(&graph.concat(&b, 0)))
            }
            _ => grads.into_iter().cloned().reduce(|a, b| a + b),
        };
        Ok(vec![sum])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        Ok(vec![cx.input(0); self.0])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        Ok(vec![cx.input(0).clone(); self.0])
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        Ok(vec![cx.input(0); self.0])
    }
}

/// Returns the operands if `product` is a product of two plain matrices.
pub(crate) fn operands(product: &Tensor) -> Option<[Tensor; 2]> {
    let node = product.graph().node(product.id()?.node)?;
    match (&node.kind, &node.inputs[..]) {
        (NodeKind::Op(op), &[a, b]) if MatMul.same(op.as_ref()) => {
            let operands = [a, b].map(|t| product.graph().tensor_at(t));
            operands.iter().all(|t| t.rank() == 2).then_some(operands)
        }
        _ => None,
    }
}

impl Tensor {
    /// Returns `count` handles to this tensor, one for each use.
    #[track_caller]
    pub(crate) fn fan_out(&self, count: usize) -> Vec<Tensor> {
        match self.is_poison() || count == 0 {
            true => vec![self.clone(); count],
            false => Tensor::apply(FanOut(count), &[self]),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::op_cases::*;

    cases![
        case("FanOut", Twice, |draw| {
            let [n, m] = [draw.pick(&[1, 2, 3, 5]), draw.pick(&[1, 2, 3])];
            let (uses, plain) = (draw.between(1, 4), draw.below(4) == 3);
            let mut inputs = vec![Input::floats(draw, [n, n], Any)];
            inputs.extend((0..uses).map(|_| Input::floats(draw, [m, n], Any)));
            Trial::new(inputs, move |x| {
                let weights = x[0].fan_out(x.len() - 1);
                let uses = x[1..].iter().zip(&weights).enumerate();
                uses.map(|(i, (x, w))| if i == 0 && plain { w.square() } else { x.matmul(w) }).collect()
            })
        })
        .empty("x.fan_out(2)[1]", "[0, 3]", "empty [0, 3]", |x| x[0].fan_out(2).remove(1)),
    ];

    /// The gradient of many uses takes one matrix product.
    #[test]
    fn gradient_of_many_uses_is_one_matmul() {
        use crate::autodiff::gradients;
        use crate::graph::{Graph, TensorSpec};
        use crate::runtime::Session;
        use tensorpack_tensor::{DType, HostTensor};
        let graph = Graph::new();
        let [x, w] = ["x", "w"].map(|n| graph.placeholder(&TensorSpec::f32(n, [Some(4), Some(4)])));
        let y = w.fan_out(6).iter().fold(x.clone(), |x, w| x.matmul(w).tanh());
        let dw = gradients(&y.sum(), &[&w]).unwrap().remove(0).unwrap();
        let session = Session::new(graph.freeze().unwrap()).unwrap();
        let fed = HostTensor::zeros(DType::F32, [4, 4]).unwrap();
        let plan = session.plan_text(&[&dw], &[("x", &fed), ("w", &fed)]).unwrap();
        // Six forward, five backward through the inputs, one for the weight.
        assert_eq!(plan.matches(" = matmul(").count(), 12, "{plan}");
    }
}
