//! A model with a single cost.

use super::TowerContext;
use crate::graph::{Tensor, TensorSpec};
use crate::optim::Optimizer;

/// A model that is trained with a single cost: its inputs, its graph and its optimizer.
#[doc(alias = "ModelDescBase")]
pub trait ModelDesc {
    /// Returns the input signature.
    #[doc(alias = "get_input_signature")]
    fn inputs(&self) -> Vec<TensorSpec>;

    /// Builds one replica and returns its cost, a scalar. In inference the returned tensor is
    /// ignored. This is a tower function: it is called several times.
    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor;

    /// Returns the optimizer. Called once.
    #[doc(alias = "get_optimizer")]
    fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer>;
}
