//! The networks of DCGAN (Radford et al., 2015) for 32x32 images with one channel, with an eighth of
//! the paper's channels.

use tensorpack::prelude::*;

/// The generator: from noise `[batch, n]` to images `[batch, 32, 32, 1]` in -1 to 1. Its variables
/// are under `gen/`.
pub(crate) fn generator(t: &TowerContext, z: &Tensor) -> Tensor {
    let up = |channels: usize| Conv2dTranspose::new(channels, 4).no_bias().init(weights());
    let bn = BatchNorm::new().relu();
    t.auto_reuse(|t| {
        t.scope("gen", |t| {
            let x = z.expand_dims(1).expand_dims(1);
            let x = bn.apply(t, "bn0", &up(64).padding(Padding::Valid).apply(t, "up0", &x));
            let x = bn.apply(t, "bn1", &up(32).stride(2).apply(t, "up1", &x));
            let x = bn.apply(t, "bn2", &up(16).stride(2).apply(t, "up2", &x));
            up(1).stride(2).activation(Activation::Tanh).apply(t, "up3", &x)
        })
    })
}

/// The discriminator: one score for each of the images `[batch, 32, 32, channels]`. `norm` is the
/// normalization between the convolutions. Its variables are under `discrim/`; every call shares
/// those of the first.
pub(crate) fn discriminator(
    t: &TowerContext,
    images: &Tensor,
    norm: impl Fn(&TowerContext, &str, &Tensor) -> Tensor,
) -> Tensor {
    head(t, "out", 1, &discriminator_features(t, images, norm))
}

/// A linear layer on the features of the discriminator, with its variables under `discrim/`.
pub(crate) fn head(t: &TowerContext, name: &str, units: usize, features: &Tensor) -> Tensor {
    let layer = Linear::new(units).init(weights());
    t.auto_reuse(|t| t.scope("discrim", |t| layer.apply(t, name, features)))
}

/// The discriminator up to its last layer: features `[batch, n]` of the images.
pub(crate) fn discriminator_features(
    t: &TowerContext,
    images: &Tensor,
    norm: impl Fn(&TowerContext, &str, &Tensor) -> Tensor,
) -> Tensor {
    let down = |channels: usize| Conv2d::new(channels, 4).stride(2).no_bias().init(weights());
    t.auto_reuse(|t| {
        t.scope("discrim", |t| {
            let x = down(16).apply(t, "down0", images).leaky_relu(0.2);
            let x = norm(t, "norm1", &down(32).apply(t, "down1", &x)).leaky_relu(0.2);
            norm(t, "norm2", &down(64).apply(t, "down2", &x)).leaky_relu(0.2).flatten(1)
        })
    })
}

/// The initializer of filters.
fn weights() -> Init {
    Init::Normal(0.0, 0.02)
}
