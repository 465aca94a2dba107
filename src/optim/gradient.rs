//! What an optimizer is handed.

use crate::graph::{Graph, Init, NamePattern, Sharing, Tensor, Variable, VariableSpec};

/// A variable to be updated, its gradient, and what its [group](super::ParamGroups) says of it.
#[derive(Clone, Debug)]
pub struct Gradient {
    /// The variable.
    pub variable: Variable,
    /// The cost's gradient with respect to it.
    pub value: Tensor,
    /// The optimizer's rate is multiplied by this.
    pub rate: f64,
    /// The weight decay, in place of the optimizer's own.
    pub decay: Option<f64>,
}

impl Gradient {
    /// The gradient `value` of `variable`, with the optimizer's own settings.
    pub fn new(variable: Variable, value: Tensor) -> Gradient {
        Gradient { variable, value, rate: 1.0, decay: None }
    }

    /// The same with another value.
    #[must_use]
    pub fn with_value(self, value: Tensor) -> Gradient {
        Gradient { value, ..self }
    }

    /// The gradient of the cost plus `decay / 2 * |w|^2`: weight decay as most optimizers have it.
    #[track_caller]
    pub fn decayed(&self) -> Tensor {
        match self.decay {
            Some(decay) if decay != 0.0 => &self.value + self.variable.value() * decay,
            _ => self.value.clone(),
        }
    }

    /// A slot: a variable like this one that an optimizer keeps beside it, `NAME/SLOT`, zero at first. The slots of all
    /// variables lie in one slab, so that an optimizer runs over them in one pass.
    #[track_caller]
    pub fn slot(&self, slot: &str) -> Variable {
        self.slot_from(slot, 0.0)
    }

    /// [`Gradient::slot`] with another first value.
    #[track_caller]
    pub fn slot_from(&self, slot: &str, first: f64) -> Variable {
        let variable = &self.variable;
        let sizes = variable.shape().known().unwrap_or_default();
        let spec = VariableSpec::new(format!("{}/{slot}", variable.name()), sizes).dtype(variable.dtype());
        state(variable.graph(), spec.init(Init::Constant(first)).non_trainable().slab(slot))
    }
}

/// A variable of an optimizer's own, outside of all scopes. Where another optimizer has one of that name, it gets a
/// number.
#[track_caller]
pub(super) fn state(graph: &Graph, spec: VariableSpec) -> Variable {
    graph.at_root(|| graph.variable(spec, Sharing::Numbered))
}

/// Puts on record, as an error of `who`, a pattern that matches none of the gradients' variables.
#[track_caller]
pub(super) fn check_pattern(graph: &Graph, who: &str, pattern: &NamePattern, gradients: &[Gradient]) {
    if let Err(e) = pattern.check(gradients.iter().map(|g| g.variable.name())) {
        graph.record(who, &[], e);
    }
}
