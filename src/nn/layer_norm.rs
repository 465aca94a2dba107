//! Layer normalisation (Ba, Kiros and Hinton, 2016).

use super::affine::Affine;
use crate::graph::Tensor;
use crate::ops::Layout;
use crate::tower::TowerContext;

/// Each example normalised over all its elements, or, [if so asked](LayerNorm::last_axis), over its channels at each
/// position alone; then scaled and shifted by channel. The same in training and inference.
#[derive(Clone, Debug, Default)]
pub struct LayerNorm {
    affine: Affine,
    last_axis: bool,
}

impl LayerNorm {
    /// Over all but the batch, with epsilon 1e-5.
    pub fn new() -> LayerNorm {
        LayerNorm::default()
    }

    /// Over the channels alone, as transformers want it: `[batch, time, channels]` is normalised at each time.
    #[must_use]
    pub fn last_axis(self) -> LayerNorm {
        LayerNorm { last_axis: true, ..self }
    }

    /// With this epsilon.
    #[must_use]
    pub fn epsilon(mut self, epsilon: f64) -> LayerNorm {
        self.affine.epsilon = epsilon;
        self
    }

    /// Without a shift.
    #[must_use]
    pub fn no_center(mut self) -> LayerNorm {
        self.affine.center = false;
        self
    }

    /// Without a scale.
    #[must_use]
    pub fn no_scale(mut self) -> LayerNorm {
        self.affine.scale = false;
        self
    }

    /// For images of this layout, input and output alike.
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> LayerNorm {
        self.affine.layout = layout;
        self
    }

    /// Applies the layer, making (or sharing) `name/gamma` and `name/beta`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        self.affine.apply(t, ("LayerNorm", name, 2), x, |x, epsilon| match self.last_axis {
            true => x.normalize(&[-1], epsilon),
            false => x.layer_norm(epsilon),
        })
    }
}
