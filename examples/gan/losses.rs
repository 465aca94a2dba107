//! The losses of generator and discriminator.

use tensorpack::graph::UPDATE_OPS;
use tensorpack::prelude::*;

/// The losses of the two players.
pub(crate) struct Losses {
    /// The discriminator's loss.
    pub(crate) d_loss: Tensor,
    /// The generator's loss.
    pub(crate) g_loss: Tensor,
}

impl Losses {
    /// Losses from the discriminator's logits for real images and for fakes (Goodfellow et al., 2014;
    /// the generator's is the non-saturating one).
    #[doc(alias = "build_losses")]
    pub(crate) fn cross_entropy(t: &TowerContext, real: &Tensor, fake: &Tensor) -> Losses {
        // The cross entropy of "real" is softplus(-x), that of "fake" softplus(x).
        let on_real = (-real).softplus().mean();
        let on_fake = fake.softplus().mean();
        let d_loss = ((on_real + on_fake) * 0.5).named("d_loss");
        let g_loss = (-fake).softplus().mean().named("g_loss");
        let share = |right: Tensor, name: &str| right.cast(DType::F32).mean().named(name);
        let accuracy_real = share(real.greater(0.0), "accuracy_real");
        let accuracy_fake = share(fake.less(0.0), "accuracy_fake");
        t.moving_summary(&[&d_loss, &g_loss, &accuracy_real, &accuracy_fake]);
        Losses { d_loss, g_loss }
    }

    /// Wasserstein losses (Arjovsky et al., 2017). The difference of the critic's outputs estimates the
    /// distance between real images and fakes, up to a factor, if its slope is bounded. `penalty`, or
    /// clipped weights, bound it.
    pub(crate) fn wasserstein(
        t: &TowerContext,
        real: &Tensor,
        fake: &Tensor,
        penalty: Option<&Tensor>,
    ) -> Losses {
        let distance = (real.mean() - fake.mean()).named("distance");
        let d_loss = match penalty {
            Some(penalty) => penalty - &distance,
            None => -&distance,
        };
        let d_loss = d_loss.named("d_loss");
        let g_loss = (-fake.mean()).named("g_loss");
        t.moving_summary(&[&d_loss, &g_loss, &distance]);
        Losses { d_loss, g_loss }
    }

    /// The losses of BEGAN (Berthelot et al., 2017), from the reconstruction errors of an auto-encoder for
    /// real images and for fakes. The auto-encoder tries to reconstruct real images well and fakes badly,
    /// the generator to make fakes that it reconstructs well.
    ///
    /// The variable `k` weighs the errors of fakes. It moves by `rate` times the difference of `gamma *
    /// real` and `fake`, so that the errors of fakes become `gamma` times those of real images. Statistics:
    /// `k`, and `measure`, which falls as training converges.
    pub(crate) fn boundary_equilibrium(
        t: &TowerContext,
        [real, fake]: [&Tensor; 2],
        gamma: f64,
        rate: f64,
    ) -> Losses {
        let k = t.variable(VariableSpec::new("k", []).init(Init::zeros()).non_trainable());
        let d_loss = (real - k.value() * fake).named("d_loss");
        let g_loss = fake.named("g_loss");
        // All towers share one k, which follows their mean errors.
        let real = t.all_reduce_mean("mean_real", &real.stop_gradient()).named("loss_real");
        let fake = t.all_reduce_mean("mean_fake", &fake.stop_gradient()).named("loss_fake");
        let balance = &real * gamma - &fake;
        let measure = (&real + balance.abs()).named("measure");
        if t.is_main_training_tower() {
            let update = k.update(|k| (k + balance * rate).clip(0.0, 1.0));
            t.graph().add_op_to_collection(UPDATE_OPS, &update);
        }
        t.moving_summary(&[&d_loss, &real, &fake, &measure]);
        t.summary(&[k.value()]);
        Losses { d_loss, g_loss }
    }
}
