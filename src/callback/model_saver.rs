//! Checkpoints.

use super::{Callback, GraphCx, TrainCx};
use tensorpack_tensor::Result;

/// Saves everything the run needs to go on: after every epoch, or as a
/// [`PeriodicTrigger`](super::PeriodicTrigger) says. Which checkpoints stay,
/// `TrainConfig::keep` says.
///
/// The checkpoint is written when all callbacks and monitors of the moment are done, so its place in the list does not
/// matter. A failed save ends training with an error.
#[derive(Clone, Debug, Default)]
pub struct ModelSaver {}

impl ModelSaver {
    /// The callback.
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
