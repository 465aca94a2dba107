//! Gradient accumulation over several steps.

use super::gradient::state;
use super::setting::{Allowed, check_setting};
use super::{Gradient, Optimizer};
use crate::graph::{FLUSH_OPS, Graph, Init, Op, Tensor, Variable, VariableSpec};
use tensorpack_tensor::DType;

/// An optimizer wrapper that accumulates gradients and applies their mean every `n` steps, so that
/// `n` steps on batches of `b` equal one step on a batch of `n * b`. In the steps between, neither
/// the variables nor the state of the inner optimizer change.
///
/// It adds an operation to [`FLUSH_OPS`] that, at the end of the last epoch, applies the mean of
/// the gradients accumulated since the last update, if any. The sums are variables and so part of
/// checkpoints. A run that a callback stops keeps them there. A learning-rate schedule of the inner
/// optimizer counts all steps. A nested `Accumulate` is flushed only in part; multiply the numbers
/// of steps instead.
#[derive(Debug)]
pub struct Accumulate {
    inner: Box<dyn Optimizer>,
    steps: usize,
}

impl Accumulate {
    /// Creates an optimizer that applies `inner` every `steps` steps.
    #[doc(alias = "AccumGradOptimizer")]
    pub fn new(inner: impl Optimizer + 'static, steps: usize) -> Accumulate {
        Accumulate { inner: inner.boxed(), steps }
    }
}

impl Optimizer for Accumulate {
    #[track_caller]
    fn apply(&self, graph: &Graph, gradients: &[Gradient]) -> Vec<Op> {
        check_setting(graph, "Accumulate", "the number of steps", self.steps as f64, Allowed::Positive);
        let spec = VariableSpec::new("accumulated_steps", []).dtype(DType::I64).init(Init::zeros());
        let count = state(graph, spec.non_trainable());
        let sums: Vec<_> = gradients.iter().map(|g| g.slot("accumulated")).collect();

        // The first gradient after an update replaces the old sum, so no step has to clear it.
        let first = count.value().equal(0.0);
        let mut updates = vec![count.update(|n| n + 1.0)];
        let add = |(sum, g): (&Variable, &Gradient)| sum.update(|s| first.select(&g.value, &(s + &g.value)));
        updates.extend(sums.iter().zip(gradients).map(add));

        // From here on, current values depend on the run. A training step runs the updates above,
        // so current values include its gradients. A flush does not run them and sees the old
        // values. Both therefore share the same update operations.
        let (before, counted) = (count.value(), count.current());
        let full = counted.greater_equal(self.steps as f64);
        let flushed = counted.equal(before).logical_and(&counted.greater(0.0));
        let due = full.logical_or(&flushed);
        let scale = counted.maximum(1.0).cast(DType::F64).reciprocal();
        let mean =
            |(sum, g): (&Variable, &Gradient)| g.clone().with_value(sum.current() * scale.cast(sum.dtype()));
        let means: Vec<Gradient> = sums.iter().zip(gradients).map(mean).collect();
        let gate = due.clone();
        let gated = move |current: &Tensor, next: &Tensor| gate.select(next, current);
        let mut apply = graph.updates_through(gated, || self.inner.apply(graph, &means));
        apply.push(count.update(|n| due.select(&n.zero(), n)));

        graph.add_op_to_collection(FLUSH_OPS, &graph.group(&apply.iter().collect::<Vec<_>>()));
        updates.extend(apply);
        updates
    }
}
