//! A model of two players, packed.

use super::Losses;
use tensorpack::prelude::*;

/// Two nets that play against each other. The generator's variables are under `gen/`, the discriminator's under
/// `discrim/`; each loss trains the variables of its own net alone.
#[doc(alias = "GANModelDesc")]
pub(crate) trait GanModelDesc {
    /// What it takes.
    fn inputs(&self) -> Vec<TensorSpec>;

    /// Builds one replica of both nets, and returns what each is to minimise. This is a tower function: it is called
    /// for every tower.
    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Losses;

    /// How both are optimised. Called once.
    fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer>;
}
