//! A model with one cost, packed.

use super::TowerContext;
use crate::graph::{Tensor, TensorSpec};
use crate::optim::Optimizer;

/// A model to be trained by one cost: what it takes, how it is built, how it is optimised.
pub trait ModelDesc {
    /// What it takes.
    #[doc(alias = "get_input_signature")]
    fn inputs(&self) -> Vec<TensorSpec>;

    /// Builds one replica, and returns its cost, a scalar; in inference whatever is returned is ignored. This is a tower
    /// function: it is called several times.
    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor;

    /// How it is optimised. Called once.
    #[doc(alias = "get_optimizer")]
    fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer>;
}
