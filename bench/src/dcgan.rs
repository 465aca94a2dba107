//! DCGAN: one step updates generator and discriminator, both with gradients at the current weights.

use tensorpack::graph::{Op, Tensor, TensorSpec};
use tensorpack::nn::{Activation, BatchNorm, Conv2d, Conv2dTranspose};
use tensorpack::ops::{Padding, Random};
use tensorpack::optim::{Adam, apply_gradients, compute_gradients_of};
use tensorpack::tower::TowerContext;
use tensorpack::{DType, Result};

/// The shape of an image.
pub(crate) const IMAGE: [usize; 3] = [32, 32, 3];
const NOISE: usize = 100;

pub(crate) fn build(t: &TowerContext, batch: usize) -> Result<(Tensor, Op)> {
    let graph = t.graph();
    let [h, w, c] = IMAGE.map(Some);
    let real = graph.placeholder(&TensorSpec::f32("image", [None, h, w, c]));
    let noise = Random::normal(0.0, 1.0).dtype(DType::F32).shape(graph, &[batch, 1, 1, NOISE]);
    let fake = t.scope("gen", |t| generator(t, &noise));
    let on_real = t.scope("discrim", |t| discriminator(t, &real));
    let on_fake = t.reuse(|t| t.scope("discrim", |t| discriminator(t, &fake)));
    // The cross entropy of "real" is softplus(-x), that of "fake" softplus(x).
    let d_cost = ((-&on_real).softplus().mean() + on_fake.softplus().mean()).named("d_cost");
    let g_cost = (-&on_fake).softplus().mean().named("g_cost");
    let steps = [minimize(&d_cost, "discrim/.*")?, minimize(&g_cost, "gen/.*")?];
    Ok((d_cost, graph.group(&steps.iter().collect::<Vec<_>>())))
}

/// Returns an Adam update of the variables whose names match `pattern`.
fn minimize(cost: &Tensor, pattern: &str) -> Result<Op> {
    let gradients = compute_gradients_of(cost, pattern)?;
    apply_gradients(&Adam::new(2e-4).betas(0.5, 0.999), cost.graph(), &gradients)
}

fn generator(t: &TowerContext, noise: &Tensor) -> Tensor {
    let up = |channels: usize| Conv2dTranspose::new(channels, 4).no_bias();
    let bn = BatchNorm::new().relu();
    let x = up(256).padding(Padding::Valid).apply(t, "up0", noise);
    let x = bn.apply(t, "bn0", &x);
    let x = bn.apply(t, "bn1", &up(128).stride(2).apply(t, "up1", &x));
    let x = bn.apply(t, "bn2", &up(64).stride(2).apply(t, "up2", &x));
    up(3).stride(2).activation(Activation::Tanh).apply(t, "up3", &x)
}

fn discriminator(t: &TowerContext, image: &Tensor) -> Tensor {
    let down = |channels: usize| Conv2d::new(channels, 4).stride(2).no_bias();
    let leaky = |x: &Tensor| x.leaky_relu(0.2);
    let bn = BatchNorm::new();
    let x = leaky(&down(64).apply(t, "down0", image));
    let x = leaky(&bn.apply(t, "bn1", &down(128).apply(t, "down1", &x)));
    let x = leaky(&bn.apply(t, "bn2", &down(256).apply(t, "down2", &x)));
    Conv2d::new(1, 4).padding(Padding::Valid).no_bias().apply(t, "down3", &x)
}
