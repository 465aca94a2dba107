//! The model trait of the GAN examples.

use super::Losses;
use tensorpack::prelude::*;

/// A generator and a discriminator. The generator's variables are under `gen/`, the discriminator's
/// under `discrim/`; each loss trains only the variables of its own network.
#[doc(alias = "GANModelDesc")]
pub(crate) trait GanModelDesc {
    /// The inputs of the model.
    fn inputs(&self) -> Vec<TensorSpec>;

    /// Builds one replica of both networks and returns their losses. This is a tower function: it is
    /// called for every tower.
    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Losses;

    /// The optimizer of both. Called once.
    fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer>;
}
