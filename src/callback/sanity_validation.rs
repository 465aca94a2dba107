//! Validation before training.

use super::proxy::forward;
use super::{Callback, InferenceRunner, TrainCx};
use tensorpack_tensor::Result;

/// Runs the first few batches of an [`InferenceRunner`] before training, so that what is wrong with validation is found
/// at once and not after the first epoch. Its results are not put. Apart from that, it is the runner: give it to the
/// list of callbacks in its place.
///
/// ```no_run
/// # use tensorpack::callback::{InferenceRunner, SanityValidation, ScalarStats};
/// # let validation = tensorpack::dataflow::FromList::new(vec![]);
/// let runner = SanityValidation::new(InferenceRunner::new(validation, [ScalarStats::new("accuracy")]));
/// ```
pub struct SanityValidation {
    runner: InferenceRunner,
    batches: u64,
}

impl SanityValidation {
    /// Of this runner, with 2 batches.
    pub fn new(runner: InferenceRunner) -> SanityValidation {
        SanityValidation { runner, batches: 2 }
    }

    /// With this many batches.
    #[must_use]
    pub fn batches(self, batches: u64) -> SanityValidation {
        SanityValidation { batches, ..self }
    }
}

impl Callback for SanityValidation {
    forward!(runner:
        name setup_graph before_epoch before_run after_run collect trigger_step after_epoch trigger_epoch trigger
        after_train reads makes state load_state
    );

    fn before_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.runner.before_train(cx)?;
        if cx.resumed() {
            return Ok(());
        }
        self.runner.pass(cx, Some(self.batches)).map_err(|e| e.within("before training")).map(|_| ())
    }
}
