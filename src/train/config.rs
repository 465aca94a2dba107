//! The configuration of a training run.

use super::NanPolicy;
use crate::callback::Callback;
use crate::input::InputSource;
use crate::io::{Disk, Keep, SessionInit};
use crate::monitor::Monitor;
use crate::runtime::SessionOptions;
use crate::tower::ModelDesc;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tensorpack_dataflow::{DataFlow, Flow};
use tensorpack_tensor::{Error, Result};

/// The configuration of a training run, except the trainer: model, data, callbacks, duration, log
/// directory. [`TrainConfig::new`] takes the required parts. The rest has defaults. The
/// configuration is checked when training is launched.
pub struct TrainConfig {
    pub(super) model: Option<Box<dyn ModelDesc>>,
    pub(super) dataflow: Option<Flow>,
    pub(super) data: Option<Box<dyn InputSource>>,
    pub(super) callbacks: Vec<Box<dyn Callback>>,
    pub(super) extra_callbacks: Option<Vec<Box<dyn Callback>>>,
    pub(super) monitors: Option<Vec<Box<dyn Monitor>>>,
    pub(super) session: SessionOptions,
    pub(super) session_init: Option<Box<dyn SessionInit>>,
    pub(super) starting_epoch: u64,
    pub(super) steps_per_epoch: Option<u64>,
    pub(super) max_epoch: u64,
    pub(super) logdir: Option<PathBuf>,
    pub(super) fresh: bool,
    pub(super) keep: Keep,
    pub(super) disk: Option<Box<dyn Disk>>,
    pub(super) nan: NanPolicy,
}

impl Default for TrainConfig {
    /// A configuration without model and data, for trainers that already have a graph and an input.
    fn default() -> TrainConfig {
        TrainConfig {
            model: None,
            dataflow: None,
            data: None,
            callbacks: Vec::new(),
            extra_callbacks: None,
            monitors: None,
            session: SessionOptions::default(),
            session_init: None,
            starting_epoch: 1,
            steps_per_epoch: None,
            max_epoch: 99_999,
            logdir: Some(default_logdir()),
            fresh: false,
            keep: Keep::default(),
            disk: None,
            nan: NanPolicy::default(),
        }
    }
}

/// Returns `train_log/NAME`, where `NAME` is the name of the program.
fn default_logdir() -> PathBuf {
    let program = std::env::args_os().next().map(PathBuf::from);
    let name = program.as_deref().and_then(|p| p.file_stem()).map(PathBuf::from);
    PathBuf::from("train_log").join(name.unwrap_or_else(|| "run".into()))
}

impl TrainConfig {
    /// Trains `model` on `dataflow`.
    pub fn new(model: impl ModelDesc + 'static, dataflow: impl DataFlow + 'static) -> TrainConfig {
        TrainConfig { dataflow: Some(Arc::new(dataflow)), ..TrainConfig::of(model) }
    }

    /// Trains `model`. Set the input with [`TrainConfig::data`].
    pub fn of(model: impl ModelDesc + 'static) -> TrainConfig {
        TrainConfig { model: Some(Box::new(model)), ..TrainConfig::default() }
    }

    /// Sets an input source, instead of a dataflow.
    #[must_use]
    pub fn data(self, input: impl InputSource + 'static) -> TrainConfig {
        TrainConfig { data: Some(Box::new(input)), ..self }
    }

    /// Appends a callback.
    #[must_use]
    pub fn callback(mut self, callback: impl Callback + 'static) -> TrainConfig {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// Appends callbacks.
    #[must_use]
    pub fn callbacks(mut self, callbacks: Vec<Box<dyn Callback>>) -> TrainConfig {
        self.callbacks.extend(callbacks);
        self
    }

    /// Replaces [`default_callbacks`](super::default_callbacks), which run after the other
    /// callbacks.
    #[must_use]
    pub fn extra_callbacks(self, callbacks: Vec<Box<dyn Callback>>) -> TrainConfig {
        TrainConfig { extra_callbacks: Some(callbacks), ..self }
    }

    /// Replaces [`default_monitors`](super::default_monitors).
    #[must_use]
    pub fn monitors(self, monitors: Vec<Box<dyn Monitor>>) -> TrainConfig {
        TrainConfig { monitors: Some(monitors), ..self }
    }

    /// Sets the options of the session: device, threads, instruction set, memory.
    #[must_use]
    pub fn session(self, session: SessionOptions) -> TrainConfig {
        TrainConfig { session, ..self }
    }

    /// Sets the seed of initial values, random operations and the order of data. Defaults to 0.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> TrainConfig {
        self.session.seed = seed;
        self
    }

    /// Sets the longest time that one tower waits for another. Defaults to 300 s. After it,
    /// training ends with an error that names the tower, what it waited for, and where the other
    /// one is.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> TrainConfig {
        self.session.deadline = deadline;
        self
    }

    /// Sets the initial values of variables. A resumed run ignores them.
    #[must_use]
    pub fn session_init(self, init: impl SessionInit + 'static) -> TrainConfig {
        TrainConfig { session_init: Some(Box::new(init)), ..self }
    }

    /// Sets the number of the first epoch. Defaults to 1.
    #[must_use]
    pub fn starting_epoch(self, epoch: u64) -> TrainConfig {
        TrainConfig { starting_epoch: epoch, ..self }
    }

    /// Sets the number of steps per epoch. Defaults to one pass over the data. It determines when
    /// callbacks run, not the order of data.
    #[must_use]
    pub fn steps_per_epoch(self, steps: u64) -> TrainConfig {
        TrainConfig { steps_per_epoch: Some(steps), ..self }
    }

    /// Sets the number of the last epoch.
    #[must_use]
    pub fn max_epoch(self, epoch: u64) -> TrainConfig {
        TrainConfig { max_epoch: epoch, ..self }
    }

    /// Sets the log directory. Defaults to `train_log/PROGRAM`. An existing run in it is resumed.
    #[must_use]
    pub fn logdir(self, dir: impl Into<PathBuf>) -> TrainConfig {
        TrainConfig { logdir: Some(dir.into()), ..self }
    }

    /// Writes nothing: no log, no statistics, no checkpoints.
    #[must_use]
    pub fn no_logdir(self) -> TrainConfig {
        TrainConfig { logdir: None, ..self }
    }

    /// Starts a new run even if the directory has one. Existing checkpoints are moved aside.
    #[must_use]
    pub fn fresh(self, fresh: bool) -> TrainConfig {
        TrainConfig { fresh, ..self }
    }

    /// Sets which checkpoints are kept.
    #[must_use]
    pub fn keep(self, keep: Keep) -> TrainConfig {
        TrainConfig { keep, ..self }
    }

    /// Writes checkpoints to this disk, for other kinds of storage and for tests. Defaults to the
    /// local file system.
    #[must_use]
    pub fn disk(self, disk: Box<dyn Disk>) -> TrainConfig {
        TrainConfig { disk: Some(disk), ..self }
    }

    /// Sets how to handle a non-finite cost or gradient. Defaults to stopping with an error.
    #[must_use]
    pub fn nan_policy(self, nan: NanPolicy) -> TrainConfig {
        TrainConfig { nan, ..self }
    }

    /// Rejects a model or input: this trainer already has a graph and an input and would ignore
    /// them.
    pub(super) fn check_unused(&self) -> Result<()> {
        let unused = match (&self.model, &self.dataflow, &self.data) {
            (Some(_), ..) => "a model",
            (None, Some(_), _) => "a dataflow",
            (None, None, Some(_)) => "an input source",
            (None, None, None) => return Ok(()),
        };
        let why =
            format!("the configuration has {unused}, but this trainer already has a graph and an input");
        Err(Error::argument(why).note("start from TrainConfig::default(), or use launch_train_with_config"))
    }

    /// Checks the configuration for contradictions.
    pub(super) fn check(&self) -> Result<()> {
        if self.dataflow.is_some() && self.data.is_some() {
            return Err(Error::argument(
                "the configuration has both a dataflow and an input source; give only one",
            ));
        }
        if self.starting_epoch == 0 {
            return Err(Error::argument("starting_epoch is 0, but epochs are numbered from 1"));
        }
        Ok(())
    }
}
