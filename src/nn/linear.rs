//! The fully connected layer.

use super::Activation;
use super::bias::{add_bias, channels};
use super::parameter::parameter;
use crate::graph::{Init, Tensor, VariableSpec};
use crate::tower::TowerContext;
use tensorpack_tensor::Error;

/// A fully connected layer, `activation(x W + b)`, with `W` of shape `[in, out]`.
///
/// An input of more than two dimensions is flattened to `[batch, features]`, unless
/// [`Linear::last_axis`] applies the layer to each position separately.
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
    /// Creates a layer with this many outputs.
    pub fn new(units: usize) -> Linear {
        Linear { units, last_axis: false, bias: true, init: Init::he(), activation: Activation::Identity }
    }

    /// Applies the layer to the last dimension only: `[batch, time, in]` becomes
    /// `[batch, time, out]`.
    #[must_use]
    pub fn last_axis(self) -> Linear {
        Linear { last_axis: true, ..self }
    }

    /// Omits the bias.
    #[must_use]
    pub fn no_bias(self) -> Linear {
        Linear { bias: false, ..self }
    }

    /// Sets the initializer of the weights (default: [`Init::he`]).
    #[must_use]
    pub fn init(self, init: Init) -> Linear {
        Linear { init, ..self }
    }

    /// Applies ReLU to the result.
    #[must_use]
    pub fn relu(self) -> Linear {
        self.activation(Activation::Relu)
    }

    /// Applies this activation to the result.
    #[must_use]
    pub fn activation(self, activation: Activation) -> Linear {
        Linear { activation, ..self }
    }

    /// Applies the layer, creating (or sharing) `name/W` and `name/b`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        t.layer(name, x, |t| {
            if x.is_poison() {
                return x.clone();
            }
            let x = if x.rank() > 2 && !self.last_axis { x.flatten(1) } else { x.clone() };
            let Some(inputs) = channels(&x, 2..) else {
                let why = format!("expected [batch, features] with known features, got {}", x.shape());
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
