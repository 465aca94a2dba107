//! The 1-D convolution layer.

use super::Activation;
use super::argscope::ScopedLayer;
use super::bias::channels;
use super::regularize::Regularizer;
use super::setting::Setting;
use super::weight_settings::WeightSettings;
use crate::graph::{Init, Tensor};
use crate::ops::{Conv1dOptions, Padding};
use crate::tower::TowerContext;
use tensorpack_tensor::Error;

/// A 1-D convolution layer, `activation(conv(x, W) + b)`, over sequences `[batch, time, channels]`,
/// with `W` of shape `[kernel, in / groups, out]`.
#[derive(Clone, Debug)]
pub struct Conv1d {
    channels: usize,
    kernel: usize,
    stride: Setting<usize>,
    dilation: Setting<usize>,
    padding: Setting<Padding>,
    groups: Setting<usize>,
    causal: Setting<bool>,
    weights: WeightSettings,
}

impl Conv1d {
    /// Creates a layer with this many output channels and this kernel size.
    pub fn new(channels: usize, kernel: usize) -> Conv1d {
        Conv1d {
            channels,
            kernel,
            stride: Setting::unset(1),
            dilation: Setting::unset(1),
            padding: Setting::unset(Padding::Same),
            groups: Setting::unset(1),
            causal: Setting::unset(false),
            weights: WeightSettings::default(),
        }
    }

    /// Sets the stride (default: 1).
    #[must_use]
    pub fn stride(mut self, stride: usize) -> Conv1d {
        self.stride = Setting::set(stride);
        self
    }

    /// Sets the dilation, the distance between filter taps (default: 1).
    #[must_use]
    pub fn dilation(mut self, dilation: usize) -> Conv1d {
        self.dilation = Setting::set(dilation);
        self
    }

    /// Sets the padding (default: [`Padding::Same`]).
    #[must_use]
    pub fn padding(mut self, padding: Padding) -> Conv1d {
        self.padding = Setting::set(padding);
        self
    }

    /// Pads only at the start of the sequence, so that no output depends on a later input.
    #[must_use]
    pub fn causal(self) -> Conv1d {
        Conv1d { causal: Setting::set(true), ..self }
    }

    /// Splits the channels into this many groups and convolves each separately (default: 1).
    #[must_use]
    pub fn groups(mut self, groups: usize) -> Conv1d {
        self.groups = Setting::set(groups);
        self
    }

    /// Omits the bias.
    #[must_use]
    pub fn no_bias(mut self) -> Conv1d {
        self.weights.bias = Setting::set(false);
        self
    }

    /// Sets the initializer of the filters (default: [`Init::he`]).
    #[must_use]
    pub fn init(mut self, init: Init) -> Conv1d {
        self.weights.init = Setting::set(init);
        self
    }

    /// Adds this penalty of the weights `W`, such as [`l2_regularizer`](super::l2_regularizer), to the
    /// regularization losses: see
    /// [`regularize_cost_from_collection`](super::regularize_cost_from_collection).
    #[must_use]
    #[doc(alias = "kernel_regularizer")]
    pub fn regularizer(mut self, regularizer: impl Fn(&Tensor) -> Tensor + Send + Sync + 'static) -> Conv1d {
        self.weights.regularizer = Setting::set(Some(Regularizer::new(regularizer)));
        self
    }

    /// Applies ReLU to the result.
    #[must_use]
    pub fn relu(self) -> Conv1d {
        self.activation(Activation::Relu)
    }

    /// Applies this activation to the result.
    #[must_use]
    pub fn activation(mut self, activation: Activation) -> Conv1d {
        self.weights.activation = Setting::set(activation);
        self
    }

    /// Applies the layer, creating (or sharing) `name/W` and `name/b`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        let layer = t.with_scope_defaults(self);
        t.layer(name, x, |t| {
            if x.is_poison() {
                return x.clone();
            }
            let Some(inputs) = channels(x, 3..=3) else {
                let why = format!("expected [batch, time, channels] with known channels, got {}", x.shape());
                return x.fail("Conv1d", Error::shape(why));
            };
            let options = layer.options();
            let groups = options.groups;
            if groups == 0 || !inputs.is_multiple_of(groups) {
                let why = format!("{inputs} channels cannot be split into {groups} groups");
                return x.fail("Conv1d", Error::argument(why));
            }
            let filter = layer.weights.weight(t, [layer.kernel, inputs / groups, layer.channels], x);
            layer.weights.finish(t, x.conv1d(&filter, options), layer.channels)
        })
    }

    /// The options of the convolution.
    fn options(&self) -> Conv1dOptions {
        let options = Conv1dOptions {
            stride: *self.stride,
            dilation: *self.dilation,
            padding: *self.padding,
            groups: *self.groups,
        };
        if *self.causal { options.causal(self.kernel) } else { options }
    }
}

impl ScopedLayer for Conv1d {
    fn blank() -> Conv1d {
        Conv1d::new(0, 0)
    }

    fn or(&self, scope: &Conv1d) -> Conv1d {
        Conv1d {
            channels: self.channels,
            kernel: self.kernel,
            stride: self.stride.or(&scope.stride),
            dilation: self.dilation.or(&scope.dilation),
            padding: self.padding.or(&scope.padding),
            groups: self.groups.or(&scope.groups),
            causal: self.causal.or(&scope.causal),
            weights: self.weights.or(&scope.weights),
        }
    }
}
