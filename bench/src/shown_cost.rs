//! Models whose cost the training loop shows.

use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;

/// A model that adds its cost to the statistics.
pub(crate) struct ShownCost<M>(pub(crate) M);

impl<M: ModelDesc> ModelDesc for ShownCost<M> {
    fn inputs(&self) -> Vec<TensorSpec> {
        self.0.inputs()
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let cost = self.0.build_graph(t, inputs);
        t.moving_summary(&[&cost]);
        cost
    }

    fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer> {
        self.0.optimizer(t)
    }
}
