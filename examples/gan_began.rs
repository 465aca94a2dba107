//! BEGAN

mod gan;

use gan::{GanModelDesc, GanTrainer, Losses};
use tensorpack::prelude::*;
use tensorpack::train::TrainArgs;

fn env(name: &str, default: f64) -> f64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

struct Began {
    batch: usize,
    learning_rate: Schedule,
    nf: usize,
    nh: usize,
    z: usize,
}

fn decoder(t: &TowerContext, nf: usize, h: &Tensor) -> Tensor {
    let n = nf as isize;
    let conv = Conv2d::new(nf, 3).activation(Activation::Elu);
    let x = Linear::new(nf * 64).apply(t, "fc", h).reshape(&[-1, 8, 8, n]);
    let x = conv.apply(t, "conv1_0", &x);
    let x = conv.apply(t, "conv1_1", &x).resize_nearest([16, 16]);
    let x = conv.apply(t, "conv2_0", &x);
    let x = conv.apply(t, "conv2_1", &x).resize_nearest([32, 32]);
    let x = conv.apply(t, "conv3_0", &x);
    let x = Conv2d::new(1, 3).apply(t, "out", &x);
    if env("TANH", 0.0) > 0.0 { x.tanh() } else { x }
}

fn encoder(t: &TowerContext, nf: usize, nh: usize, x: &Tensor) -> Tensor {
    let conv = |n: usize| Conv2d::new(n * nf, 3).activation(Activation::Elu);
    let x = conv(1).apply(t, "conv1_0", x);
    let x = conv(1).stride(2).apply(t, "conv1_1", &x);
    let x = conv(2).apply(t, "conv2_0", &x);
    let x = conv(2).stride(2).apply(t, "conv2_1", &x);
    let x = conv(3).apply(t, "conv3_0", &x);
    Linear::new(nh).apply(t, "fc", &x)
}

fn generator(t: &TowerContext, nf: usize, z: &Tensor) -> Tensor {
    t.auto_reuse(|t| t.scope("gen", |t| decoder(t, nf, z)))
}

impl GanModelDesc for Began {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![gan::image_spec()]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Losses {
        let real = gan::real_images(&inputs[0]);
        let z = Random::uniform(-1.0, 1.0).shape(t.graph(), &[self.batch, self.z]);
        let fake = generator(t, self.nf, &z);
        let loss = |x: &Tensor| {
            let y = t.auto_reuse(|t| {
                t.scope("discrim", |t| {
                    let h = t.scope("enc", |t| encoder(t, self.nf, self.nh, x));
                    t.scope("dec", |t| decoder(t, self.nf, &h))
                })
            });
            (y - x).abs().mean()
        };
        Losses::boundary_equilibrium(t, [&loss(&real), &loss(&fake)], env("GAMMA", 0.5), env("LAMBDA", 0.001))
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(self.learning_rate.clone()).betas(0.5, 0.999).boxed()
    }
}

fn main() -> Result<()> {
    let args = TrainArgs::parse_program("Trains a BEGAN on MNIST", &[])?;
    let steps = env("STEPS", 500.0) as u64;
    let epochs = env("EPOCHS", 8.0) as u64;
    let batch = env("BATCH", 32.0) as usize;
    let lr = env("LR", 2e-4);
    let (nf, z) = (env("NF", 16.0) as usize, env("Z", 64.0) as usize);
    let model = Began {
        batch,
        learning_rate: Schedule::polynomial(lr, lr * 0.05, steps * epochs, 1.0),
        nf,
        nh: env("NH", 64.0) as usize,
        z,
    };
    let gan = GanTrainer::new(model, gan::data(&args, batch)?, gan::towers(&args)?)?;
    gan::add_samples(gan.graph(), Init::Uniform(-1.0, 1.0), z, |t, z| generator(t, nf, z))?;
    gan::run(&args, gan, (epochs, steps), |gan, config| gan.train_together(config))
}
