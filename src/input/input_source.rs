//! The input source interface.

use crate::graph::{Tensor, TensorSpec};
use crate::runtime::{Interrupt, Staging};
use crate::tower::TowerContext;
use serde_json::Value;
use tensorpack_tensor::{HostTensor, Result};

/// A source of the inputs of training towers. Every tower takes its own batch.
pub trait InputSource {
    /// Returns the number of batches per epoch, if known.
    fn size(&self) -> Option<u64>;

    /// Creates the inputs of another training tower.
    fn tensors(&mut self, t: &TowerContext, signature: &[TensorSpec]) -> Result<Vec<Tensor>>;

    /// Starts reading, or resumes at the position of an earlier run.
    fn start(&mut self, start: Start<'_>) -> Result<()>;

    /// Takes a batch for every tower and returns the feeds, by name. A source whose batches are
    /// built in the graph returns none.
    fn next(&mut self) -> Result<&[(String, HostTensor)]>;

    /// Returns the position to resume from, after the batches *taken* so far (not those
    /// prefetched). [`Value::Null`] if the source has no state.
    fn state(&self) -> Value;

    /// Returns the tensors that belong to the state, by name, such as the content of a replay
    /// buffer. Checkpoints store them in a file of their own, and a resumed run gets them back in
    /// [`Start::tensors`]. Called whenever `state` is, so it should be cheap. Defaults to none.
    fn state_tensors(&self) -> Result<Vec<(String, HostTensor)>> {
        Ok(Vec::new())
    }

    /// Returns a checksum of some of the data, to tell whether another process has the same; `None`
    /// if it cannot be read twice. Defaults to `None`.
    fn checksum(&self, seed: u64) -> Result<Option<u32>> {
        let _ = seed;
        Ok(None)
    }

    /// Returns the reason why a run with this input cannot be resumed exactly, if there is one.
    fn cannot_resume(&self) -> Option<String> {
        None
    }

    /// Returns whether the batches are built inside the graph, which then holds the position.
    /// Asynchronous towers cannot share such a position.
    fn in_graph(&self) -> bool {
        false
    }

    /// Returns statistics to monitor, such as the queue size.
    fn report(&self) -> Vec<(String, f64)> {
        Vec::new()
    }

    /// Stops threads and releases resources.
    fn stop(&mut self) {}

    /// Returns the source in a box, for code that selects one at run time.
    fn boxed(self) -> Box<dyn InputSource>
    where
        Self: Sized + 'static,
    {
        Box::new(self)
    }
}

/// The arguments of [`InputSource::start`].
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// The random seed.
    pub seed: u64,
    /// The state to resume from; [`Value::Null`] at the start of a run.
    pub at: &'a Value,
    /// What [`InputSource::state_tensors`] returned with that state; empty at the start of a run.
    pub tensors: &'a [(String, HostTensor)],
    /// Checked in every wait, so that the source can be interrupted.
    pub interrupt: &'a Interrupt,
    /// Transfers batches to their devices ahead of time, if the devices benefit from it.
    pub staging: Option<&'a Staging>,
    /// The towers of other processes, which take their own batches.
    pub others: OtherTowers,
    /// The number of steps that a launch runs. Their batches should be on the device before.
    pub steps_per_launch: usize,
}

/// The towers of other processes. In every step each tower of the run takes a batch, in order; a
/// process skips those of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OtherTowers {
    /// The number of towers before those of this process.
    pub before: usize,
    /// The number of towers after those of this process.
    pub after: usize,
}

/// Returns the scope of the names of a tower's inputs.
pub(super) fn scope(t: &TowerContext) -> String {
    t.tower_scope().unwrap_or_default()
}
