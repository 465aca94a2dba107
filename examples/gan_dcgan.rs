//! DCGAN (Radford et al., 2015) on MNIST padded to 32x32: generator and discriminator take a step at once.
//!
//! `cargo run --release --example gan_dcgan` trains for 16 epochs of 500 steps, with pictures of samples after each. Of 1,000
//! samples, a classifier then takes 680 for digits with confidence over 0.9, and finds all 10 classes; with `--assert`
//! it must be at least 8 classes, and most samples. `--trainer sync-replicated --devices cpu:0,cpu:1` trains two towers.

mod gan;

use tensorpack::Result;
use tensorpack::train::TrainArgs;

fn main() -> Result<()> {
    gan::train_dcgan(&TrainArgs::parse()?, |gan, config| gan.train_together(config))
}
