//! Dynamic loss scaling: the variables, and what they do to costs and gradients.

use crate::graph::{Graph, Init, LossScale, Op, Precision, Sharing, Tensor, Variable, VariableSpec};
use crate::kir::OnOverflow;
use tensorpack_tensor::{DType, Result};

/// The name of the variable that holds the loss scale of a graph in f16.
pub const LOSS_SCALE: &str = "loss_scale/scale";
/// The name of the variable that counts the steps that were skipped because f16 overflowed.
pub const SKIPPED_STEPS: &str = "loss_scale/skipped_steps";

/// The collection of the updates of a good step.
const GOOD_STEP: &str = "loss_scale/good_step";

/// The variables of the loss scale of a graph.
pub(super) struct LossScaler {
    settings: LossScale,
    scale: Variable,
    good_steps: Variable,
    skipped: Variable,
}

impl LossScaler {
    /// Returns the loss scaler of a graph in f16, with its variables; `None` in other precisions.
    pub(super) fn of(graph: &Graph) -> Result<Option<LossScaler>> {
        if graph.precision() != Precision::F16 {
            return Ok(None);
        }
        let settings = graph.loss_scale();
        settings.check()?;
        let variable = |name: &str, dtype: DType, initial: f64, rule: OnOverflow| {
            let spec = VariableSpec::new(name, []).dtype(dtype).init(Init::Constant(initial));
            let spec = spec.non_trainable().on_overflow(rule);
            graph.at_root(|| graph.variable(spec, Sharing::Either))
        };
        let halve = OnOverflow { factor: 0.5, summand: 0.0, least: settings.smallest };
        let reset = OnOverflow { factor: 0.0, summand: 0.0, least: f64::NEG_INFINITY };
        let count = OnOverflow { factor: 1.0, summand: 1.0, least: f64::NEG_INFINITY };
        Ok(Some(LossScaler {
            settings,
            scale: variable(LOSS_SCALE, DType::F32, settings.initial, halve),
            good_steps: variable("loss_scale/good_steps", DType::I64, 0.0, reset),
            skipped: variable(SKIPPED_STEPS, DType::I64, 0.0, count),
        }))
    }

    /// Returns the cost times the scale, in the tower of the cost.
    pub(super) fn scaled(&self, cost: &Tensor) -> Tensor {
        in_tower_of(cost, || cost * self.scale.value().cast(cost.dtype()))
    }

    /// Divides a gradient of the scaled cost by the scale, in the tower of the cost.
    pub(super) fn unscaled(&self, gradient: &Tensor, cost: &Tensor) -> Tensor {
        // The scale is a power of two, so this is exact.
        in_tower_of(cost, || gradient * self.scale.value().reciprocal().cast(gradient.dtype()))
    }

    /// Returns the updates of a good step. They are the same for all optimizers of a graph: a run that
    /// applies several is one step.
    pub(super) fn good_step(&self, graph: &Graph) -> Vec<Op> {
        let existing = graph.collection_ops(GOOD_STEP);
        if !existing.is_empty() {
            return existing;
        }
        let LossScale { growth_steps, largest, .. } = self.settings;
        let counted = self.good_steps.update(|n| n + 1.0);
        let n = self.good_steps.current();
        let grows = n.greater_equal(growth_steps as f64);
        let scale = self.scale.update(|s| {
            let doubled = (s * 2.0).minimum(largest);
            grows.select(&doubled, s)
        });
        let restart = self.good_steps.update(|n| grows.select(&n.zero(), n));
        // Counted among the updates, so that a step that overflows may change it.
        let skipped = self.skipped.update(|n| n.clone());
        let updates = vec![counted, scale, restart, skipped];
        updates.iter().for_each(|update| graph.add_op_to_collection(GOOD_STEP, update));
        updates
    }
}

fn in_tower_of<R>(cost: &Tensor, build: impl FnOnce() -> R) -> R {
    match cost.id() {
        Some(id) => cost.graph().on_behalf_of(id.node, build),
        None => build(),
    }
}
