//! Gradients that are too large together, made smaller together.

use super::GradProcessor;
use crate::graph::Graph;
use crate::optim::Gradient;
use crate::optim::setting::{Allowed, check_setting};
use tensorpack_tensor::DType;

/// Every gradient times `limit / max(limit, norm)`, where `norm` is the norm of all of them as one vector: TensorFlow's
/// `clip_by_global_norm`, which keeps the direction.
#[derive(Clone, Debug)]
pub struct GlobalNormClip {
    limit: f64,
}

impl GlobalNormClip {
    /// With this largest norm.
    pub fn new(limit: f64) -> GlobalNormClip {
        GlobalNormClip { limit }
    }
}

impl GradProcessor for GlobalNormClip {
    #[track_caller]
    fn process(&self, graph: &Graph, gradients: Vec<Gradient>) -> Vec<Gradient> {
        check_setting(graph, "GlobalNormClip", "the limit", self.limit, Allowed::Positive);
        let squares = gradients.iter().map(|g| g.value.square().sum().cast(DType::F64));
        let Some(total) = squares.reduce(|a, b| a + b) else { return gradients };
        let norm = total.sqrt();
        let scale = self.limit / norm.maximum(&norm.constant_like(self.limit));
        // Squares may overflow where gradients do not. That is an error, not a step of nothing.
        let scale = norm.is_finite().select(&scale, &norm);
        let clip = |g: Gradient| {
            let value = &g.value * scale.cast(g.value.dtype());
            g.with_value(value)
        };
        gradients.into_iter().map(clip).collect()
    }
}
