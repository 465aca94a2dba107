//! A model with a single cost and named inputs.

use super::{Inputs, ModelDesc, TowerContext};
use crate::graph::{Tensor, TensorSpec};
use crate::optim::Optimizer;

/// A model that is trained with a single cost and gets its inputs by name. Every `Model` is a
/// [`ModelDesc`]; implement that trait instead if the inputs are known only at run time.
///
/// ```
/// use tensorpack::prelude::*;
///
/// #[derive(Inputs)]
/// struct Batch {
///     #[input(f32, [None, 4])]
///     x: Tensor,
///     #[input(f32, [None])]
///     y: Tensor,
/// }
///
/// struct Regression;
///
/// impl Model for Regression {
///     type Inputs = Batch;
///
///     fn build_graph(&self, t: &TowerContext, batch: Batch) -> Tensor {
///         let prediction = Linear::new(1).apply(t, "fc", &batch.x).squeeze(1);
///         (prediction - batch.y).square().mean().named("cost")
///     }
///
///     fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer> {
///         Sgd::new(t.hyper_param("learning_rate", 0.1)).boxed()
///     }
/// }
/// ```
pub trait Model {
    /// The inputs.
    type Inputs: Inputs;

    /// Builds one replica and returns its cost, as [`ModelDesc::build_graph`] does.
    fn build_graph(&self, t: &TowerContext, inputs: Self::Inputs) -> Tensor;

    /// Returns the optimizer. Called once.
    #[doc(alias = "get_optimizer")]
    fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer>;
}

impl<M: Model> ModelDesc for M {
    fn inputs(&self) -> Vec<TensorSpec> {
        M::Inputs::signature()
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        match M::Inputs::from_tensors(inputs) {
            Ok(inputs) => Model::build_graph(self, t, inputs),
            Err(e) => {
                t.graph().record("inputs", &[], e);
                Tensor::poison(t.graph())
            }
        }
    }

    fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer> {
        Model::optimizer(self, t)
    }
}
