//! All-reduce: the sum over towers, the one operation through which replicas of a model
//! communicate.

use crate::graph::{GradCx, OpDef, OpTraits, Spec, Tensor};
use crate::kir::{LowerCx, View};
use crate::reference::{Array, EvaluateCx, Scalar};
use tensorpack_tensor::{DType, Error, Result};

/// The sum of the tensors that all towers contribute under `key`. Each tower has its own node;
/// their results are equal.
#[derive(Debug, PartialEq, Eq, Hash)]
struct AllReduce {
    key: String,
    towers: usize,
    /// Whether only updates of variables use the sum, so that it may be late.
    deferred: bool,
    /// The dtype in which other processes get this one's summands, if it is another one.
    wire: Option<DType>,
}

impl OpDef for AllReduce {
    fn name(&self) -> &str {
        "AllReduce"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        match inputs[0].dtype {
            DType::F32 | DType::F64 => Ok(vec![inputs[0].clone()]),
            d => Err(Error::dtype(format!("expected f32 or f64 elements, got {d}"))),
        }
    }

    /// Every tower's result depends on every tower's input, so the gradient is the sum of all
    /// towers' gradients.
    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(cx.dy().all_reduce(format!("{}/grad", self.key), self.towers, false, None))])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let x = cx.input(0);
        Ok(vec![if self.towers == 1 {
            x
        } else {
            cx.sum_over_towers(&self.key, &x, self.deferred, self.wire)
        }])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        if self.towers == 1 {
            return Ok(vec![cx.input(0).clone()]);
        }
        let (parts, own) = (cx.tower_inputs(), cx.input(0));
        if let Some(other) = parts.iter().find(|p| (p.dtype(), p.sizes()) != (own.dtype(), own.sizes())) {
            let spec = |p: &Array| format!("{}{:?}", p.dtype(), p.sizes());
            let why = format!("towers contribute {} and {} to the sum {}", spec(own), spec(other), self.key);
            return Err(Error::shape(why));
        }
        Ok(cx.output(|i| Scalar::Float(cx.sum(parts.iter().map(|p| p.float(i))))))
    }

    fn traits(&self) -> OpTraits {
        OpTraits::UNIQUE
    }

    fn collective(&self) -> Option<&str> {
        (self.towers > 1).then_some(&self.key)
    }
}

impl Tensor {
    /// Returns the sum over `towers` towers of the tensors they contribute under `key`. A sum of
    /// bf16 or f16 tensors is computed in f32 and rounded once. A `deferred` sum is for updates of
    /// variables alone: other processes may contribute to it while the step goes on. They send their
    /// summands as `wire`, if it is given.
    #[track_caller]
    pub(crate) fn all_reduce(
        &self,
        key: String,
        towers: usize,
        deferred: bool,
        wire: Option<DType>,
    ) -> Tensor {
        let wide = self.dtype().widened();
        Tensor::apply_one(AllReduce { key, towers, deferred, wire }, &[&self.cast(wide)]).cast(self.dtype())
    }
}

#[cfg(test)]
mod tests {
    use crate::op_cases::*;

    cases![
        // Sums over several towers are tested in tests/towers.rs; over one tower the result is the
        // input.
        unary("AllReduce", Twice, Any, |x| x.all_reduce("sum".into(), 1, false, None)),
    ];
}
