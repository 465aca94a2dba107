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
mod lookup;
mod replay;
mod random_access;
mod component_spec;
mod from_list;
mod from_fn;
mod from_iter;
mod from_channel;
mod fake_data;
mod map;
mod filter;
mod skip_errors;
mod stack;
mod gather;
mod batch;
mod batch_by_shape;
mod permutation;
mod shuffle;
mod shuffle_window;
mod shard;
mod inputs;
mod take;
mod fixed_size;
mod repeat;
mod repeat_each;
mod concat;
mod zip;
mod mixture;
mod cache;
mod print;
mod test_speed;
mod parallel;

pub use batch::Batch;
pub use batch_by_shape::BatchByShape;
pub use cache::Cache;
pub use component_spec::ComponentSpec;
pub use concat::Concat;
pub use dataflow::{DataFlow, Flow, Reader, Resume, Sample};
pub use fake_data::FakeData;
pub use filter::Filter;
pub use fixed_size::FixedSize;
pub use from_channel::FromChannel;
pub use from_fn::FromFn;
pub use from_iter::FromIter;
pub use from_list::FromList;
pub use lookup::Lookup;
pub use map::Map;
pub use mixture::{ChooseRandom, Mix};
pub use parallel::{MapBatch, MapParallel, Prefetch, Slot};
pub use print::{Print, describe};
pub use random_access::RandomAccess;
pub use repeat::Repeat;
pub use repeat_each::RepeatEach;
pub use seed::{Draws, Seed};
pub use shard::Shard;
pub use shuffle::Shuffle;
pub use shuffle_window::ShuffleWindow;
pub use skip_errors::SkipErrors;
pub use state::State;
pub use take::Take;
pub use test_speed::Speed;
pub use zip::Zip;

/// The tensors that samples are made of, and the error type.
pub use tensorpack_tensor as tensor;

#[cfg(doctest)]
mod documentation {
    #[doc = include_str!("../../../docs/dataflow.md")]
    struct DataflowGuide;
}
