//! Activation functions.

use crate::graph::Tensor;

/// An activation function, applied element by element.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum Activation {
    /// `x`, unchanged.
    #[default]
    Identity,
    /// `max(x, 0)`.
    Relu,
    /// `min(max(x, 0), 6)`.
    Relu6,
    /// `x` where positive, else this slope times `x`.
    LeakyRelu(f64),
    /// `x` where positive, else `exp(x) - 1`.
    Elu,
    /// `x` times the standard normal distribution function of `x`.
    Gelu,
    /// `x * sigmoid(x)`.
    Silu,
    /// `log(1 + exp(x))`.
    Softplus,
    /// The hyperbolic tangent.
    Tanh,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
}

impl Activation {
    /// Applies the function to `x`.
    #[track_caller]
    pub fn apply(self, x: &Tensor) -> Tensor {
        match self {
            Activation::Identity => x.clone(),
            Activation::Relu => x.relu(),
            Activation::Relu6 => x.relu6(),
            Activation::LeakyRelu(slope) => x.leaky_relu(slope),
            Activation::Elu => x.elu(),
            Activation::Gelu => x.gelu(),
            Activation::Silu => x.silu(),
            Activation::Softplus => x.softplus(),
            Activation::Tanh => x.tanh(),
            Activation::Sigmoid => x.sigmoid(),
        }
    }
}
