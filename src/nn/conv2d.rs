//! The convolution layer.

use super::Activation;
use crate::graph::{Init, Tensor, VariableSpec};
use crate::ops::{Conv2dOptions, Padding};
use crate::tower::TowerContext;
use tensorpack_tensor::Error;

/// `activation(conv(x, W) + b)` over images `[batch, height, width, channels]`, with `W` as `[height, width, in, out]`.
#[derive(Clone, Debug)]
pub struct Conv2d {
    channels: usize,
    kernel: [usize; 2],
    options: Conv2dOptions,
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
            bias: true,
            init: Init::he(),
            activation: Activation::Identity,
        }
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
        Conv2d { activation: Activation::Relu, ..self }
    }

    /// Applies the layer, making (or sharing) `name/W` and `name/b`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        t.layer(name, |t| {
            if x.is_poison() {
                return x.clone();
            }
            let Some(inputs) = x.shape().last().and_then(|d| d.known()).filter(|_| x.rank() == 4) else {
                let why = format!(
                    "takes images [batch, height, width, channels] with known channels, not {}",
                    x.shape()
                );
                return x.fail("Conv2d", Error::shape(why));
            };
            let [h, w] = self.kernel;
            let filter = VariableSpec::new("W", [h, w, inputs, self.channels]).dtype(x.dtype());
            let mut y = x.conv2d(&t.variable(filter.init(self.init.clone())), self.options);
            if self.bias {
                let b = VariableSpec::new("b", [self.channels]).dtype(x.dtype()).init(Init::zeros());
                y = y + t.variable(b).value();
            }
            self.activation.apply(&y)
        })
    }
}
