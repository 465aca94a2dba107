//! Batched input from a dataflow of single examples.

use super::QueueInput;
use tensorpack_dataflow::DataFlow;

/// Returns an input source that batches single examples and prefetches the batches: up to 3000
/// examples and 256 MiB. The examples of a batch must have the same shape.
#[doc(alias = "BatchQueueInput")]
pub fn batch_queue_input(flow: impl DataFlow + 'static, batch_size: usize) -> QueueInput {
    const EXAMPLES: usize = 3000;
    QueueInput::new(flow.batch(batch_size)).capacity(EXAMPLES / batch_size.max(1))
}
