//! Shared code of the GAN examples: the model trait, the trainer, networks for 32x32 digits, sample
//! images, and the evaluation. See `docs/gans.md`.

#![allow(dead_code, unused_imports, reason = "each example uses a part of this")]

mod codes;
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

pub(crate) use codes::{CODES, sample_code, sample_codes, with_code};
pub(crate) use data::{data, image_spec, labeled_data, real_images};
pub(crate) use dcgan::train_dcgan;
pub(crate) use judge::{Bar, judge};
pub(crate) use losses::Losses;
pub(crate) use model::GanModelDesc;
pub(crate) use nets::{discriminator, discriminator_features, generator, head};
pub(crate) use run::{NEED_ONE_COST, run, train};
pub(crate) use samples::{add_coded_samples, add_samples, sample_grid};
pub(crate) use trainer::GanTrainer;
