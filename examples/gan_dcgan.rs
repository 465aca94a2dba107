//! DCGAN (Radford et al., 2015) on MNIST padded to 32x32: one operation updates generator and
//! discriminator.
//!
//! `cargo run --release --example gan_dcgan` trains for 16 epochs of 500 steps and writes an image
//! of samples after each. A classifier then recognizes 725 of 1,000 samples as digits with
//! confidence over 0.9, and finds all 10 classes; with `--assert` the example fails below 8 classes
//! or half of the samples. `--trainer sync-replicated --devices cpu:0,cpu:1` trains two towers.

mod gan;

use tensorpack::Result;
use tensorpack::train::TrainArgs;

fn main() -> Result<()> {
    gan::train_dcgan(
        &TrainArgs::parse_program(
            "Trains a DCGAN on MNIST, generator and discriminator in one operation",
            &gan::NEED_ONE_COST,
        )?,
        |gan, config| gan.train_together(config),
    )
}
