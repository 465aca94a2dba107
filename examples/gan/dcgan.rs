//! DCGAN (Radford et al., 2015).

use super::{
    GanModelDesc, GanTrainer, Losses, add_samples, data, discriminator, generator, image_spec, real_images,
    run,
};
use tensorpack::prelude::*;
use tensorpack::train::{TrainArgs, Trained};

/// The length of the noise vector.
const Z: usize = 100;

/// The model, with this batch size.
struct Dcgan {
    batch: usize,
}

impl GanModelDesc for Dcgan {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![image_spec()]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Losses {
        let z = Random::uniform(-1.0, 1.0).shape(t.graph(), &[self.batch, Z]);
        let fake = generator(t, &z);
        let look =
            |images: &Tensor| discriminator(t, images, |t, name, x| BatchNorm::new().apply(t, name, x));
        Losses::cross_entropy(t, &look(&real_images(&inputs[0])), &look(&fake))
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(2e-4).betas(0.5, 0.999).boxed()
    }
}

/// Runs the example with these options; `train` defines the step.
pub(crate) fn train_dcgan(
    args: &TrainArgs,
    train: impl FnOnce(GanTrainer, RunConfig) -> Result<Trained>,
) -> Result<()> {
    // The original's schedule is 200 epochs of 300 steps with 128 images each.
    let (batch, length) = if args.full { (128, (200, 300)) } else { (64, (16, 500)) };
    let gan = GanTrainer::new(Dcgan { batch }, data(args, batch)?, args)?;
    add_samples(gan.graph(), Init::Uniform(-1.0, 1.0), Z, generator)?;
    run(args, gan, length, train)
}
