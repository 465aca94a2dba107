//! DCGAN on MNIST padded to 32x32, with separate runs for discriminator and generator. The
//! discriminator is updated only in every second step, so that it does not get too far ahead.
//!
//! `cargo run --release --example gan_separate` trains for 16 epochs of 500 steps and writes an
//! image of samples after each. A classifier then recognizes 700 of 1,000 samples as digits with
//! confidence over 0.9, and finds all 10 classes; with `--assert` the example fails below 8 classes
//! or half of the samples.

mod gan;

use tensorpack::Result;
use tensorpack::train::TrainArgs;

fn main() -> Result<()> {
    gan::train_dcgan(
        &TrainArgs::parse_program(
            "Trains a DCGAN on MNIST, generator and discriminator in separate runs",
            &gan::NEED_ONE_COST,
        )?,
        |gan, config| gan.train_in_turn(config, 2, 1),
    )
}
