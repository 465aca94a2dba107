//! Instance normalization (Ulyanov, Vedaldi and Lempitsky, 2016).

use super::affine::Affine;
use crate::graph::Tensor;
use crate::ops::Layout;
use crate::tower::TowerContext;

/// Instance normalization: normalizes each channel of each image separately, then scales and shifts
/// it. Training and inference compute the same.
#[derive(Clone, Debug, Default)]
pub struct InstanceNorm {
    affine: Affine,
}

impl InstanceNorm {
    /// Creates a layer with epsilon 1e-5.
    pub fn new() -> InstanceNorm {
        InstanceNorm::default()
    }

    /// Sets epsilon (default: 1e-5).
    #[must_use]
    pub fn epsilon(mut self, epsilon: f64) -> InstanceNorm {
        self.affine.epsilon = epsilon;
        self
    }

    /// Omits the shift `beta`.
    #[must_use]
    pub fn no_center(mut self) -> InstanceNorm {
        self.affine.center = false;
        self
    }

    /// Omits the scale `gamma`.
    #[must_use]
    pub fn no_scale(mut self) -> InstanceNorm {
        self.affine.scale = false;
        self
    }

    /// Sets the layout of the input and the output (default: [`Layout::Nhwc`]).
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> InstanceNorm {
        self.affine.layout = layout;
        self
    }

    /// Applies the layer, creating (or sharing) `name/gamma` and `name/beta`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        self.affine.apply(t, ("InstanceNorm", name, 3), x, |x, epsilon| x.instance_norm(epsilon))
    }
}
