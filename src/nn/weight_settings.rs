//! The settings that all layers with weights share.

use super::Activation;
use super::bias::add_bias;
use super::parameter::cast_parameter;
use super::regularize::Regularizer;
use super::setting::Setting;
use crate::graph::{Init, Tensor, VariableSpec};
use crate::tower::TowerContext;

/// The settings of a layer `activation(f(x, W) + b)`.
#[derive(Clone, Debug)]
pub(super) struct WeightSettings {
    pub(super) bias: Setting<bool>,
    pub(super) bias_init: Setting<Init>,
    pub(super) init: Setting<Init>,
    pub(super) regularizer: Setting<Option<Regularizer>>,
    pub(super) activation: Setting<Activation>,
}

impl Default for WeightSettings {
    fn default() -> WeightSettings {
        WeightSettings {
            bias: Setting::unset(true),
            bias_init: Setting::unset(Init::zeros()),
            init: Setting::unset(Init::he()),
            regularizer: Setting::unset(None),
            activation: Setting::unset(Activation::Identity),
        }
    }
}

impl WeightSettings {
    /// Returns these settings, with those of `scope` where they were not set.
    pub(super) fn or(&self, scope: &WeightSettings) -> WeightSettings {
        WeightSettings {
            bias: self.bias.or(&scope.bias),
            bias_init: self.bias_init.or(&scope.bias_init),
            init: self.init.or(&scope.init),
            regularizer: self.regularizer.or(&scope.regularizer),
            activation: self.activation.or(&scope.activation),
        }
    }

    /// Creates or shares the weight `W` of this shape, in the dtype in which the layer computes.
    #[track_caller]
    pub(super) fn weight<const N: usize>(&self, t: &TowerContext, shape: [usize; N], x: &Tensor) -> Tensor {
        let spec = VariableSpec::new("W", shape).init(Init::clone(&self.init));
        let variable = t.variable(spec.dtype(x.dtype().widened()));
        if let Some(regularizer) = &*self.regularizer {
            regularizer.add_loss(t, &variable);
        }
        cast_parameter(t, &variable, x)
    }

    /// Adds the bias to the product `y` of so many channels, and applies the activation.
    #[track_caller]
    pub(super) fn finish(&self, t: &TowerContext, y: Tensor, channels: usize) -> Tensor {
        let y = if *self.bias { add_bias(t, &y, channels, &self.bias_init) } else { y };
        self.activation.apply(&y)
    }
}
