//! Instance normalisation (Ulyanov, Vedaldi and Lempitsky, 2016).

use super::affine::Affine;
use crate::graph::Tensor;
use crate::ops::Layout;
use crate::tower::TowerContext;

/// Each channel of each image normalised alone, then scaled and shifted. The same in training and inference.
#[derive(Clone, Debug, Default)]
pub struct InstanceNorm {
    affine: Affine,
}

impl InstanceNorm {
    /// With epsilon 1e-5.
    pub fn new() -> InstanceNorm {
        InstanceNorm::default()
    }

    /// With this epsilon.
    #[must_use]
    pub fn epsilon(mut self, epsilon: f64) -> InstanceNorm {
        self.affine.epsilon = epsilon;
        self
    }

    /// Without a shift.
    #[must_use]
    pub fn no_center(mut self) -> InstanceNorm {
        self.affine.center = false;
        self
    }

    /// Without a scale.
    #[must_use]
    pub fn no_scale(mut self) -> InstanceNorm {
        self.affine.scale = false;
        self
    }

    /// For images of this layout, input and output alike.
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> InstanceNorm {
        self.affine.layout = layout;
        self
    }

    /// Applies the layer, making (or sharing) `name/gamma` and `name/beta`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        self.affine.apply(t, ("InstanceNorm", name, 3), x, |x, epsilon| x.instance_norm(epsilon))
    }
}
