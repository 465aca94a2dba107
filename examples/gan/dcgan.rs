//! DCGAN (Radford et al., 2015).

use super::{GanModelDesc, Losses, discriminator, generator, image_spec, real_images};
use tensorpack::prelude::*;

/// The model, on batches of this many images.
pub(crate) struct Dcgan {
    pub(crate) batch: usize,
}

impl Dcgan {
    /// The length of the noise that an image is made of.
    pub(crate) const Z: usize = 100;
}

impl GanModelDesc for Dcgan {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![image_spec()]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Losses {
        let z = Random::uniform(-1.0, 1.0).shape(t.graph(), &[self.batch, Dcgan::Z]);
        let fake = generator(t, &z);
        let look =
            |images: &Tensor| discriminator(t, images, |t, name, x| BatchNorm::new().apply(t, name, x));
        Losses::cross_entropy(t, &look(&real_images(&inputs[0])), &look(&fake))
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(2e-4).betas(0.5, 0.999).boxed()
    }
}
