//! The losses of generator and discriminator.

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
        let undecided = t.graph().constant(HostTensor::scalar(0.0f32));
        let accuracy_real = share(real.greater(&undecided), "accuracy_real");
        let accuracy_fake = share(fake.less(&undecided), "accuracy_fake");
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
}
