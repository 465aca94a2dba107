//! DCGAN (Radford et al., 2015) on MNIST padded to 32x32: generator and discriminator take a step at once.
//!
//! `cargo run --release --example gan_dcgan` trains for 8 epochs of 500 steps, with pictures of samples after each. Of 1,000
//! samples, a classifier then takes 607 for digits with confidence over 0.9, and finds all 10 classes; with `--assert`
//! it must be at least 8 classes, and most samples. `--trainer sync-replicated --devices cpu:0,cpu:1` trains two towers.

mod gan;

use gan::{Dcgan, GanTrainer};
use tensorpack::prelude::*;
use tensorpack::train::CommandLine;

fn main() -> Result<()> {
    let line = CommandLine::parse()?;
    // The original's schedule is 200 epochs of 300 steps with 128 images each.
    let (batch, steps, epochs) = if line.full { (128, 300, 200) } else { (64, 500, 8) };
    let gan = GanTrainer::new(Dcgan { batch }, gan::data(&line, batch)?, gan::towers(&line)?)?;
    gan::add_samples(gan.graph(), Init::Uniform(-1.0, 1.0), Dcgan::Z, gan::generator)?;
    let config = TrainConfig::default()
        .callback(ModelSaver::new())
        .callback(gan::sample_grid())
        .steps_per_epoch(steps)
        .max_epoch(epochs);
    let trained = gan.train_together(line.apply(config)?)?;
    gan::judge(&line, &trained)
}
