//! Training data: sources, and adaptors that shuffle, map, batch and prefetch them.
//!
//! A [`DataFlow`] describes passes over samples. It is opened at a [`State`], and its [`Reader`] can always tell the
//! state it is in, so that a run that was stopped goes on with the very next sample. The order of samples, and all
//! randomness in them, are a function of (seed, epoch, index): neither the number of workers nor an interruption
//! changes a byte.
//!
//! ```
//! use tensorpack_dataflow::{DataFlow, FromList, Seed, State};
//! use tensorpack_dataflow::tensor::HostTensor;
//!
//! let numbers = FromList::new((0..4i32).map(|i| vec![HostTensor::scalar(i)]).collect());
//! let squares = numbers.map(|sample| {
//!     let x = sample[0].to_scalar()?;
//!     Ok(vec![HostTensor::scalar(x * x)])
//! });
//! let mut reader = squares.open(Seed::new(0), &State::at(0, 2))?;
//! assert_eq!(reader.read()?.expect("the third of four")[0].to_scalar()?, 4.0);
//! assert_eq!(reader.state(), State::at(0, 3));
//! # Ok::<(), tensorpack_dataflow::tensor::Error>(())
//! ```

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

/// The tensors that samples are made of, and the error type.
pub use tensorpack_tensor as tensor;

#[cfg(doctest)]
mod documentation {
    #[doc = include_str!("../../../docs/dataflow.md")]
    struct DataflowGuide;
    #[doc = include_str!("../../../docs/images.md")]
    struct Images;
}
