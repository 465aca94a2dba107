//! Shared code of the GAN examples: the model trait, the trainer, networks for 32x32 digits, sample
//! images, and the evaluation. See `docs/gans.md`.

#![allow(dead_code, unused_imports, reason = "each example uses a part of this")]

mod data;
mod dcgan;
mod judge;
mod losses;
#[path = "../mnist_convnet.rs"]
mod mnist_convnet;
mod model;
mod nets;
mod run;
mod samples;
mod trainer;

pub(crate) use data::{data, image_spec, real_images};
pub(crate) use dcgan::train_dcgan;
pub(crate) use judge::judge;
pub(crate) use losses::Losses;
pub(crate) use model::GanModelDesc;
pub(crate) use nets::{discriminator, generator};
pub(crate) use run::run;
pub(crate) use samples::{add_samples, sample_grid};
pub(crate) use trainer::{GanTrainer, towers};
