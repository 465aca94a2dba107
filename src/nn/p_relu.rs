//! Parametric ReLU (He et al., 2015).

use super::parameter::parameter;
use crate::graph::{Init, Tensor, VariableSpec};
use crate::tower::TowerContext;

/// Parametric ReLU: `x` where positive, else `alpha * x`, with one trainable scalar `alpha`.
#[derive(Clone, Copy, Debug)]
pub struct PRelu {
    init: f64,
}

impl Default for PRelu {
    fn default() -> PRelu {
        PRelu::new()
    }
}

impl PRelu {
    /// Creates a layer whose slope `alpha` starts at 0.001.
    pub fn new() -> PRelu {
        PRelu { init: 0.001 }
    }

    /// Sets the initial slope (default: 0.001).
    #[must_use]
    pub fn init(self, slope: f64) -> PRelu {
        PRelu { init: slope }
    }

    /// Applies the layer, creating (or sharing) `name/alpha`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        t.layer(name, x, |t| {
            if x.is_poison() {
                return x.clone();
            }
            let spec = VariableSpec::new("alpha", []).init(Init::Constant(self.init));
            x.greater(0.0).select(x, &(x * parameter(t, spec, x)))
        })
    }
}
