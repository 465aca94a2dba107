//! The convolution layer.

use super::Activation;
use super::bias::{add_bias, channels};
use super::parameter::parameter;
use crate::graph::{Init, Tensor, VariableSpec};
use crate::ops::{Conv2dOptions, Layout, Padding};
use crate::tower::TowerContext;
use tensorpack_tensor::Error;

/// `activation(conv(x, W) + b)` over images `[batch, height, width, channels]`, with `W` as
/// `[height, width, in / groups, out]`.
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
    /// With this many output channels and a square kernel.
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

    /// With this many output channels.
    pub(super) fn channels(self, channels: usize) -> Conv2d {
        Conv2d { channels, ..self }
    }

    pub(super) fn image_layout(&self) -> Layout {
        self.layout
    }

    /// With a kernel of this height and width.
    #[must_use]
    pub fn kernel(self, height: usize, width: usize) -> Conv2d {
        Conv2d { kernel: [height, width], ..self }
    }

    /// Moving by `stride` in both directions.
    #[must_use]
    pub fn stride(mut self, stride: usize) -> Conv2d {
        self.options.stride = [stride; 2];
        self
    }

    /// With taps `dilation` apart.
    #[must_use]
    pub fn dilation(mut self, dilation: usize) -> Conv2d {
        self.options.dilation = [dilation; 2];
        self
    }

    /// With this padding instead of [`Padding::Same`].
    #[must_use]
    pub fn padding(mut self, padding: Padding) -> Conv2d {
        self.options.padding = padding;
        self
    }

    /// With channels cut into this many groups, each convolved alone.
    #[must_use]
    #[doc(alias = "split")]
    pub fn groups(mut self, groups: usize) -> Conv2d {
        self.options.groups = groups;
        self
    }

    /// For images of this layout, input and output alike.
    #[must_use]
    pub fn layout(self, layout: Layout) -> Conv2d {
        Conv2d { layout, ..self }
    }

    /// Without a bias.
    #[must_use]
    pub fn no_bias(self) -> Conv2d {
        Conv2d { bias: false, ..self }
    }

    /// With filters drawn like this.
    #[must_use]
    pub fn init(self, init: Init) -> Conv2d {
        Conv2d { init, ..self }
    }

    /// Followed by ReLU.
    #[must_use]
    pub fn relu(self) -> Conv2d {
        self.activation(Activation::Relu)
    }

    /// Followed by this.
    #[must_use]
    pub fn activation(self, activation: Activation) -> Conv2d {
        Conv2d { activation, ..self }
    }

    /// Applies the layer, making (or sharing) `name/W` and `name/b`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        t.layer(name, x, |t| {
            if x.is_poison() {
                return x.clone();
            }
            // Bias and activation see channels last too, so that all is done where the convolution writes.
            let rows = self.layout.to_nhwc(x);
            let Some(inputs) = channels(&rows, 4..=4) else {
                let why = format!(
                    "takes images [batch, height, width, channels] with known channels, not {}",
                    x.shape()
                );
                return x.fail("Conv2d", Error::shape(why));
            };
            let groups = self.options.groups;
            if groups == 0 || !inputs.is_multiple_of(groups) {
                let why = format!("{inputs} channels cannot be cut into {groups} groups");
                return x.fail("Conv2d", Error::argument(why));
            }
            let [h, w] = self.kernel;
            let filter = VariableSpec::new("W", [h, w, inputs / groups, self.channels]);
            let mut y = rows.conv2d(&parameter(t, filter.init(self.init.clone()), x), self.options);
            if self.bias {
                y = add_bias(t, &y, self.channels);
            }
            self.layout.from_nhwc(&self.activation.apply(&y))
        })
    }
}
