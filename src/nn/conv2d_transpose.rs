//! The transposed convolution layer.

use super::Activation;
use super::argscope::ScopedLayer;
use super::bias::channels;
use super::regularize::Regularizer;
use super::setting::Setting;
use super::weight_settings::WeightSettings;
use crate::graph::{Init, Tensor};
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
    stride: Setting<usize>,
    padding: Setting<Padding>,
    layout: Setting<Layout>,
    weights: WeightSettings,
}

impl Conv2dTranspose {
    /// Creates a layer with this many output channels and a square kernel.
    pub fn new(channels: usize, kernel: usize) -> Conv2dTranspose {
        Conv2dTranspose {
            channels,
            kernel: [kernel; 2],
            stride: Setting::unset(1),
            padding: Setting::unset(Padding::Same),
            layout: Setting::unset(Layout::Nhwc),
            weights: WeightSettings::default(),
        }
    }

    /// Sets the stride, the upsampling factor in both directions (default: 1).
    #[must_use]
    pub fn stride(mut self, stride: usize) -> Conv2dTranspose {
        self.stride = Setting::set(stride);
        self
    }

    /// Sets the padding (default: [`Padding::Same`]). With [`Padding::Valid`] the output is larger
    /// by `max(kernel - stride, 0)`.
    #[must_use]
    pub fn padding(mut self, padding: Padding) -> Conv2dTranspose {
        self.padding = Setting::set(padding);
        self
    }

    /// Sets the layout of the input and the output (default: [`Layout::Nhwc`]).
    #[must_use]
    pub fn layout(self, layout: Layout) -> Conv2dTranspose {
        Conv2dTranspose { layout: Setting::set(layout), ..self }
    }

    /// Omits the bias.
    #[must_use]
    pub fn no_bias(mut self) -> Conv2dTranspose {
        self.weights.bias = Setting::set(false);
        self
    }

    /// Sets the initializer of the filters (default: [`Init::he`]).
    #[must_use]
    pub fn init(mut self, init: Init) -> Conv2dTranspose {
        self.weights.init = Setting::set(init);
        self
    }

    /// Adds this penalty of the weights `W`, such as [`l2_regularizer`](super::l2_regularizer), to the
    /// regularization losses: see
    /// [`regularize_cost_from_collection`](super::regularize_cost_from_collection).
    #[must_use]
    #[doc(alias = "kernel_regularizer")]
    pub fn regularizer(
        mut self,
        regularizer: impl Fn(&Tensor) -> Tensor + Send + Sync + 'static,
    ) -> Conv2dTranspose {
        self.weights.regularizer = Setting::set(Some(Regularizer::new(regularizer)));
        self
    }

    /// Applies ReLU to the result.
    #[must_use]
    pub fn relu(self) -> Conv2dTranspose {
        self.activation(Activation::Relu)
    }

    /// Applies this activation to the result.
    #[must_use]
    pub fn activation(mut self, activation: Activation) -> Conv2dTranspose {
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
            let nhwc = layer.layout.to_nhwc(x);
            let Some(inputs) = channels(&nhwc, 4..=4) else {
                let why = format!("expected images with known channels, got {}", x.shape());
                return x.fail("Conv2dTranspose", Error::shape(why));
            };
            let [h, w] = layer.kernel;
            let filter = layer.weights.weight(t, [h, w, layer.channels, inputs], x);
            let options = Conv2dOptions {
                stride: [*layer.stride; 2],
                padding: *layer.padding,
                ..Conv2dOptions::default()
            };
            let y = nhwc.conv2d_transpose(&filter, options);
            layer.layout.from_nhwc(&layer.weights.finish(t, y, layer.channels))
        })
    }
}

impl ScopedLayer for Conv2dTranspose {
    fn blank() -> Conv2dTranspose {
        Conv2dTranspose::new(0, 0)
    }

    fn or(&self, scope: &Conv2dTranspose) -> Conv2dTranspose {
        Conv2dTranspose {
            channels: self.channels,
            kernel: self.kernel,
            stride: self.stride.or(&scope.stride),
            padding: self.padding.or(&scope.padding),
            layout: self.layout.or(&scope.layout),
            weights: self.weights.or(&scope.weights),
        }
    }
}
