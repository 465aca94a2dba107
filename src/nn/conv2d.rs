//! The 2-D convolution layer.

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

/// A 2-D convolution layer, `activation(conv(x, W) + b)`, over images
/// `[batch, height, width, channels]`, with `W` of shape `[height, width, in / groups, out]`.
#[derive(Clone, Debug)]
pub struct Conv2d {
    channels: usize,
    kernel: [usize; 2],
    stride: Setting<usize>,
    dilation: Setting<usize>,
    padding: Setting<Padding>,
    groups: Setting<usize>,
    layout: Setting<Layout>,
    weights: WeightSettings,
}

impl Conv2d {
    /// Creates a layer with this many output channels and a square kernel.
    pub fn new(channels: usize, kernel: usize) -> Conv2d {
        Conv2d {
            channels,
            kernel: [kernel; 2],
            stride: Setting::unset(1),
            dilation: Setting::unset(1),
            padding: Setting::unset(Padding::Same),
            groups: Setting::unset(1),
            layout: Setting::unset(Layout::Nhwc),
            weights: WeightSettings::default(),
        }
    }

    /// Sets the number of output channels.
    pub(super) fn channels(self, channels: usize) -> Conv2d {
        Conv2d { channels, ..self }
    }

    pub(super) fn image_layout(&self) -> Layout {
        *self.layout
    }

    /// Sets the height and width of the kernel.
    #[must_use]
    pub fn kernel(self, height: usize, width: usize) -> Conv2d {
        Conv2d { kernel: [height, width], ..self }
    }

    /// Sets the stride in both directions (default: 1).
    #[must_use]
    pub fn stride(mut self, stride: usize) -> Conv2d {
        self.stride = Setting::set(stride);
        self
    }

    /// Sets the dilation, the distance between filter taps (default: 1).
    #[must_use]
    pub fn dilation(mut self, dilation: usize) -> Conv2d {
        self.dilation = Setting::set(dilation);
        self
    }

    /// Sets the padding (default: [`Padding::Same`]).
    #[must_use]
    pub fn padding(mut self, padding: Padding) -> Conv2d {
        self.padding = Setting::set(padding);
        self
    }

    /// Splits the channels into this many groups and convolves each separately (default: 1).
    #[must_use]
    #[doc(alias = "split")]
    pub fn groups(mut self, groups: usize) -> Conv2d {
        self.groups = Setting::set(groups);
        self
    }

    /// Sets the layout of the input and the output (default: [`Layout::Nhwc`]).
    #[must_use]
    pub fn layout(self, layout: Layout) -> Conv2d {
        Conv2d { layout: Setting::set(layout), ..self }
    }

    /// Omits the bias.
    #[must_use]
    pub fn no_bias(mut self) -> Conv2d {
        self.weights.bias = Setting::set(false);
        self
    }

    /// Sets the initializer of the filters (default: [`Init::he`]).
    #[must_use]
    pub fn init(mut self, init: Init) -> Conv2d {
        self.weights.init = Setting::set(init);
        self
    }

    /// Adds this penalty of the weights `W`, such as [`l2_regularizer`](super::l2_regularizer), to the
    /// regularization losses: see
    /// [`regularize_cost_from_collection`](super::regularize_cost_from_collection).
    #[must_use]
    #[doc(alias = "kernel_regularizer")]
    pub fn regularizer(mut self, regularizer: impl Fn(&Tensor) -> Tensor + Send + Sync + 'static) -> Conv2d {
        self.weights.regularizer = Setting::set(Some(Regularizer::new(regularizer)));
        self
    }

    /// Applies ReLU to the result.
    #[must_use]
    pub fn relu(self) -> Conv2d {
        self.activation(Activation::Relu)
    }

    /// Applies this activation to the result.
    #[must_use]
    pub fn activation(mut self, activation: Activation) -> Conv2d {
        self.weights.activation = Setting::set(activation);
        self
    }

    /// Applies the layer, creating (or sharing) `name/W` and `name/b`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        t.with_scope_defaults(self).build(t, name, x)
    }

    /// Applies the layer with these settings, whatever the scope's defaults are.
    #[track_caller]
    pub(super) fn build(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
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
            let groups = *self.groups;
            if groups == 0 || !inputs.is_multiple_of(groups) {
                let why = format!("{inputs} channels cannot be split into {groups} groups");
                return x.fail("Conv2d", Error::argument(why));
            }
            let [h, w] = self.kernel;
            let filter = self.weights.weight(t, [h, w, inputs / groups, self.channels], x);
            let options = Conv2dOptions {
                stride: [*self.stride; 2],
                dilation: [*self.dilation; 2],
                padding: *self.padding,
                groups,
                ..Conv2dOptions::default()
            };
            let y = nhwc.conv2d(&filter, options);
            self.layout.from_nhwc(&self.weights.finish(t, y, self.channels))
        })
    }
}

impl ScopedLayer for Conv2d {
    fn blank() -> Conv2d {
        Conv2d::new(0, 0)
    }

    fn without_default(&self) -> Option<&'static str> {
        (self.kernel != [0, 0]).then_some("the kernel")
    }

    fn or(&self, scope: &Conv2d) -> Conv2d {
        Conv2d {
            channels: self.channels,
            kernel: self.kernel,
            stride: self.stride.or(&scope.stride),
            dilation: self.dilation.or(&scope.dilation),
            padding: self.padding.or(&scope.padding),
            groups: self.groups.or(&scope.groups),
            layout: self.layout.or(&scope.layout),
            weights: self.weights.or(&scope.weights),
        }
    }
}
