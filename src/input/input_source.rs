//! What an input source is.

use crate::graph::{Tensor, TensorSpec};
use crate::runtime::{Interrupt, Staging};
use crate::tower::TowerContext;
use serde_json::Value;
use tensorpack_tensor::{HostTensor, Result};

/// Where the inputs of training towers come from. Every tower takes a batch of its own.
pub trait InputSource {
    /// How many batches a pass has, if that is known.
    fn size(&self) -> Option<u64>;

    /// The inputs of one more training tower.
    fn tensors(&mut self, t: &TowerContext, signature: &[TensorSpec]) -> Result<Vec<Tensor>>;

    /// Begins, or goes on where a stopped run was.
    fn start(&mut self, start: Start<'_>) -> Result<()>;

    /// Takes a batch for every tower and returns what is to be fed, by name. What needs no feeding returns nothing.
    fn next(&mut self) -> Result<&[(String, HostTensor)]>;

    /// What was *taken* so far, to go on from. [`Value::Null`] if it needs no state.
    fn state(&self) -> Value;

    /// Why a run with this input cannot be resumed exactly, if that is so.
    fn cannot_resume(&self) -> Option<String> {
        None
    }

    /// Whether batches are made inside the graph, which then keeps the position: towers that update variables each on
    /// its own cannot share it.
    fn in_graph(&self) -> bool {
        false
    }

    /// Numbers worth watching, such as how full a queue is.
    fn report(&self) -> Vec<(String, f64)> {
        Vec::new()
    }

    /// Ends threads and lets go of what it holds.
    fn stop(&mut self) {}

    /// In a box, for code that chooses among sources.
    fn boxed(self) -> Box<dyn InputSource>
    where
        Self: Sized + 'static,
    {
        Box::new(self)
    }
}

/// How an input source starts.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// What its randomness is drawn from.
    pub seed: u64,
    /// The state to go on from; [`Value::Null`] at the beginning of a run.
    pub at: &'a Value,
    /// Looked at in every wait.
    pub interrupt: &'a Interrupt,
    /// How to send batches to their devices ahead of the step that takes them, where that is of use.
    pub staging: Option<&'a Staging>,
}

/// The names under which a tower's inputs are fed.
pub(super) fn scope(t: &TowerContext) -> String {
    if t.total() > 1 { format!("tower{}", t.index()) } else { String::new() }
}
