//! Runs a short validation before training.

use super::{Callback, InferenceRunner, ProxyCallback, TrainCx};
use tensorpack_tensor::Result;

/// Runs the first few batches of an [`InferenceRunner`] before training, so that validation errors
/// surface at once and not after the first epoch. The results are not reported. Otherwise it
/// behaves like the runner: put it in the list of callbacks instead of the runner.
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
    /// Wraps `runner` and validates on 2 batches.
    pub fn new(runner: InferenceRunner) -> SanityValidation {
        SanityValidation { runner, batches: 2 }
    }

    /// Sets the number of batches. Defaults to 2.
    #[must_use]
    pub fn batches(self, batches: u64) -> SanityValidation {
        SanityValidation { batches, ..self }
    }
}

impl ProxyCallback for SanityValidation {
    type Inner = InferenceRunner;

    fn inner(&self) -> &InferenceRunner {
        &self.runner
    }

    fn inner_mut(&mut self) -> &mut InferenceRunner {
        &mut self.runner
    }

    fn before_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.runner.before_train(cx)?;
        if cx.resumed() {
            return Ok(());
        }
        self.runner.run_pass(cx, Some(self.batches)).map_err(|e| e.within("before training")).map(|_| ())
    }
}
