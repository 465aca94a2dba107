//! Convolution of each channel alone.

use super::bias::channels;
use super::{Activation, Conv2d};
use crate::graph::{Init, Tensor};
use crate::ops::{Layout, Padding};
use crate::tower::TowerContext;
use tensorpack_tensor::Error;

/// A [`Conv2d`] in which each channel is a group of its own, with `W` as `[height, width, 1, channels * multiplier]`.
#[derive(Clone, Debug)]
pub struct DepthwiseConv2d {
    multiplier: usize,
    conv: Conv2d,
}

impl DepthwiseConv2d {
    /// With one filter for each channel, and a square kernel.
    pub fn new(kernel: usize) -> DepthwiseConv2d {
        DepthwiseConv2d { multiplier: 1, conv: Conv2d::new(1, kernel) }
    }

    /// With this many filters for each channel: its outputs are neighbours.
    #[must_use]
    pub fn multiplier(self, multiplier: usize) -> DepthwiseConv2d {
        DepthwiseConv2d { multiplier, ..self }
    }

    /// Moving by `stride` in both directions.
    #[must_use]
    pub fn stride(self, stride: usize) -> DepthwiseConv2d {
        DepthwiseConv2d { conv: self.conv.stride(stride), ..self }
    }

    /// With taps `dilation` apart.
    #[must_use]
    pub fn dilation(self, dilation: usize) -> DepthwiseConv2d {
        DepthwiseConv2d { conv: self.conv.dilation(dilation), ..self }
    }

    /// With this padding instead of [`Padding::Same`].
    #[must_use]
    pub fn padding(self, padding: Padding) -> DepthwiseConv2d {
        DepthwiseConv2d { conv: self.conv.padding(padding), ..self }
    }

    /// For images of this layout, input and output alike.
    #[must_use]
    pub fn layout(self, layout: Layout) -> DepthwiseConv2d {
        DepthwiseConv2d { conv: self.conv.layout(layout), ..self }
    }

    /// Without a bias.
    #[must_use]
    pub fn no_bias(self) -> DepthwiseConv2d {
        DepthwiseConv2d { conv: self.conv.no_bias(), ..self }
    }

    /// With filters drawn like this.
    #[must_use]
    pub fn init(self, init: Init) -> DepthwiseConv2d {
        DepthwiseConv2d { conv: self.conv.init(init), ..self }
    }

    /// Followed by ReLU.
    #[must_use]
    pub fn relu(self) -> DepthwiseConv2d {
        self.activation(Activation::Relu)
    }

    /// Followed by this.
    #[must_use]
    pub fn activation(self, activation: Activation) -> DepthwiseConv2d {
        DepthwiseConv2d { conv: self.conv.activation(activation), ..self }
    }

    /// Applies the layer, making (or sharing) `name/W` and `name/b`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        if x.is_poison() {
            return x.clone();
        }
        let Some(inputs) = channels(&self.conv.image_layout().to_nhwc(x), 4..=4) else {
            let why = format!("takes images with known channels, not {}", x.shape());
            return x.fail("DepthwiseConv2d", Error::shape(why));
        };
        self.conv.clone().groups(inputs).channels(inputs.saturating_mul(self.multiplier)).apply(t, name, x)
    }
}
