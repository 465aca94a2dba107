//! Reads training data: sources, and adaptors that shuffle, map, batch and prefetch them.
//!
//! A [`DataFlow`] describes passes (epochs) over samples. Opening it at a [`State`] yields a
//! [`Reader`], which can report its own state at any time, so that an interrupted run resumes with
//! exactly the next sample. The order of samples and all randomness are a function of seed, epoch
//! and index: neither the number of workers nor an interruption changes a byte.
//!
//! ```
//! use tensorpack_dataflow::tensor::{Error, HostTensor};
//! use tensorpack_dataflow::{DataFlow, FromFn, Seed, State};
//!
//! let numbers = FromFn::new(100, |i| Ok(vec![HostTensor::scalar(i as f32)]));
//! let data = numbers
//!     .shuffle() // a new order in every pass, without a buffer
//!     .map_parallel(4, |sample, rng| {
//!         let noise = 0.1 * rng.normal();
//!         Ok(vec![HostTensor::scalar(sample[0].to_scalar()? + noise)])
//!     })
//!     .batch(20)
//!     .prefetch(2);
//!
//! let mut reader = data.open(Seed::new(42), &State::start())?;
//! let first = reader.read()?.expect("a pass has five batches");
//! assert_eq!(first[0].sizes(), [20]);
//!
//! // Save the state, and resume with the next batch.
//! let saved = reader.state().to_string();
//! let mut resumed = data.open(Seed::new(42), &saved.parse()?)?;
//! assert_eq!(resumed.read()?, reader.read()?);
//! # Ok::<(), Error>(())
//! ```
//!
//! # Modules
//!
//! | module | content |
//! |---|---|
//! | `dataflow` | the traits [`DataFlow`] and [`Reader`], and the adaptor methods |
//! | `state`, `seed` | [`State`], a reader's position; [`Seed`] and [`SampleRng`], random numbers |
//! | `source` | [`FromList`], [`FromFn`], [`FromIter`], [`FakeData`], and [`RandomAccess`], ... |
//! | `adaptor` | adaptors on the reading thread: [`Map`], [`Batch`], [`Shuffle`], [`Cache`], ... |
//! | `parallel` | adaptors on background threads: [`MapParallel`], [`MapBatch`], [`Prefetch`] |
//! | [`mod@format`] | file formats: TFRecord, npy and npz, tar shards, IDX, image folders, LMDB |
//! | [`image`] | JPEG and PNG decoding, resizing and augmentors |
//! | [`dataset`] | MNIST, CIFAR-10, Penn Treebank and others, downloaded on first use |
//!
//! Errors name the sample and its file, and are delivered in order; a reader can continue after a
//! failed sample. The guides `docs/dataflow.md`, `docs/data.md` and `docs/images.md` list all
//! sources, adaptors, formats and augmentors.

// These macros panic if the stream is closed or full, which must not end training.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod sync;
mod dataflow;
mod state;
mod seed;
mod indexed_reader;
mod replay;
mod cancellation;
mod component_spec;
mod source;
pub mod format;
mod adaptor;
mod parallel;
pub mod image;
pub mod dataset;

pub use adaptor::{
    Batch, BatchByShape, Cache, CacheOnDisk, ChooseRandom, Concat, Filter, FixedSize, Map, Mix, Print,
    Repeat, RepeatEach, Shard, Shuffle, ShuffleWindow, SkipErrors, Speed, Take, Zip, describe,
};
pub use component_spec::ComponentSpec;
pub use dataflow::{DataFlow, Flow, Reader, Resume, Sample};
pub use indexed_reader::IndexedReader;
pub use parallel::{BatchRow, MapBatch, MapParallel, Prefetch};
pub use seed::{SampleRng, Seed};
pub use source::{FakeData, FromChannel, FromFn, FromIter, FromList, RandomAccess};
pub use state::State;

/// Tensors, element types and the error type.
pub use tensorpack_tensor as tensor;

#[cfg(doctest)]
mod documentation {
    #[doc = include_str!("../../../docs/dataflow.md")]
    struct DataflowGuide;
    #[doc = include_str!("../../../docs/images.md")]
    struct Images;
}
