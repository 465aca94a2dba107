//! The 2-D convolution layer.

use super::Activation;
use super::bias::{add_bias, channels};
use super::parameter::parameter;
use crate::graph::{Init, Tensor, VariableSpec};
use crate::ops::{Conv2dOptions, Layout, Padding};
use crate::tower::TowerContext;
use tensorpack_tensor::Error;

/// A 2-D convolution layer, `activation(conv(x, W) + b)`, over images
/// `[batch, height, width, channels]`, with `W` of shape `[height, width, in / groups, out]`.
#[derive(Clone, Debug)]
pub struct Conv2d {
    channels: usize,
    kernel: [usize; 2],
    options: Conv2dOptions,
    layout: Layout,
    bias: bool,
    init: Init,
    activation: Activation,
}

impl Conv2d {
    /// Creates a layer with this many output channels and a square kernel.
    pub fn new(channels: usize, kernel: usize) -> Conv2d {
        Conv2d {
            channels,
            kernel: [kernel; 2],
            options: Conv2dOptions::default(),
            layout: Layout::Nhwc,
            bias: true,
            init: Init::he(),
            activation: Activation::Identity,
        }
    }

    /// Sets the number of output channels.
    pub(super) fn channels(self, channels: usize) -> Conv2d {
        Conv2d { channels, ..self }
    }

    pub(super) fn image_layout(&self) -> Layout {
        self.layout
    }

    /// Sets the height and width of the kernel.
    #[must_use]
    pub fn kernel(self, height: usize, width: usize) -> Conv2d {
        Conv2d { kernel: [height, width], ..self }
    }

    /// Sets the stride in both directions (default: 1).
    #[must_use]
    pub fn stride(mut self, stride: usize) -> Conv2d {
        self.options.stride = [stride; 2];
        self
    }

    /// Sets the dilation, the distance between filter taps (default: 1).
    #[must_use]
    pub fn dilation(mut self, dilation: usize) -> Conv2d {
        self.options.dilation = [dilation; 2];
        self
    }

    /// Sets the padding (default: [`Padding::Same`]).
    #[must_use]
    pub fn padding(mut self, padding: Padding) -> Conv2d {
        self.options.padding = padding;
        self
    }

    /// Splits the channels into this many groups and convolves each separately (default: 1).
    #[must_use]
    #[doc(alias = "split")]
    pub fn groups(mut self, groups: usize) -> Conv2d {
        self.options.groups = groups;
        self
    }

    /// Sets the layout of the input and the output (default: [`Layout::Nhwc`]).
    #[must_use]
    pub fn layout(self, layout: Layout) -> Conv2d {
        Conv2d { layout, ..self }
    }

    /// Omits the bias.
    #[must_use]
    pub fn no_bias(self) -> Conv2d {
        Conv2d { bias: false, ..self }
    }

    /// Sets the initializer of the filters (default: [`Init::he`]).
    #[must_use]
    pub fn init(self, init: Init) -> Conv2d {
        Conv2d { init, ..self }
    }

    /// Applies ReLU to the result.
    #[must_use]
    pub fn relu(self) -> Conv2d {
        self.activation(Activation::Relu)
    }

    /// Applies this activation to the result.
    #[must_use]
    pub fn activation(self, activation: Activation) -> Conv2d {
        Conv2d { activation, ..self }
    }

    /// Applies the layer, creating (or sharing) `name/W` and `name/b`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        t.layer(name, x, |t| {
            if x.is_poison() {
                return x.clone();
            }
            // Bias and activation also run channels-last, so that they fuse into the convolution.
            let nhwc = self.layout.to_nhwc(x);
            let Some(inputs) = channels(&nhwc, 4..=4) else {
                let why = format!(
                    "expected images [batch, height, width, channels] with known channels, got {}",
                    x.shape()
                );
                return x.fail("Conv2d", Error::shape(why));
            };
            let groups = self.options.groups;
            if groups == 0 || !inputs.is_multiple_of(groups) {
                let why = format!("{inputs} channels cannot be split into {groups} groups");
                return x.fail("Conv2d", Error::argument(why));
            }
            let [h, w] = self.kernel;
            let filter = VariableSpec::new("W", [h, w, inputs / groups, self.channels]);
            let mut y = nhwc.conv2d(&parameter(t, filter.init(self.init.clone()), x), self.options);
            if self.bias {
                y = add_bias(t, &y, self.channels);
            }
            self.layout.from_nhwc(&self.activation.apply(&y))
        })
    }
}
