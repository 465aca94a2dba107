//! Input sources of training towers.

mod batch;
mod batch_queue;
mod dummy;
mod feed;
mod input_source;
mod last_batch;
mod own_batches;
mod prefetch;
mod queue;
mod remap;
mod stager;
pub(crate) mod state;
mod tensor;

pub(crate) use batch::no_batch;
pub use batch_queue::batch_queue_input;
pub use dummy::DummyConstantInput;
pub use feed::FeedInput;
pub use input_source::{InputSource, OtherTowers, Start};
pub use queue::QueueInput;
pub use remap::RemapInput;
pub use tensor::TensorInput;
