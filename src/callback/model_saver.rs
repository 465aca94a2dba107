//! Saves checkpoints.

use super::{Callback, GraphCx, TrainCx};
use tensorpack_tensor::Result;

/// Saves everything needed to resume the run: after every epoch, or as often as a
/// [`PeriodicTrigger`](super::PeriodicTrigger) specifies. `RunConfig::keep` sets which
/// checkpoints are kept.
///
/// The checkpoint is written after all callbacks and monitors have run, so the position in the list
/// does not matter. Training goes on while it is written; a save that fails ends training with an
/// error at the end of a later step.
#[derive(Clone, Debug, Default)]
pub struct ModelSaver {}

impl ModelSaver {
    /// Creates the callback.
    pub fn new() -> ModelSaver {
        ModelSaver::default()
    }
}

impl Callback for ModelSaver {
    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        g.need_logdir("ModelSaver").map(|_| ())
    }

    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        cx.request_save();
        Ok(())
    }
}
