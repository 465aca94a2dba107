//! Runs in flight: launched without waiting, and collected later.

use super::binding::Request;
use super::executor::{Feed, Outcome, Pending, RunInfo};
use super::overflow_rules;
use super::session::{Session, check_finite_feeds};
use crate::graph::Fetch;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tensorpack_tensor::{HostTensor, Result};

/// A launched run, with its inputs for explaining a failure.
pub(super) struct InFlight {
    pending: Box<dyn Pending>,
    request: Arc<Request>,
    feeds: Vec<HostTensor>,
    run: RunInfo,
    /// The number of the launch.
    launch: u64,
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "run {} in flight", self.run.draw)
    }
}

impl Session {
    /// Launches and counts a step run without waiting for it. Returns `None` and does nothing if
    /// the engine runs synchronously.
    pub(super) fn launch(
        &self,
        fetches: &[Fetch],
        feeds: &[(&str, &HostTensor)],
    ) -> Result<Option<InFlight>> {
        let mut state = self.lock()?;
        if !state.executor.runs_ahead() {
            return Ok(None);
        }
        self.graph().take_late_error()?;
        let at = state.program(self, fetches, feeds)?;
        if !state.programs[at].executable.checks_feeds() {
            check_finite_feeds(self.graph(), feeds)?;
        }
        let run = RunInfo { seed: self.options.seed, draw: state.run_index };
        let values: Vec<Feed<'_>> = feeds.iter().map(|(_, value)| *value).collect();
        let executable = &mut state.programs[at].executable;
        let started = catch_unwind(AssertUnwindSafe(|| executable.start(&run, &values)));
        let started = started.unwrap_or_else(|panic| Err(state.poison(&*panic)));
        let pending = started.map_err(|e| state.end_if_lost(e))?;
        (state.run_index, state.plain_runs) = (state.run_index + 1, 0);
        let request = state.programs[at].request.clone();
        let feeds = feeds.iter().map(|(_, value)| (*value).clone()).collect();
        let launch = state.count_launch();
        Ok(Some(InFlight { pending, request, feeds, run, launch }))
    }

    /// Waits for a run in flight and stores its fetches in `outputs`.
    pub(super) fn collect(&self, run: InFlight, outputs: &mut Vec<HostTensor>) -> Result<()> {
        let InFlight { pending, request, feeds, run, launch } = run;
        let mut state = self.lock()?;
        let ended = catch_unwind(AssertUnwindSafe(|| pending.collect(outputs)));
        let ended = ended.unwrap_or_else(|panic| Err(state.poison(&*panic)));
        let succeeded = matches!(ended, Ok(Outcome::Committed { .. } | Outcome::Skipped));
        let restored = state.launch_ended(launch, succeeded);
        let outcome = ended.map_err(|e| state.end_if_lost(e))?;
        restored?;
        match outcome {
            Outcome::Committed { .. } => Ok(()),
            Outcome::Skipped => Err(overflow_rules::skipped()),
            Outcome::NotFinite => {
                let names = request.feeds.iter().map(|(name, ..)| name.as_str());
                let feeds: Vec<(&str, &HostTensor)> = names.zip(&feeds).collect();
                Err(self.explain_non_finite(&mut state, &request.fetches, &feeds, &run))
            }
        }
    }
}
