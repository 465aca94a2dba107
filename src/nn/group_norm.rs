//! Group normalisation (Wu and He, 2018).

use super::affine::Affine;
use crate::graph::Tensor;
use crate::ops::Layout;
use crate::tower::TowerContext;

/// Each example normalised over groups of neighbouring channels, then scaled and shifted by channel. The same in
/// training and inference.
#[derive(Clone, Debug)]
pub struct GroupNorm {
    groups: usize,
    affine: Affine,
}

impl GroupNorm {
    /// In this many groups, with epsilon 1e-5.
    pub fn new(groups: usize) -> GroupNorm {
        GroupNorm { groups, affine: Affine::default() }
    }

    /// With this epsilon.
    #[must_use]
    pub fn epsilon(mut self, epsilon: f64) -> GroupNorm {
        self.affine.epsilon = epsilon;
        self
    }

    /// Without a shift.
    #[must_use]
    pub fn no_center(mut self) -> GroupNorm {
        self.affine.center = false;
        self
    }

    /// Without a scale.
    #[must_use]
    pub fn no_scale(mut self) -> GroupNorm {
        self.affine.scale = false;
        self
    }

    /// For images of this layout, input and output alike.
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> GroupNorm {
        self.affine.layout = layout;
        self
    }

    /// Applies the layer, making (or sharing) `name/gamma` and `name/beta`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        let normalized = |x: &Tensor, epsilon: f64| x.group_norm(self.groups, epsilon);
        self.affine.apply(t, ("GroupNorm", name, 2), x, normalized)
    }
}
