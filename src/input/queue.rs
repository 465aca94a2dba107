//! Input from a dataflow: read when needed, or ahead of it.

use super::batch::Feeds;
use super::pump::Pump;
use super::{InputSource, Start, state};
use crate::graph::{Tensor, TensorSpec};
use crate::tower::TowerContext;
use serde_json::Value;
use std::sync::Arc;
use tensorpack_dataflow::{DataFlow, Flow, Resume, State};
use tensorpack_tensor::{Error, HostTensor, Result};

/// Batches of a dataflow that a thread of its own keeps ready, up to a bound, while the model computes. Another sends the
/// next ones to the device, where that has memory of its own.
#[doc(alias = "StagingInput")]
pub struct QueueInput {
    flow: Flow,
    ahead: usize,
    feeds: Feeds,
    pump: Option<Pump>,
    /// What was taken, by all towers.
    taken: State,
    /// How full the queue has been, averaged with a weight of one half.
    fill: f64,
}

impl QueueInput {
    /// Keeps up to 50 batches ready.
    pub fn new(flow: impl DataFlow + 'static) -> QueueInput {
        QueueInput::of(Arc::new(flow)).capacity(50)
    }

    pub(super) fn of(flow: Flow) -> QueueInput {
        QueueInput { flow, ahead: 0, feeds: Feeds::default(), pump: None, taken: State::start(), fill: 0.0 }
    }

    /// Keeps up to this many batches ready, at least one.
    #[must_use]
    pub fn capacity(self, batches: usize) -> QueueInput {
        QueueInput { ahead: batches.max(1), ..self }
    }
}

impl InputSource for QueueInput {
    fn size(&self) -> Option<u64> {
        self.flow.size()
    }

    fn tensors(&mut self, t: &TowerContext, signature: &[TensorSpec]) -> Result<Vec<Tensor>> {
        Ok(self.feeds.tower(t, signature))
    }

    fn start(&mut self, start: Start<'_>) -> Result<()> {
        // Who cannot go on begins anew, and says so: see `cannot_resume`.
        let at = match self.flow.resume() {
            Resume::Never => State::start(),
            _ => state::from_json(start.at)?,
        };
        self.taken = at.clone();
        let pump = Pump::start(&self.flow, start.seed, at, self.ahead, start.interrupt)?;
        // Who reads only when asked has nothing to send ahead.
        let staging = start.staging.filter(|_| self.ahead > 0);
        self.pump = Some(match staging {
            Some(staging) => pump.staged(staging, self.feeds.towers())?,
            None => pump,
        });
        Ok(())
    }

    fn next(&mut self) -> Result<&[(String, HostTensor)]> {
        let pump = self.pump.as_mut().ok_or_else(|| Error::argument("the input was not started"))?;
        self.fill = 0.5 * (self.fill + pump.ready() as f64);
        for tower in 0..self.feeds.towers() {
            let sample = pump.take()?;
            self.feeds.fill(tower, sample).map_err(|e| {
                let State { epoch, index, .. } = *pump.state();
                e.within(format!("sample {} of epoch {epoch}", index.saturating_sub(1)))
            })?;
        }
        self.taken = pump.state().clone();
        Ok(self.feeds.feeds())
    }

    fn state(&self) -> Value {
        state::to_json(&self.taken)
    }

    fn cannot_resume(&self) -> Option<String> {
        let never = self.flow.resume() == Resume::Never;
        never.then(|| "the dataflow can be read only once, and begins anew".to_string())
    }

    fn report(&self) -> Vec<(String, f64)> {
        if self.ahead == 0 { Vec::new() } else { vec![("QueueInput/queue_size".into(), self.fill)] }
    }

    fn stop(&mut self) {
        self.pump = None;
    }
}
