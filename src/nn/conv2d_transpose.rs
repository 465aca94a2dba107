//! The transposed convolution layer.

use super::Activation;
use super::bias::{add_bias, channels};
use super::parameter::parameter;
use crate::graph::{Init, Tensor, VariableSpec};
use crate::ops::{Conv2dOptions, Layout, Padding};
use crate::tower::TowerContext;
use tensorpack_tensor::Error;

/// A transposed 2-D convolution layer, `activation(convT(x, W) + b)`, over images
/// `[batch, height, width, channels]`, with `W` of shape `[height, width, out, in]`. With
/// [`Padding::Same`] the output is `stride` times as large as the input.
#[derive(Clone, Debug)]
#[doc(alias = "Deconv2D")]
pub struct Conv2dTranspose {
    channels: usize,
    kernel: [usize; 2],
    options: Conv2dOptions,
    layout: Layout,
    bias: bool,
    init: Init,
    activation: Activation,
}

impl Conv2dTranspose {
    /// Creates a layer with this many output channels and a square kernel.
    pub fn new(channels: usize, kernel: usize) -> Conv2dTranspose {
        Conv2dTranspose {
            channels,
            kernel: [kernel; 2],
            options: Conv2dOptions::default(),
            layout: Layout::Nhwc,
            bias: true,
            init: Init::he(),
            activation: Activation::Identity,
        }
    }

    /// Sets the stride, the upsampling factor in both directions (default: 1).
    #[must_use]
    pub fn stride(mut self, stride: usize) -> Conv2dTranspose {
        self.options.stride = [stride; 2];
        self
    }

    /// Sets the padding (default: [`Padding::Same`]). With [`Padding::Valid`] the output is larger
    /// by `max(kernel - stride, 0)`.
    #[must_use]
    pub fn padding(mut self, padding: Padding) -> Conv2dTranspose {
        self.options.padding = padding;
        self
    }

    /// Sets the layout of the input and the output (default: [`Layout::Nhwc`]).
    #[must_use]
    pub fn layout(self, layout: Layout) -> Conv2dTranspose {
        Conv2dTranspose { layout, ..self }
    }

    /// Omits the bias.
    #[must_use]
    pub fn no_bias(self) -> Conv2dTranspose {
        Conv2dTranspose { bias: false, ..self }
    }

    /// Sets the initializer of the filters (default: [`Init::he`]).
    #[must_use]
    pub fn init(self, init: Init) -> Conv2dTranspose {
        Conv2dTranspose { init, ..self }
    }

    /// Applies ReLU to the result.
    #[must_use]
    pub fn relu(self) -> Conv2dTranspose {
        self.activation(Activation::Relu)
    }

    /// Applies this activation to the result.
    #[must_use]
    pub fn activation(self, activation: Activation) -> Conv2dTranspose {
        Conv2dTranspose { activation, ..self }
    }

    /// Applies the layer, creating (or sharing) `name/W` and `name/b`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        t.layer(name, x, |t| {
            if x.is_poison() {
                return x.clone();
            }
            let nhwc = self.layout.to_nhwc(x);
            let Some(inputs) = channels(&nhwc, 4..=4) else {
                let why = format!("expected images with known channels, got {}", x.shape());
                return x.fail("Conv2dTranspose", Error::shape(why));
            };
            let [h, w] = self.kernel;
            let filter = VariableSpec::new("W", [h, w, self.channels, inputs]).init(self.init.clone());
            let mut y = nhwc.conv2d_transpose(&parameter(t, filter, x), self.options);
            if self.bias {
                y = add_bias(t, &y, self.channels);
            }
            self.layout.from_nhwc(&self.activation.apply(&y))
        })
    }
}
