//! The state of a training run: counters, position, session, monitors and checkpoint store.
//!
//! The main loop owns it and is the only one that moves the counters. Callbacks see it through their contexts.

use super::position::Position;
use crate::distributed::ProcessGroup;
use crate::io::CheckpointWriter;
use crate::monitor::{Moment, Monitors};
use crate::runtime::{Interrupt, Session};
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::sync::Arc;
use tensorpack_tensor::Site;

/// How far training is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The epoch, from 1; before the first epoch, one less than the first.
    pub epoch_num: u64,
    /// The step within the epoch that runs or ran last, from 0; -1 before the first.
    pub local_step: i64,
    /// Steps finished since the beginning of training.
    pub global_step: u64,
    /// Steps in an epoch.
    pub steps_per_epoch: u64,
    /// The first epoch.
    pub starting_epoch: u64,
    /// The last epoch.
    pub max_epoch: u64,
}

impl Progress {
    /// Whether the step that runs, or ran last, is the last of its epoch.
    pub fn last_of_epoch(&self) -> bool {
        self.local_step + 1 == self.steps_per_epoch as i64
    }
}

/// A requested checkpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct SaveRequest {
    /// The tags, with the lines that set them.
    pub(crate) tags: Vec<(String, Site)>,
}

/// Steps skipped because a cost or gradient was not finite.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SkippedSteps {
    pub(crate) total: u64,
    pub(crate) in_a_row: u32,
}

/// Everything that changes while training runs, except the callbacks and the input.
#[doc(alias = "Live")]
pub(crate) struct TrainState {
    pub(crate) session: Session,
    pub(crate) monitors: Monitors,
    pub(crate) progress: Progress,
    /// Steps of the current epoch that are finished. During a step, `progress.local_step` is already one further.
    pub(crate) steps_done: u64,
    /// Whether the boundary of the current epoch, with all its triggers, is done.
    pub(crate) epoch_ended: bool,
    pub(crate) skipped: SkippedSteps,
    /// Where checkpoints are written, if anywhere.
    pub(crate) checkpoints: Option<CheckpointWriter>,
    /// The settings of this run, to compare with those of the run that resumes it.
    pub(crate) settings: Map<String, Value>,
    /// The options that choose what is trained; `Null` if the program has no `TrainArgs`.
    pub(crate) task_options: Value,
    pub(crate) seed: u64,
    pub(crate) logdir: Option<PathBuf>,
    pub(crate) interrupt: Interrupt,
    /// Set by the signals of this process. With other processes `interrupt` is set only once all have
    /// agreed to end.
    pub(crate) signals: Interrupt,
    /// The checkpoint to write at the next commit point.
    pub(crate) save_request: Option<SaveRequest>,
    /// Why training is to stop at the end of the current moment.
    pub(crate) stop_reason: Option<String>,
    /// The processes that train together, if there are several.
    pub(crate) group: Option<Arc<ProcessGroup>>,
    /// Whether the run continues from a checkpoint; false again once its first epoch has begun.
    pub(crate) resumed: bool,
}

impl TrainState {
    /// The position that a checkpoint written now would have.
    pub(crate) fn position(&self) -> Position {
        let Progress { epoch_num, global_step, .. } = self.progress;
        Position { epoch_num, steps: self.steps_done, global_step, ended: self.epoch_ended }
    }

    /// Moves all counters to a position.
    pub(crate) fn set_position(&mut self, at: Position) {
        self.progress.epoch_num = at.epoch_num;
        self.progress.global_step = at.global_step;
        self.progress.local_step = at.steps as i64 - 1;
        self.steps_done = at.steps;
        self.epoch_ended = at.ended;
    }

    /// Tells the monitors the current moment: the step that runs or, between steps, ran last.
    pub(crate) fn set_moment(&mut self, global_step: u64) {
        self.monitors.set_moment(Moment { epoch_num: self.progress.epoch_num, global_step });
    }
}

#[cfg(test)]
impl TrainState {
    /// The state of an empty graph before its first epoch, for tests of single callbacks.
    pub(super) fn empty() -> TrainState {
        let graph = crate::graph::Graph::new().freeze().expect("an empty graph freezes");
        let progress = Progress {
            epoch_num: 0,
            local_step: -1,
            global_step: 0,
            steps_per_epoch: 1,
            starting_epoch: 1,
            max_epoch: 100,
        };
        TrainState {
            session: Session::new(graph).expect("an empty graph needs nothing"),
            monitors: Monitors::new(),
            progress,
            steps_done: 0,
            epoch_ended: true,
            skipped: SkippedSteps::default(),
            checkpoints: None,
            settings: Map::new(),
            task_options: Value::Null,
            seed: 0,
            logdir: None,
            interrupt: Interrupt::default(),
            signals: Interrupt::default(),
            save_request: None,
            stop_reason: None,
            group: None,
            resumed: false,
        }
    }

    /// Moves to the end of this epoch, which has one step.
    pub(super) fn at_epoch(&mut self, epoch: u64) -> super::TrainCx<'_> {
        self.progress.epoch_num = epoch;
        self.progress.global_step = epoch;
        self.set_moment(epoch);
        super::TrainCx { state: self }
    }
}
