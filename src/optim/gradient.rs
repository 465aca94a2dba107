//! The gradient of one variable, as passed to an optimizer.

use crate::graph::{Graph, Init, NamePattern, Sharing, Tensor, Variable, VariableSpec};

/// A variable to update, its gradient, and the settings of its [parameter
/// group](super::ParamGroups).
#[derive(Clone, Debug)]
pub struct Gradient {
    /// The variable.
    pub variable: Variable,
    /// The gradient of the cost with respect to the variable.
    pub value: Tensor,
    /// A factor for the optimizer's learning rate.
    pub rate: f64,
    /// The weight decay that replaces the optimizer's own.
    pub decay: Option<f64>,
}

impl Gradient {
    /// Creates the gradient `value` of `variable`, with the optimizer's own settings.
    pub fn new(variable: Variable, value: Tensor) -> Gradient {
        Gradient { variable, value, rate: 1.0, decay: None }
    }

    /// Returns the same gradient with another value.
    #[must_use]
    pub fn with_value(self, value: Tensor) -> Gradient {
        Gradient { value, ..self }
    }

    /// Returns the gradient of the cost plus `decay / 2 * |w|^2`: weight decay as L2
    /// regularization, which most optimizers use.
    #[track_caller]
    pub fn decayed(&self) -> Tensor {
        match self.decay {
            Some(decay) if decay != 0.0 => &self.value + self.variable.value() * decay,
            _ => self.value.clone(),
        }
    }

    /// Creates a slot: optimizer state `NAME/SLOT` of the same shape and type as the variable,
    /// initially zero. The slots of all variables are allocated in one slab, so that an optimizer
    /// updates them in one pass.
    #[track_caller]
    pub fn slot(&self, slot: &str) -> Variable {
        self.slot_from(slot, 0.0)
    }

    /// Like [`Gradient::slot`], with another initial value.
    #[track_caller]
    pub fn slot_from(&self, slot: &str, initial: f64) -> Variable {
        let variable = &self.variable;
        let sizes = variable.shape().known().unwrap_or_default();
        let spec = VariableSpec::new(format!("{}/{slot}", variable.name()), sizes).dtype(variable.dtype());
        let spec = spec.init(Init::Constant(initial)).non_trainable().slab(slot);
        state(variable.graph(), VariableSpec { is_slot: true, ..spec })
    }
}

/// Creates a state variable of an optimizer, outside of all scopes. If another optimizer already
/// has a variable of that name, a number is appended.
#[track_caller]
pub(super) fn state(graph: &Graph, spec: VariableSpec) -> Variable {
    graph.at_root(|| graph.variable(spec, Sharing::Numbered))
}

/// Records an error of `op` if the pattern matches none of the gradients' variables.
#[track_caller]
pub(super) fn check_pattern(graph: &Graph, op: &str, pattern: &NamePattern, gradients: &[Gradient]) {
    if let Err(e) = pattern.check(gradients.iter().map(|g| g.variable.name())) {
        graph.record(op, &[], e);
    }
}
