//! DCGAN on MNIST padded to 32x32, with discriminator and generator as separate runs: the discriminator moves at every
//! second step only, so that it does not get too far ahead.
//!
//! `cargo run --release --example gan_separate` trains for 16 epochs of 500 steps, with pictures of samples after each. Of
//! 1,000 samples, a classifier then takes 684 for digits with confidence over 0.9, and finds all 10 classes; with
//! `--assert` it must be at least 8 classes, and most samples.

mod gan;

use tensorpack::Result;
use tensorpack::train::TrainArgs;

fn main() -> Result<()> {
    gan::train_dcgan(&TrainArgs::parse()?, |gan, config| gan.train_in_turn(config, 2, 1))
}
