//! The fully connected layer.

use super::Activation;
use super::bias::{add_bias, channels};
use super::parameter::parameter;
use crate::graph::{Init, Tensor, VariableSpec};
use crate::tower::TowerContext;
use tensorpack_tensor::Error;

/// `activation(x W + b)`, with `W` as `[in, out]`. An input of more than two dims is flattened from its second on, or,
/// [if so asked](Linear::last_axis), multiplied at each position alone.
#[derive(Clone, Debug)]
#[doc(alias = "FullyConnected")]
#[doc(alias = "Dense")]
pub struct Linear {
    units: usize,
    last_axis: bool,
    bias: bool,
    init: Init,
    activation: Activation,
}

impl Linear {
    /// With this many outputs.
    pub fn new(units: usize) -> Linear {
        Linear { units, last_axis: false, bias: true, init: Init::he(), activation: Activation::Identity }
    }

    /// Over the last dim alone: `[batch, time, in]` becomes `[batch, time, out]`.
    #[must_use]
    pub fn last_axis(self) -> Linear {
        Linear { last_axis: true, ..self }
    }

    /// Without a bias.
    #[must_use]
    pub fn no_bias(self) -> Linear {
        Linear { bias: false, ..self }
    }

    /// With weights drawn like this.
    #[must_use]
    pub fn init(self, init: Init) -> Linear {
        Linear { init, ..self }
    }

    /// Followed by ReLU.
    #[must_use]
    pub fn relu(self) -> Linear {
        self.activation(Activation::Relu)
    }

    /// Followed by this.
    #[must_use]
    pub fn activation(self, activation: Activation) -> Linear {
        Linear { activation, ..self }
    }

    /// Applies the layer, making (or sharing) `name/W` and `name/b`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        t.layer(name, x, |t| {
            if x.is_poison() {
                return x.clone();
            }
            let x = if x.rank() > 2 && !self.last_axis { x.flatten(1) } else { x.clone() };
            let Some(inputs) = channels(&x, 2..) else {
                let why = format!("takes [batch, features] with known features, not {}", x.shape());
                return x.fail("Linear", Error::shape(why));
            };
            let w = VariableSpec::new("W", [inputs, self.units]).init(self.init.clone());
            let mut y = x.matmul(&parameter(t, w, &x));
            if self.bias {
                y = add_bias(t, &y, self.units);
            }
            self.activation.apply(&y)
        })
    }
}
