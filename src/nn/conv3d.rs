//! The 3-D convolution layer.

use super::Activation;
use super::bias::{add_bias, channels};
use super::parameter::parameter;
use crate::graph::{Init, Tensor, VariableSpec};
use crate::ops::{Conv3dOptions, Padding3d};
use crate::tower::TowerContext;
use tensorpack_tensor::Error;

/// A 3-D convolution layer, `activation(conv(x, W) + b)`, over volumes
/// `[batch, depth, height, width, channels]`, with `W` of shape
/// `[depth, height, width, in / groups, out]`. The depth must be known.
#[derive(Clone, Debug)]
pub struct Conv3d {
    channels: usize,
    kernel: [usize; 3],
    options: Conv3dOptions,
    bias: bool,
    init: Init,
    activation: Activation,
}

impl Conv3d {
    /// Creates a layer with this many output channels and a cubic kernel.
    pub fn new(channels: usize, kernel: usize) -> Conv3d {
        Conv3d {
            channels,
            kernel: [kernel; 3],
            options: Conv3dOptions::default(),
            bias: true,
            init: Init::he(),
            activation: Activation::Identity,
        }
    }

    /// Sets the depth, height and width of the kernel.
    #[must_use]
    pub fn kernel(self, depth: usize, height: usize, width: usize) -> Conv3d {
        Conv3d { kernel: [depth, height, width], ..self }
    }

    /// Sets the stride in all directions (default: 1).
    #[must_use]
    pub fn stride(mut self, stride: usize) -> Conv3d {
        self.options.stride = [stride; 3];
        self
    }

    /// Sets the dilation, the distance between filter taps (default: 1).
    #[must_use]
    pub fn dilation(mut self, dilation: usize) -> Conv3d {
        self.options.dilation = [dilation; 3];
        self
    }

    /// Sets the padding (default: [`Padding3d::Same`]).
    #[must_use]
    pub fn padding(mut self, padding: Padding3d) -> Conv3d {
        self.options.padding = padding;
        self
    }

    /// Splits the channels into this many groups and convolves each separately (default: 1).
    #[must_use]
    pub fn groups(mut self, groups: usize) -> Conv3d {
        self.options.groups = groups;
        self
    }

    /// Omits the bias.
    #[must_use]
    pub fn no_bias(self) -> Conv3d {
        Conv3d { bias: false, ..self }
    }

    /// Sets the initializer of the filters (default: [`Init::he`]).
    #[must_use]
    pub fn init(self, init: Init) -> Conv3d {
        Conv3d { init, ..self }
    }

    /// Applies ReLU to the result.
    #[must_use]
    pub fn relu(self) -> Conv3d {
        self.activation(Activation::Relu)
    }

    /// Applies this activation to the result.
    #[must_use]
    pub fn activation(self, activation: Activation) -> Conv3d {
        Conv3d { activation, ..self }
    }

    /// Applies the layer, creating (or sharing) `name/W` and `name/b`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        t.layer(name, x, |t| {
            if x.is_poison() {
                return x.clone();
            }
            let Some(inputs) = channels(x, 5..=5) else {
                let why = format!(
                    "expected volumes [batch, depth, height, width, channels] with known channels, got {}",
                    x.shape()
                );
                return x.fail("Conv3d", Error::shape(why));
            };
            let groups = self.options.groups;
            if groups == 0 || !inputs.is_multiple_of(groups) {
                let why = format!("{inputs} channels cannot be split into {groups} groups");
                return x.fail("Conv3d", Error::argument(why));
            }
            let [d, h, w] = self.kernel;
            let filter = VariableSpec::new("W", [d, h, w, inputs / groups, self.channels]);
            let mut y = x.conv3d(&parameter(t, filter.init(self.init.clone()), x), self.options);
            if self.bias {
                y = add_bias(t, &y, self.channels, &Init::zeros());
            }
            self.activation.apply(&y)
        })
    }
}
