//! CIFAR-10 for `gan_wgan_gp`: images, residual networks, and the score of a classifier. See
//! `docs/gans.md`.

#![allow(dead_code, unused_imports, reason = "the tests use a part of this")]

mod classifier;
mod data;
mod nets;
mod score;

pub(crate) use classifier::{CLASSES, Classifier, directory};
pub(crate) use data::{data, image_spec, real_images};
pub(crate) use nets::{critic, generator};
pub(crate) use score::{ClassifierScore, Score, score};
