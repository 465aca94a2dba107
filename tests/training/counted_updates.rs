//! A model that counts the updates of its variables, for asynchronous training.

use tensorpack::dataflow::{DataFlow, FromFn};
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;

pub(crate) type MakeOptimizer = fn() -> Box<dyn Optimizer>;

/// Every example moves the weight by the same amount, so the weight counts the updates.
pub(crate) struct Count(pub(crate) MakeOptimizer);

impl ModelDesc for Count {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let w = t.variable(VariableSpec::new("w", [257]).init(Init::zeros()));
        let seen = t.variable(VariableSpec::new("seen", []).init(Init::zeros()).non_trainable());
        let update = seen.update(|n| n + 1.0);
        t.graph().add_op_to_collection(tensorpack::graph::UPDATE_OPS, &update);
        (w.sum() * inputs[0].mean()).named("cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        (self.0)()
    }
}

pub(crate) fn ones() -> impl DataFlow {
    FromFn::new(100, |_| Ok(vec![HostTensor::new([1], vec![1f32])?]))
}
