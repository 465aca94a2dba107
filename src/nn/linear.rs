//! The fully connected layer.

use super::Activation;
use super::argscope::ScopedLayer;
use super::bias::channels;
use super::regularize::Regularizer;
use super::setting::Setting;
use super::weight_settings::WeightSettings;
use crate::graph::{Init, Tensor};
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
    last_axis: Setting<bool>,
    weights: WeightSettings,
}

impl Linear {
    /// Creates a layer with this many outputs.
    pub fn new(units: usize) -> Linear {
        Linear { units, last_axis: Setting::unset(false), weights: WeightSettings::default() }
    }

    /// Applies the layer to the last dimension only: `[batch, time, in]` becomes
    /// `[batch, time, out]`.
    #[must_use]
    pub fn last_axis(self) -> Linear {
        Linear { last_axis: Setting::set(true), ..self }
    }

    /// Omits the bias.
    #[must_use]
    pub fn no_bias(mut self) -> Linear {
        self.weights.bias = Setting::set(false);
        self
    }

    /// Sets the initializer of the weights (default: [`Init::he`]).
    #[must_use]
    pub fn init(mut self, init: Init) -> Linear {
        self.weights.init = Setting::set(init);
        self
    }

    /// Sets the initializer of the bias (default: zeros).
    #[must_use]
    #[doc(alias = "bias_initializer")]
    pub fn bias_init(mut self, init: Init) -> Linear {
        self.weights.bias_init = Setting::set(init);
        self
    }

    /// Adds this penalty of the weights `W`, such as [`l2_regularizer`](super::l2_regularizer), to the
    /// regularization losses: see
    /// [`regularize_cost_from_collection`](super::regularize_cost_from_collection).
    #[must_use]
    #[doc(alias = "kernel_regularizer")]
    pub fn regularizer(mut self, regularizer: impl Fn(&Tensor) -> Tensor + Send + Sync + 'static) -> Linear {
        self.weights.regularizer = Setting::set(Some(Regularizer::new(regularizer)));
        self
    }

    /// Applies ReLU to the result.
    #[must_use]
    pub fn relu(self) -> Linear {
        self.activation(Activation::Relu)
    }

    /// Applies this activation to the result.
    #[must_use]
    pub fn activation(mut self, activation: Activation) -> Linear {
        self.weights.activation = Setting::set(activation);
        self
    }

    /// Applies the layer, creating (or sharing) `name/W` and `name/b`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        t.with_scope_defaults(self).build(t, name, x)
    }

    /// Applies the layer without the defaults of scopes: as a part of another layer.
    #[track_caller]
    pub(super) fn build(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        t.layer(name, x, |t| {
            if x.is_poison() {
                return x.clone();
            }
            let x = if x.rank() > 2 && !*self.last_axis { x.flatten(1) } else { x.clone() };
            let Some(inputs) = channels(&x, 2..) else {
                let why = format!("expected [batch, features] with known features, got {}", x.shape());
                return x.fail("Linear", Error::shape(why));
            };
            let y = x.matmul(&self.weights.weight(t, [inputs, self.units], &x));
            self.weights.finish(t, y, self.units)
        })
    }
}

impl ScopedLayer for Linear {
    fn blank() -> Linear {
        Linear::new(0)
    }

    fn or(&self, scope: &Linear) -> Linear {
        let last_axis = self.last_axis.or(&scope.last_axis);
        Linear { units: self.units, last_axis, weights: self.weights.or(&scope.weights) }
    }
}
