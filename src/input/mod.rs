//! Where training towers get their inputs from.

mod batch;
mod dummy;
mod feed;
mod input_source;
mod pump;
mod queue;
pub(crate) mod state;

pub use dummy::DummyConstantInput;
pub use feed::FeedInput;
pub use input_source::{InputSource, Start};
pub use queue::QueueInput;
