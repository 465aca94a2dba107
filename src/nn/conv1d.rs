//! The 1-D convolution layer.

use super::Activation;
use super::bias::{add_bias, channels};
use super::parameter::parameter;
use crate::graph::{Init, Tensor, VariableSpec};
use crate::ops::{Conv1dOptions, Padding};
use crate::tower::TowerContext;
use tensorpack_tensor::Error;

/// A 1-D convolution layer, `activation(conv(x, W) + b)`, over sequences `[batch, time, channels]`,
/// with `W` of shape `[kernel, in / groups, out]`.
#[derive(Clone, Debug)]
pub struct Conv1d {
    channels: usize,
    kernel: usize,
    options: Conv1dOptions,
    causal: bool,
    bias: bool,
    init: Init,
    activation: Activation,
}

impl Conv1d {
    /// Creates a layer with this many output channels and this kernel size.
    pub fn new(channels: usize, kernel: usize) -> Conv1d {
        Conv1d {
            channels,
            kernel,
            options: Conv1dOptions::default(),
            causal: false,
            bias: true,
            init: Init::he(),
            activation: Activation::Identity,
        }
    }

    /// Sets the stride (default: 1).
    #[must_use]
    pub fn stride(mut self, stride: usize) -> Conv1d {
        self.options.stride = stride;
        self
    }

    /// Sets the dilation, the distance between filter taps (default: 1).
    #[must_use]
    pub fn dilation(mut self, dilation: usize) -> Conv1d {
        self.options.dilation = dilation;
        self
    }

    /// Sets the padding (default: [`Padding::Same`]).
    #[must_use]
    pub fn padding(mut self, padding: Padding) -> Conv1d {
        self.options.padding = padding;
        self
    }

    /// Pads only at the start of the sequence, so that no output depends on a later input.
    #[must_use]
    pub fn causal(self) -> Conv1d {
        Conv1d { causal: true, ..self }
    }

    /// Splits the channels into this many groups and convolves each separately (default: 1).
    #[must_use]
    pub fn groups(mut self, groups: usize) -> Conv1d {
        self.options.groups = groups;
        self
    }

    /// Omits the bias.
    #[must_use]
    pub fn no_bias(self) -> Conv1d {
        Conv1d { bias: false, ..self }
    }

    /// Sets the initializer of the filters (default: [`Init::he`]).
    #[must_use]
    pub fn init(self, init: Init) -> Conv1d {
        Conv1d { init, ..self }
    }

    /// Applies ReLU to the result.
    #[must_use]
    pub fn relu(self) -> Conv1d {
        self.activation(Activation::Relu)
    }

    /// Applies this activation to the result.
    #[must_use]
    pub fn activation(self, activation: Activation) -> Conv1d {
        Conv1d { activation, ..self }
    }

    /// Applies the layer, creating (or sharing) `name/W` and `name/b`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        t.layer(name, x, |t| {
            if x.is_poison() {
                return x.clone();
            }
            let Some(inputs) = channels(x, 3..=3) else {
                let why = format!("expected [batch, time, channels] with known channels, got {}", x.shape());
                return x.fail("Conv1d", Error::shape(why));
            };
            let groups = self.options.groups;
            if groups == 0 || !inputs.is_multiple_of(groups) {
                let why = format!("{inputs} channels cannot be split into {groups} groups");
                return x.fail("Conv1d", Error::argument(why));
            }
            let filter =
                VariableSpec::new("W", [self.kernel, inputs / groups, self.channels]).init(self.init.clone());
            let options = if self.causal { self.options.causal(self.kernel) } else { self.options };
            let mut y = x.conv1d(&parameter(t, filter, x), options);
            if self.bias {
                y = add_bias(t, &y, self.channels);
            }
            self.activation.apply(&y)
        })
    }
}
