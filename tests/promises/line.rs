//! A linear model and its data.

use tensorpack::dataflow::{DataFlow, FromFn};
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;

/// Creates an optimizer.
pub(crate) type MakeOptimizer = fn() -> Box<dyn Optimizer>;

/// Learns `y = x . w`: a convex problem.
pub(crate) struct Line(pub(crate) MakeOptimizer);

impl ModelDesc for Line {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None, Some(3)]), TensorSpec::f32("y", [None, Some(1)])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let out = Linear::new(1).apply(t, "fc", &inputs[0]);
        (out - &inputs[1]).square().mean().named("cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        (self.0)()
    }
}

/// Returns a batch of eight examples of the line.
pub(crate) fn batch() -> Result<Vec<HostTensor>> {
    let x: Vec<f32> = (0..24).map(|i| ((i * i) as f32 * 0.37).sin()).collect();
    let y = x.chunks(3).map(|r| r[0] - 2.0 * r[1] + 0.5 * r[2]).collect();
    Ok(vec![HostTensor::new([8, 3], x)?, HostTensor::new([8, 1], y)?])
}

/// Returns a dataflow of `n` equal batches. It calls `read` for each one.
pub(crate) fn batches(n: u64, read: impl Fn() + Send + Sync + 'static) -> impl DataFlow {
    FromFn::new(n, move |_| {
        read();
        batch()
    })
}
