//! How a model is to be trained.

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

/// Everything about a training run except who runs it: model, data, callbacks, how long, where to write. What is
/// needed is given to [`TrainConfig::new`]; the rest has defaults, and is checked when training is launched.
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
    /// For trainers whose graph and input are made otherwise: neither model nor data.
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

/// `train_log/NAME`, for the program of this name.
fn default_logdir() -> PathBuf {
    let program = std::env::args_os().next().map(PathBuf::from);
    let name = program.as_deref().and_then(|p| p.file_stem()).map(PathBuf::from);
    PathBuf::from("train_log").join(name.unwrap_or_else(|| "run".into()))
}

impl TrainConfig {
    /// This model, trained on this data.
    pub fn new(model: impl ModelDesc + 'static, dataflow: impl DataFlow + 'static) -> TrainConfig {
        TrainConfig { dataflow: Some(Arc::new(dataflow)), ..TrainConfig::of(model) }
    }

    /// This model; say with [`TrainConfig::data`] what it is trained on.
    pub fn of(model: impl ModelDesc + 'static) -> TrainConfig {
        TrainConfig { model: Some(Box::new(model)), ..TrainConfig::default() }
    }

    /// An input source instead of a dataflow.
    #[must_use]
    pub fn data(self, input: impl InputSource + 'static) -> TrainConfig {
        TrainConfig { data: Some(Box::new(input)), ..self }
    }

    /// One more callback, at the end of the list.
    #[must_use]
    pub fn callback(mut self, callback: impl Callback + 'static) -> TrainConfig {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// More callbacks, at the end of the list.
    #[must_use]
    pub fn callbacks(mut self, callbacks: Vec<Box<dyn Callback>>) -> TrainConfig {
        self.callbacks.extend(callbacks);
        self
    }

    /// These callbacks instead of [`default_callbacks`](super::default_callbacks); they come after the others.
    #[must_use]
    pub fn extra_callbacks(self, callbacks: Vec<Box<dyn Callback>>) -> TrainConfig {
        TrainConfig { extra_callbacks: Some(callbacks), ..self }
    }

    /// These monitors instead of [`default_monitors`](super::default_monitors).
    #[must_use]
    pub fn monitors(self, monitors: Vec<Box<dyn Monitor>>) -> TrainConfig {
        TrainConfig { monitors: Some(monitors), ..self }
    }

    /// Device, threads, instructions, memory.
    #[must_use]
    pub fn session(self, session: SessionOptions) -> TrainConfig {
        TrainConfig { session, ..self }
    }

    /// What initial values, random operations and the order of data are drawn from; 0 unless said.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> TrainConfig {
        self.session.seed = seed;
        self
    }

    /// The longest one tower waits for another, 300 s unless said: then training ends with an error that names the tower,
    /// what it waited for, and where the other one is.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> TrainConfig {
        self.session.deadline = deadline;
        self
    }

    /// Values of variables to begin with. A run that resumes does not need them.
    #[must_use]
    pub fn session_init(self, init: impl SessionInit + 'static) -> TrainConfig {
        TrainConfig { session_init: Some(Box::new(init)), ..self }
    }

    /// The number of the first epoch, 1 unless said.
    #[must_use]
    pub fn starting_epoch(self, epoch: u64) -> TrainConfig {
        TrainConfig { starting_epoch: epoch, ..self }
    }

    /// Steps in an epoch; a pass over the data unless said. It sets when callbacks are called, never the order of data.
    #[must_use]
    pub fn steps_per_epoch(self, steps: u64) -> TrainConfig {
        TrainConfig { steps_per_epoch: Some(steps), ..self }
    }

    /// The number of the last epoch.
    #[must_use]
    pub fn max_epoch(self, epoch: u64) -> TrainConfig {
        TrainConfig { max_epoch: epoch, ..self }
    }

    /// Where the run is written; `train_log/PROGRAM` unless said. A run that is there already is resumed.
    #[must_use]
    pub fn logdir(self, dir: impl Into<PathBuf>) -> TrainConfig {
        TrainConfig { logdir: Some(dir.into()), ..self }
    }

    /// Writes nothing: no log, no statistics, no checkpoints.
    #[must_use]
    pub fn no_logdir(self) -> TrainConfig {
        TrainConfig { logdir: None, ..self }
    }

    /// Begins anew, even if there is a run in the directory: what it left is moved aside.
    #[must_use]
    pub fn fresh(self, fresh: bool) -> TrainConfig {
        TrainConfig { fresh, ..self }
    }

    /// Which checkpoints stay.
    #[must_use]
    pub fn keep(self, keep: Keep) -> TrainConfig {
        TrainConfig { keep, ..self }
    }

    /// Writes checkpoints through this, for unusual storage and for tests; to the machine's disk unless said.
    #[must_use]
    pub fn disk(self, disk: Box<dyn Disk>) -> TrainConfig {
        TrainConfig { disk: Some(disk), ..self }
    }

    /// What to do when a cost or gradient is not finite: to stop, unless said.
    #[must_use]
    pub fn nan_policy(self, nan: NanPolicy) -> TrainConfig {
        TrainConfig { nan, ..self }
    }

    /// That nothing is asked of a trainer that it would not do: it has its graph and its input already.
    pub(super) fn check_unused(&self) -> Result<()> {
        let unused = match (&self.model, &self.dataflow, &self.data) {
            (Some(_), ..) => "a model",
            (None, Some(_), _) => "a dataflow",
            (None, None, Some(_)) => "an input source",
            (None, None, None) => return Ok(()),
        };
        let why =
            format!("the configuration has {unused}, but this trainer's graph and input are made already");
        Err(Error::argument(why)
            .note("begin with TrainConfig::default(), or let launch_train_with_config make them"))
    }

    /// What does not fit together.
    pub(super) fn check(&self) -> Result<()> {
        if self.dataflow.is_some() && self.data.is_some() {
            return Err(Error::argument("a dataflow and an input source were given; one is enough"));
        }
        if self.starting_epoch == 0 {
            return Err(Error::argument("epochs are counted from 1: starting_epoch(0) is none"));
        }
        Ok(())
    }
}
