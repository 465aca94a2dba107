//! Gradient clipping by global norm.

use super::GradProcessor;
use crate::graph::Graph;
use crate::optim::Gradient;
use crate::optim::setting::{Allowed, check_setting};
use tensorpack_tensor::DType;

/// Multiplies every gradient by `limit / max(limit, norm)`, where `norm` is the norm of all
/// gradients as one vector. This is TensorFlow's `clip_by_global_norm`; it keeps the direction.
#[derive(Clone, Debug)]
pub struct GlobalNormClip {
    limit: f64,
}

impl GlobalNormClip {
    /// Creates a processor that limits the global norm to `limit`.
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
        let scale = self.limit / norm.maximum(self.limit);
        // The squares may overflow although the gradients are finite. Propagate the infinity, so
        // that the run fails instead of scaling every gradient to zero.
        let scale = norm.is_finite().select(&scale, &norm);
        let clip = |g: Gradient| {
            let value = &g.value * scale.cast(g.value.dtype());
            g.with_value(value)
        };
        gradients.into_iter().map(clip).collect()
    }
}
