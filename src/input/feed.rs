//! Input that is read on demand.

use super::{InputSource, QueueInput, Start};
use crate::graph::{Tensor, TensorSpec};
use crate::tower::TowerContext;
use serde_json::Value;
use std::sync::Arc;
use tensorpack_dataflow::DataFlow;
use tensorpack_tensor::{HostTensor, Result};

/// An input source that reads a batch from a dataflow at every step, while the model waits.
/// [`QueueInput`] prefetches instead.
pub struct FeedInput(QueueInput);

impl FeedInput {
    /// Creates an input source that reads this dataflow epoch after epoch.
    pub fn new(flow: impl DataFlow + 'static) -> FeedInput {
        FeedInput(QueueInput::from_flow(Arc::new(flow)))
    }
}

impl InputSource for FeedInput {
    fn size(&self) -> Option<u64> {
        self.0.size()
    }

    fn tensors(&mut self, t: &TowerContext, signature: &[TensorSpec]) -> Result<Vec<Tensor>> {
        self.0.tensors(t, signature)
    }

    fn start(&mut self, start: Start<'_>) -> Result<()> {
        self.0.start(start)
    }

    fn next(&mut self) -> Result<&[(String, HostTensor)]> {
        self.0.next()
    }

    fn state(&self) -> Value {
        self.0.state()
    }

    fn checksum(&self, seed: u64) -> Result<Option<u32>> {
        self.0.checksum(seed)
    }

    fn cannot_resume(&self) -> Option<String> {
        self.0.cannot_resume()
    }

    fn stop(&mut self) {
        self.0.stop();
    }
}
