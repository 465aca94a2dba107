//! Group normalization (Wu and He, 2018).

use super::affine::Affine;
use crate::graph::Tensor;
use crate::ops::Layout;
use crate::tower::TowerContext;

/// Group normalization: normalizes each example over groups of adjacent channels, then scales and
/// shifts each channel. Training and inference compute the same.
#[derive(Clone, Debug)]
pub struct GroupNorm {
    groups: usize,
    affine: Affine,
}

impl GroupNorm {
    /// Creates a layer with this many groups and epsilon 1e-5.
    pub fn new(groups: usize) -> GroupNorm {
        GroupNorm { groups, affine: Affine::default() }
    }

    /// Sets epsilon (default: 1e-5).
    #[must_use]
    pub fn epsilon(mut self, epsilon: f64) -> GroupNorm {
        self.affine.epsilon = epsilon;
        self
    }

    /// Omits the shift `beta`.
    #[must_use]
    pub fn no_center(mut self) -> GroupNorm {
        self.affine.center = false;
        self
    }

    /// Omits the scale `gamma`.
    #[must_use]
    pub fn no_scale(mut self) -> GroupNorm {
        self.affine.scale = false;
        self
    }

    /// Sets the layout of the input and the output (default: [`Layout::Nhwc`]).
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> GroupNorm {
        self.affine.layout = layout;
        self
    }

    /// Applies the layer, creating (or sharing) `name/gamma` and `name/beta`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        let normalize = |x: &Tensor, epsilon: f64| x.group_norm(self.groups, epsilon);
        self.affine.apply(t, ("GroupNorm", name, 2), x, normalize)
    }
}
