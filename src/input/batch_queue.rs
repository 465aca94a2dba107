//! Input from a dataflow of single examples.

use super::QueueInput;
use tensorpack_dataflow::DataFlow;

/// Batches of single examples, which a thread of its own keeps ready. The examples of a batch are of one shape.
#[doc(alias = "BatchQueueInput")]
pub fn batch_queue_input(flow: impl DataFlow + 'static, batch_size: usize) -> QueueInput {
    const EXAMPLES: usize = 3000;
    QueueInput::new(flow.batch(batch_size)).capacity(EXAMPLES / batch_size.max(1))
}
