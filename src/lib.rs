//! Define a model once as a tower function, then train it fast.
//!
//! Training is two steps. **Define**: build a static graph, with variable scopes, collections and towers. **Run**:
//! freeze it, open a [`Session`](runtime::Session), and run it step after step. The CPU engine is embedded: there is
//! nothing to install beside Rust.
//!
//! The modules are listed in the order data flows through them; each names only those before it.

// These macros panic if the stream is closed or full; see `logger.rs`.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod sync;
pub mod kir;
pub mod reference;
pub mod onnx;
pub mod graph;
#[cfg(test)]
mod op_cases;
pub mod ops;
pub mod autodiff;
pub mod control;
pub mod ctc;
pub mod optim;
pub mod tower;
pub mod nn;
pub mod distributed;
pub mod runtime;
mod terminal;
pub mod logger;
#[cfg(feature = "cli")]
pub mod command_line;
pub mod io;
pub mod monitor;
pub mod predict;
pub mod input;
pub mod callback;
pub mod train;
pub mod prelude;
#[cfg(test)]
mod op_tests;

/// Re-exports for the expansion of [`exported!`].
#[doc(hidden)]
pub use inventory;

/// The parser of command lines that [`train::TrainArgs`] is made for.
#[cfg(feature = "cli")]
pub use clap;
/// JSON values, the states of callbacks, monitors and input sources.
pub use serde_json;
/// The data library.
pub use tensorpack_dataflow as dataflow;
pub use tensorpack_tensor as tensor;
pub use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result};

/// The README's and the documentation's code, compiled and run.
#[cfg(doctest)]
mod documentation {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/extend/op.md")]
    struct ExtendOp;
    #[doc = include_str!("../docs/extend/device.md")]
    struct ExtendDevice;
    #[doc = include_str!("../docs/checkpoints.md")]
    struct Checkpoints;
    #[doc = include_str!("../docs/optimizers.md")]
    struct Optimizers;
    #[doc = include_str!("../docs/sequences.md")]
    struct Sequences;
    #[doc = include_str!("../docs/layers.md")]
    struct Layers;
    #[doc = include_str!("../docs/callbacks.md")]
    struct Callbacks;
    #[doc = include_str!("../docs/timeline.md")]
    struct Timeline;
    #[doc = include_str!("../docs/training.md")]
    struct Training;
    #[doc = include_str!("../docs/distributed.md")]
    struct Distributed;
    #[doc = include_str!("../docs/write-a-trainer.md")]
    struct WriteATrainer;
    #[doc = include_str!("../docs/predict.md")]
    struct Predict;
    #[doc = include_str!("../docs/serve.md")]
    struct Serve;
    #[doc = include_str!("../docs/models.md")]
    struct Models;
    #[doc = include_str!("../docs/numerics.md")]
    struct Numerics;
    #[doc = include_str!("../docs/precision.md")]
    struct Precision;
    #[doc = include_str!("../docs/memory.md")]
    struct Memory;
    #[doc = include_str!("../docs/vision.md")]
    struct Vision;
    #[doc = include_str!("../docs/gans.md")]
    struct Gans;
}
