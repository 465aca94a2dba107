//! The convolution layer for sequences.

use super::Activation;
use super::bias::{add_bias, channels};
use super::parameter::parameter;
use crate::graph::{Init, Tensor, VariableSpec};
use crate::ops::{Conv1dOptions, Padding};
use crate::tower::TowerContext;
use tensorpack_tensor::Error;

/// `activation(conv(x, W) + b)` over sequences `[batch, time, channels]`, with `W` as `[taps, in / groups, out]`.
#[derive(Clone, Debug)]
pub struct Conv1d {
    channels: usize,
    taps: usize,
    options: Conv1dOptions,
    causal: bool,
    bias: bool,
    init: Init,
    activation: Activation,
}

impl Conv1d {
    /// With this many output channels and a kernel of so many taps.
    pub fn new(channels: usize, taps: usize) -> Conv1d {
        Conv1d {
            channels,
            taps,
            options: Conv1dOptions::default(),
            causal: false,
            bias: true,
            init: Init::he(),
            activation: Activation::Identity,
        }
    }

    /// Moving by `stride`.
    #[must_use]
    pub fn stride(mut self, stride: usize) -> Conv1d {
        self.options.stride = stride;
        self
    }

    /// With taps `dilation` apart.
    #[must_use]
    pub fn dilation(mut self, dilation: usize) -> Conv1d {
        self.options.dilation = dilation;
        self
    }

    /// With this padding instead of [`Padding::Same`].
    #[must_use]
    pub fn padding(mut self, padding: Padding) -> Conv1d {
        self.options.padding = padding;
        self
    }

    /// Padded before the sequence alone, so that no result sees what comes later.
    #[must_use]
    pub fn causal(self) -> Conv1d {
        Conv1d { causal: true, ..self }
    }

    /// With channels cut into this many groups, each convolved alone.
    #[must_use]
    pub fn groups(mut self, groups: usize) -> Conv1d {
        self.options.groups = groups;
        self
    }

    /// Without a bias.
    #[must_use]
    pub fn no_bias(self) -> Conv1d {
        Conv1d { bias: false, ..self }
    }

    /// With filters drawn like this.
    #[must_use]
    pub fn init(self, init: Init) -> Conv1d {
        Conv1d { init, ..self }
    }

    /// Followed by ReLU.
    #[must_use]
    pub fn relu(self) -> Conv1d {
        self.activation(Activation::Relu)
    }

    /// Followed by this.
    #[must_use]
    pub fn activation(self, activation: Activation) -> Conv1d {
        Conv1d { activation, ..self }
    }

    /// Applies the layer, making (or sharing) `name/W` and `name/b`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        t.layer(name, x, |t| {
            if x.is_poison() {
                return x.clone();
            }
            let Some(inputs) = channels(x, 3..=3) else {
                let why =
                    format!("takes sequences [batch, time, channels] with known channels, not {}", x.shape());
                return x.fail("Conv1d", Error::shape(why));
            };
            let groups = self.options.groups;
            if groups == 0 || !inputs.is_multiple_of(groups) {
                let why = format!("{inputs} channels cannot be cut into {groups} groups");
                return x.fail("Conv1d", Error::argument(why));
            }
            let filter =
                VariableSpec::new("W", [self.taps, inputs / groups, self.channels]).init(self.init.clone());
            let options = if self.causal { self.options.causal(self.taps) } else { self.options };
            let mut y = x.conv1d(&parameter(t, filter, x), options);
            if self.bias {
                y = add_bias(t, &y, self.channels);
            }
            self.activation.apply(&y)
        })
    }
}
