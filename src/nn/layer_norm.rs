//! Layer normalization (Ba, Kiros and Hinton, 2016).

use super::affine::Affine;
use crate::graph::Tensor;
use crate::ops::Layout;
use crate::tower::TowerContext;

/// Layer normalization: normalizes each example over all its elements, or over the channels of each
/// position ([`LayerNorm::last_axis`]), then scales and shifts each channel. Training and inference
/// compute the same.
#[derive(Clone, Debug, Default)]
pub struct LayerNorm {
    affine: Affine,
    last_axis: bool,
}

impl LayerNorm {
    /// Creates a layer that normalizes over all dimensions but the batch, with epsilon 1e-5.
    pub fn new() -> LayerNorm {
        LayerNorm::default()
    }

    /// Normalizes over the last dimension only, as transformers do: each time step of
    /// `[batch, time, channels]` is normalized separately.
    #[must_use]
    pub fn last_axis(self) -> LayerNorm {
        LayerNorm { last_axis: true, ..self }
    }

    /// Sets epsilon (default: 1e-5).
    #[must_use]
    pub fn epsilon(mut self, epsilon: f64) -> LayerNorm {
        self.affine.epsilon = epsilon;
        self
    }

    /// Omits the shift `beta`.
    #[must_use]
    pub fn no_center(mut self) -> LayerNorm {
        self.affine.center = false;
        self
    }

    /// Omits the scale `gamma`.
    #[must_use]
    pub fn no_scale(mut self) -> LayerNorm {
        self.affine.scale = false;
        self
    }

    /// Sets the layout of the input and the output (default: [`Layout::Nhwc`]).
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> LayerNorm {
        self.affine.layout = layout;
        self
    }

    /// Applies the layer, creating (or sharing) `name/gamma` and `name/beta`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        self.affine.apply(t, ("LayerNorm", name, 2), x, |x, epsilon| match self.last_axis {
            true => x.normalize(&[-1], epsilon),
            false => x.layer_norm(epsilon),
        })
    }
}
