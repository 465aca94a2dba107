//! The depthwise convolution layer.

use super::argscope::ScopedLayer;
use super::bias::channels;
use super::setting::Setting;
use super::{Activation, Conv2d};
use crate::graph::{Init, Tensor};
use crate::ops::{Layout, Padding};
use crate::tower::TowerContext;
use tensorpack_tensor::Error;

/// A depthwise convolution: a [`Conv2d`] in which each input channel is its own group, with `W` of
/// shape `[height, width, 1, channels * multiplier]`.
#[derive(Clone, Debug)]
pub struct DepthwiseConv2d {
    multiplier: Setting<usize>,
    conv: Conv2d,
}

impl DepthwiseConv2d {
    /// Creates a layer with one filter per channel and a square kernel.
    pub fn new(kernel: usize) -> DepthwiseConv2d {
        DepthwiseConv2d { multiplier: Setting::unset(1), conv: Conv2d::new(1, kernel) }
    }

    /// Sets the number of filters per input channel (default: 1). The outputs of one input channel
    /// are adjacent.
    #[must_use]
    pub fn multiplier(self, multiplier: usize) -> DepthwiseConv2d {
        DepthwiseConv2d { multiplier: Setting::set(multiplier), ..self }
    }

    /// Sets the stride in both directions (default: 1).
    #[must_use]
    pub fn stride(self, stride: usize) -> DepthwiseConv2d {
        DepthwiseConv2d { conv: self.conv.stride(stride), ..self }
    }

    /// Sets the dilation, the distance between filter taps (default: 1).
    #[must_use]
    pub fn dilation(self, dilation: usize) -> DepthwiseConv2d {
        DepthwiseConv2d { conv: self.conv.dilation(dilation), ..self }
    }

    /// Sets the padding (default: [`Padding::Same`]).
    #[must_use]
    pub fn padding(self, padding: Padding) -> DepthwiseConv2d {
        DepthwiseConv2d { conv: self.conv.padding(padding), ..self }
    }

    /// Sets the layout of the input and the output (default: [`Layout::Nhwc`]).
    #[must_use]
    pub fn layout(self, layout: Layout) -> DepthwiseConv2d {
        DepthwiseConv2d { conv: self.conv.layout(layout), ..self }
    }

    /// Omits the bias.
    #[must_use]
    pub fn no_bias(self) -> DepthwiseConv2d {
        DepthwiseConv2d { conv: self.conv.no_bias(), ..self }
    }

    /// Sets the initializer of the filters (default: [`Init::he`]).
    #[must_use]
    pub fn init(self, init: Init) -> DepthwiseConv2d {
        DepthwiseConv2d { conv: self.conv.init(init), ..self }
    }

    /// Adds this penalty of the weights `W`, such as [`l2_regularizer`](super::l2_regularizer), to the
    /// regularization losses: see
    /// [`regularize_cost_from_collection`](super::regularize_cost_from_collection).
    #[must_use]
    pub fn regularizer(
        self,
        regularizer: impl Fn(&Tensor) -> Tensor + Send + Sync + 'static,
    ) -> DepthwiseConv2d {
        DepthwiseConv2d { conv: self.conv.regularizer(regularizer), ..self }
    }

    /// Applies ReLU to the result.
    #[must_use]
    pub fn relu(self) -> DepthwiseConv2d {
        self.activation(Activation::Relu)
    }

    /// Applies this activation to the result.
    #[must_use]
    pub fn activation(self, activation: Activation) -> DepthwiseConv2d {
        DepthwiseConv2d { conv: self.conv.activation(activation), ..self }
    }

    /// Applies the layer, creating (or sharing) `name/W` and `name/b`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        if x.is_poison() {
            return x.clone();
        }
        let DepthwiseConv2d { multiplier, conv } = t.with_scope_defaults(self);
        let Some(inputs) = channels(&conv.image_layout().to_nhwc(x), 4..=4) else {
            let why = format!("expected images with known channels, got {}", x.shape());
            return x.fail("DepthwiseConv2d", Error::shape(why));
        };
        conv.groups(inputs).channels(inputs.saturating_mul(*multiplier)).build(t, name, x)
    }
}

impl ScopedLayer for DepthwiseConv2d {
    fn blank() -> DepthwiseConv2d {
        DepthwiseConv2d::new(0)
    }

    fn or(&self, scope: &DepthwiseConv2d) -> DepthwiseConv2d {
        DepthwiseConv2d { multiplier: self.multiplier.or(&scope.multiplier), conv: self.conv.or(&scope.conv) }
    }
}
