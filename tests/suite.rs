//! Integration tests that can share a process.
//!
//! Every test binary links the whole library, so they share one. Tests that install a logger or an
//! allocator, start themselves again as child processes, or need a feature have a binary of their
//! own; `Cargo.toml` lists them all.

#[cfg(feature = "cli")]
mod a3c;
mod behaviour;
#[cfg(feature = "cli")]
mod cifar_resnet;
mod doc_aliases;
#[cfg(feature = "cli")]
mod dqn;
#[cfg(feature = "cli")]
mod drawn_scenes;
mod examples;
mod faster_rcnn;
mod folded_models;
mod forks;
mod fusion;
// The games of two examples.
#[cfg(feature = "cli")]
#[path = "../examples/games/mod.rs"]
mod games;
mod golden;
mod int8_models;
mod layers;
mod memory;
mod metrics;
mod module_order;
mod monitors;
mod numerics;
#[cfg(feature = "cli")]
#[allow(clippy::duplicate_mod, reason = "examples share files")]
mod onnx_examples;
mod onnx_layers;
mod onnx_models;
mod optimizers;
mod precision;
mod predictors;
mod pytorch_files;
mod quantized_files;
mod random;
mod records;
#[cfg(feature = "cli")]
mod resumed_games;
mod sequences;
mod session_init;
mod torch_nets;
mod towers;
