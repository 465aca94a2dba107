//! Gradients gathered over several steps.

use super::gradient::state;
use super::setting::{Allowed, check_setting};
use super::{Gradient, Optimizer};
use crate::graph::{FLUSH_OPS, Graph, Init, Op, Tensor, Variable, VariableSpec};
use tensorpack_tensor::DType;

/// An optimizer that is applied once in so many steps, to the mean of their gradients: so `n` steps on batches of `b`
/// are one step on a batch of `n * b`. In the steps between, neither variables nor the inner optimizer's state change.
///
/// What is left when training ends is applied by the operation that this adds to [`FLUSH_OPS`]: the mean over the steps
/// since the last update, if there were any. A schedule of the inner optimizer's rate goes by all steps. One of these
/// inside another is flushed only in part: multiply their steps instead.
#[derive(Debug)]
pub struct Accumulate {
    inner: Box<dyn Optimizer>,
    steps: usize,
}

impl Accumulate {
    /// `inner`, applied every `steps` steps.
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

        // What was applied is not cleared but replaced by the first gradient after it.
        let fresh = count.value().equal(&count.zero());
        let mut gather = vec![count.update(|n| n + 1.0)];
        let add = |(sum, g): (&Variable, &Gradient)| sum.update(|s| fresh.select(&g.value, &(s + &g.value)));
        gather.extend(sums.iter().zip(gradients).map(add));

        // From here on, what is current depends on the run: in a step it has the step's gradients in it, in a flush,
        // which leaves `gather` out, it is what was there before. So both are made of the same updates.
        let (before, counted) = (count.value(), count.current());
        let full = counted.greater_equal(&counted.constant_like(self.steps as f64));
        let flushed = counted.equal(before).logical_and(&counted.greater(&counted.zero()));
        let due = full.logical_or(&flushed);
        let share = counted.maximum(&counted.one()).cast(DType::F64).reciprocal();
        let mean =
            |(sum, g): (&Variable, &Gradient)| g.clone().with_value(sum.current() * share.cast(sum.dtype()));
        let means: Vec<Gradient> = sums.iter().zip(gradients).map(mean).collect();
        let gate = due.clone();
        let held_back = move |current: &Tensor, next: &Tensor| gate.select(next, current);
        let mut apply = graph.updates_through(held_back, || self.inner.apply(graph, &means));
        apply.push(count.update(|n| due.select(&n.zero(), n)));

        graph.add_op_to_collection(FLUSH_OPS, &graph.group(&apply.iter().collect::<Vec<_>>()));
        gather.extend(apply);
        gather
    }
}
