//! Stochastic weight averaging.

use super::ema::create_average;
use super::gradient::state;
use super::setting::{Allowed, check_setting};
use super::{Gradient, Optimizer};
use crate::graph::{Graph, Init, Op, Tensor, VariableSpec};
use tensorpack_tensor::DType;

/// An optimizer wrapper for stochastic weight averaging (Izmailov et al., 2018): `EMA/NAME` is the mean
/// of the values that a variable had after step `start`, after step `start + every`, and so on. Steps
/// count from 0.
///
/// Until then `EMA/NAME` equals the variable. The averages are used like those of [`Ema`](super::Ema):
/// by `TowerContext::averaged`, predictors (`on_ema`) and exports. Batch norm's running statistics
/// belong to the weights, not to their averages: a net with batch norm needs some more steps on the
/// averages, with a learning rate of zero, before it predicts with them.
#[derive(Debug)]
#[doc(alias = "AveragedModel")]
pub struct Swa {
    inner: Box<dyn Optimizer>,
    start: u64,
    every: u64,
}

impl Swa {
    /// Creates an optimizer that applies `inner`, and averages the weights after every step from step
    /// `start` on.
    pub fn new(inner: impl Optimizer + 'static, start: u64) -> Swa {
        Swa { inner: inner.boxed(), start, every: 1 }
    }

    /// Averages the weights after every `steps` steps only, such as once per epoch.
    #[must_use]
    pub fn every(self, steps: u64) -> Swa {
        Swa { every: steps, ..self }
    }
}

impl Optimizer for Swa {
    #[track_caller]
    fn apply(&self, graph: &Graph, gradients: &[Gradient]) -> Vec<Op> {
        check_setting(
            graph,
            "Swa",
            "the number of steps between values",
            self.every as f64,
            Allowed::Positive,
        );
        let mut updates = self.inner.apply(graph, gradients);
        // In f64, in which the numbers of steps are exact.
        let spec = VariableSpec::new("swa_step", []).dtype(DType::F64).init(Init::zeros());
        let step = state(graph, spec.non_trainable());
        updates.push(step.update(|step| step + 1.0));
        let passed = step.value() - self.start as f64;
        let values = (&passed / self.every as f64).floor();
        let is_before = passed.less(0.0);
        let is_due = passed.equal(&(&values * self.every as f64));
        // Of this value in the mean. Before the start it is not used, but must be finite.
        let share = (values + 1.0).maximum(1.0).reciprocal();
        for Gradient { variable, .. } in gradients {
            let average = create_average(graph, "Swa", variable);
            let (w, share) = (variable.current(), share.cast(variable.dtype()));
            let next = |average: &Tensor| {
                let mean = average + (&w - average) * &share;
                is_before.select(&w, &is_due.select(&mean, average))
            };
            updates.push(average.update(next));
        }
        updates
    }
}
