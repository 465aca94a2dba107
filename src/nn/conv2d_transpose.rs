//! The transposed convolution layer.

use super::Activation;
use super::bias::{add_bias, channels};
use super::parameter::parameter;
use crate::graph::{Init, Tensor, VariableSpec};
use crate::ops::{Conv2dOptions, Layout, Padding};
use crate::tower::TowerContext;
use tensorpack_tensor::Error;

/// `activation(convT(x, W) + b)` over images `[batch, height, width, channels]`, with `W` as
/// `[height, width, out, in]`. An image grows by the stride.
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
    /// With this many output channels and a square kernel.
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

    /// Growing by `stride` in both directions.
    #[must_use]
    pub fn stride(mut self, stride: usize) -> Conv2dTranspose {
        self.options.stride = [stride; 2];
        self
    }

    /// With this padding instead of [`Padding::Same`]: with [`Padding::Valid`] the result is larger by what the kernel
    /// is larger than the stride.
    #[must_use]
    pub fn padding(mut self, padding: Padding) -> Conv2dTranspose {
        self.options.padding = padding;
        self
    }

    /// For images of this layout, input and output alike.
    #[must_use]
    pub fn layout(self, layout: Layout) -> Conv2dTranspose {
        Conv2dTranspose { layout, ..self }
    }

    /// Without a bias.
    #[must_use]
    pub fn no_bias(self) -> Conv2dTranspose {
        Conv2dTranspose { bias: false, ..self }
    }

    /// With filters drawn like this.
    #[must_use]
    pub fn init(self, init: Init) -> Conv2dTranspose {
        Conv2dTranspose { init, ..self }
    }

    /// Followed by ReLU.
    #[must_use]
    pub fn relu(self) -> Conv2dTranspose {
        self.activation(Activation::Relu)
    }

    /// Followed by this.
    #[must_use]
    pub fn activation(self, activation: Activation) -> Conv2dTranspose {
        Conv2dTranspose { activation, ..self }
    }

    /// Applies the layer, making (or sharing) `name/W` and `name/b`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        t.layer(name, x, |t| {
            if x.is_poison() {
                return x.clone();
            }
            let rows = self.layout.to_nhwc(x);
            let Some(inputs) = channels(&rows, 4..=4) else {
                let why = format!("takes images with known channels, not {}", x.shape());
                return x.fail("Conv2dTranspose", Error::shape(why));
            };
            let [h, w] = self.kernel;
            let filter = VariableSpec::new("W", [h, w, self.channels, inputs]).init(self.init.clone());
            let mut y = rows.conv2d_transpose(&parameter(t, filter, x), self.options);
            if self.bias {
                y = add_bias(t, &y, self.channels);
            }
            self.layout.from_nhwc(&self.activation.apply(&y))
        })
    }
}
