//! The fully connected layer.

use super::Activation;
use crate::graph::{Init, Tensor, VariableSpec};
use crate::tower::TowerContext;
use tensorpack_tensor::Error;

/// `activation(x W + b)`, with `W` as `[in, out]`. An input of more than two dims is flattened from its second on.
#[derive(Clone, Debug)]
#[doc(alias = "FullyConnected")]
pub struct Linear {
    units: usize,
    bias: bool,
    init: Init,
    activation: Activation,
}

impl Linear {
    /// With this many outputs.
    pub fn new(units: usize) -> Linear {
        Linear { units, bias: true, init: Init::he(), activation: Activation::Identity }
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
        Linear { activation: Activation::Relu, ..self }
    }

    /// Applies the layer, making (or sharing) `name/W` and `name/b`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        t.layer(name, |t| {
            if x.is_poison() {
                return x.clone();
            }
            let x = if x.rank() > 2 { x.flatten(1) } else { x.clone() };
            let Some(inputs) = x.shape().last().and_then(|d| d.known()).filter(|_| x.rank() == 2) else {
                let why = format!("takes [batch, features] with known features, not {}", x.shape());
                return x.fail("Linear", Error::shape(why));
            };
            let w = t.variable(
                VariableSpec::new("W", [inputs, self.units]).dtype(x.dtype()).init(self.init.clone()),
            );
            let mut y = x.matmul(&w);
            if self.bias {
                let b = VariableSpec::new("b", [self.units]).dtype(x.dtype()).init(Init::zeros());
                y = y + t.variable(b).value();
            }
            self.activation.apply(&y)
        })
    }
}
