//! The configuration of a run, whatever it trains.

use super::rerun::Rerun;
use super::{NanPolicy, StepsPerLaunch, default_callbacks, default_monitors};
use crate::callback::Callback;
use crate::graph::{LossScale, Precision};
use crate::io::{Disk, Keep, SessionInit};
use crate::monitor::Monitor;
use crate::runtime::SessionOptions;
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;
use tensorpack_tensor::{Error, Result};

/// The settings of a run that do not depend on what is trained: callbacks, monitors, session,
/// duration, log directory. Everything has a default.
///
/// Trainers that already have a graph take it ([`Trainer::train`](super::Trainer::train),
/// [`TowerTrainer::train`](super::TowerTrainer::train)). [`TrainConfig`](super::TrainConfig), for a
/// model and its data, has the same methods.
pub struct RunConfig {
    pub(super) callbacks: Vec<Box<dyn Callback>>,
    pub(super) extra_callbacks: Option<Vec<Box<dyn Callback>>>,
    pub(super) monitors: Option<Vec<Box<dyn Monitor>>>,
    /// Without `seed` and `deadline`: see [`RunConfig::session_options`].
    pub(super) session: SessionOptions,
    pub(super) seed: Option<u64>,
    pub(super) deadline: Option<Duration>,
    pub(super) session_init: Option<Box<dyn SessionInit>>,
    pub(super) starting_epoch: u64,
    pub(super) steps_per_epoch: Option<u64>,
    pub(super) max_epoch: u64,
    pub(super) logdir: Option<PathBuf>,
    pub(super) fresh: bool,
    pub(super) quiet: bool,
    /// Whether a summary of the model is logged with the first batch.
    pub(super) summary: bool,
    /// Whether a program with `TrainArgs` runs it. Its log says at the start how large the model is,
    /// and at the end where to look.
    pub(super) is_program: bool,
    /// Whether everything is checked, and nothing trained.
    pub(super) dry_run: bool,
    /// Whether the process ends when training has, as `TrainArgs` asks for `--dry-run` and the
    /// like.
    pub(super) then_exit: bool,
    /// What to do instead of training, if a command started this process for that.
    pub(super) rerun: Option<Rerun>,
    /// The options of the command line, for the manifest of the run.
    pub(super) options: Value,
    /// Those of the options that choose what is trained, for the comparison with a resumed run.
    pub(super) task_options: Value,
    pub(super) keep: Keep,
    pub(super) disk: Option<Box<dyn Disk>>,
    pub(super) nan: NanPolicy,
    pub(super) steps_per_launch: StepsPerLaunch,
    pub(super) precision: Option<Precision>,
    pub(super) loss_scale: Option<LossScale>,
}

impl Default for RunConfig {
    fn default() -> RunConfig {
        RunConfig {
            callbacks: Vec::new(),
            extra_callbacks: None,
            monitors: None,
            session: SessionOptions::default(),
            seed: None,
            deadline: None,
            session_init: None,
            starting_epoch: 1,
            steps_per_epoch: None,
            max_epoch: 99_999,
            logdir: Some(default_logdir()),
            fresh: false,
            quiet: false,
            summary: false,
            is_program: false,
            dry_run: false,
            then_exit: false,
            rerun: None,
            options: Value::Null,
            task_options: Value::Null,
            keep: Keep::default(),
            disk: None,
            nan: NanPolicy::default(),
            steps_per_launch: StepsPerLaunch::Exactly(1),
            precision: None,
            loss_scale: None,
        }
    }
}

/// Returns `train_log/NAME`, where `NAME` is the name of the program.
fn default_logdir() -> PathBuf {
    let program = std::env::args_os().next().map(PathBuf::from);
    let name = program.as_deref().and_then(|p| p.file_stem()).map(PathBuf::from);
    PathBuf::from("train_log").join(name.unwrap_or_else(|| "run".into()))
}

/// Writes the methods that set the options of a run, for [`RunConfig`] itself or for a type with a
/// `RunConfig` in the named field.
macro_rules! run_settings {
    ($config:ident $(. $run:ident)?) => {
        impl $config {
            /// Appends a callback.
            #[must_use]
            pub fn callback(mut self, callback: impl $crate::callback::Callback + 'static) -> $config {
                self $(.$run)? .callbacks.push(Box::new(callback));
                self
            }

            /// Appends callbacks.
            #[must_use]
            pub fn callbacks(mut self, callbacks: Vec<Box<dyn $crate::callback::Callback>>) -> $config {
                self $(.$run)? .callbacks.extend(callbacks);
                self
            }

            /// Replaces [`default_callbacks`](super::default_callbacks), which run after the other
            /// callbacks.
            #[must_use]
            pub fn extra_callbacks(mut self, callbacks: Vec<Box<dyn $crate::callback::Callback>>) -> $config {
                self $(.$run)? .extra_callbacks = Some(callbacks);
                self
            }

            /// Replaces [`default_monitors`](super::default_monitors).
            #[must_use]
            pub fn monitors(mut self, monitors: Vec<Box<dyn $crate::monitor::Monitor>>) -> $config {
                self $(.$run)? .monitors = Some(monitors);
                self
            }

            /// Sets the options of the session: device, threads, instruction set, memory.
            ///
            /// A seed or deadline that is set here and, to another value, by `seed` or `deadline`
            /// is an error when training starts.
            #[must_use]
            pub fn session(mut self, session: $crate::runtime::SessionOptions) -> $config {
                self $(.$run)? .session = session;
                self
            }

            /// Sets the seed of initial values, random operations and the order of data. Defaults
            /// to 0.
            #[must_use]
            pub fn seed(mut self, seed: u64) -> $config {
                self $(.$run)? .seed = Some(seed);
                self
            }

            /// Sets the longest time that one tower waits for another. Defaults to 300 s. After it,
            /// training ends with an error that names the tower, what it waited for, and where the
            /// other one is. The same holds if all towers, or the only one in a custom kernel, make
            /// no progress for that long.
            #[must_use]
            pub fn deadline(mut self, deadline: std::time::Duration) -> $config {
                self $(.$run)? .deadline = Some(deadline);
                self
            }

            /// Sets the initial values of variables. A resumed run ignores them.
            #[must_use]
            pub fn session_init(mut self, init: impl $crate::io::SessionInit + 'static) -> $config {
                self $(.$run)? .session_init = Some(Box::new(init));
                self
            }

            /// Sets the number of the first epoch. Defaults to 1.
            #[must_use]
            pub fn starting_epoch(mut self, epoch: u64) -> $config {
                self $(.$run)? .starting_epoch = epoch;
                self
            }

            /// Sets the number of steps per epoch. Defaults to the number of batches in a pass over
            /// the data; with k towers a step consumes k of them. It determines when callbacks run,
            /// not the order of data.
            #[must_use]
            pub fn steps_per_epoch(mut self, steps: u64) -> $config {
                self $(.$run)? .steps_per_epoch = Some(steps);
                self
            }

            /// Sets the number of the last epoch. Defaults to 99999.
            #[must_use]
            pub fn max_epoch(mut self, epoch: u64) -> $config {
                self $(.$run)? .max_epoch = epoch;
                self
            }

            /// Sets the log directory. Defaults to `train_log/PROGRAM`. An existing run in it is
            /// resumed.
            #[must_use]
            pub fn logdir(mut self, dir: impl Into<std::path::PathBuf>) -> $config {
                self $(.$run)? .logdir = Some(dir.into());
                self
            }

            /// Writes nothing: no log, no statistics, no checkpoints.
            #[must_use]
            pub fn no_logdir(mut self) -> $config {
                self $(.$run)? .logdir = None;
                self
            }

            /// Starts a new run even if the directory has one. Existing checkpoints are moved
            /// aside.
            #[must_use]
            pub fn fresh(mut self) -> $config {
                self $(.$run)? .fresh = true;
                self
            }

            /// Shows only warnings and errors on standard error, and no progress bar. `log.log` has
            /// everything.
            #[must_use]
            pub fn quiet(mut self) -> $config {
                self $(.$run)? .quiet = true;
                self
            }

            /// Logs a table of the model's layers with the first batch: see
            /// [`nn::summary`](crate::nn::summary()).
            #[must_use]
            pub fn summary(mut self) -> $config {
                self $(.$run)? .summary = true;
                self
            }

            /// Checks everything that can be checked before the first step, logs a summary of the
            /// model, and trains nothing: the graph, the callbacks, the session, initial values,
            /// the first batch, the plan of the step and its memory. Writes nothing. Training then
            /// ends as if it had been stopped.
            #[must_use]
            pub fn dry_run(mut self) -> $config {
                self $(.$run)? .dry_run = true;
                self
            }

            /// Sets which checkpoints are kept.
            #[must_use]
            pub fn keep(mut self, keep: $crate::io::Keep) -> $config {
                self $(.$run)? .keep = keep;
                self
            }

            /// Writes checkpoints to this disk, for other kinds of storage and for tests. Defaults
            /// to the local file system.
            #[must_use]
            pub fn disk(mut self, disk: Box<dyn $crate::io::Disk>) -> $config {
                self $(.$run)? .disk = Some(disk);
                self
            }

            /// Sets how to handle a non-finite cost or gradient. Defaults to stopping with an
            /// error.
            #[must_use]
            pub fn nan_policy(mut self, nan: $crate::train::NanPolicy) -> $config {
                self $(.$run)? .nan = nan;
                self
            }

            /// Sets the largest number of steps that one launch on an accelerator runs, or
            /// [`Auto`](crate::train::StepsPerLaunch::Auto). Defaults to 1. With more, small models
            /// wait less for the host: see `docs/xla.md`.
            ///
            /// Results are the same. The values of [deferred](crate::runtime::Cadence::Deferred)
            /// fetches come later, once per launch. A launch ends early at the end of an epoch, at a
            /// checkpoint, at a step with a fetch of another cadence, and when a callback uses the
            /// session. Devices other than XLA's, trainers whose step is not one run, several
            /// processes, and callbacks that fetch with every run are errors when training starts.
            #[must_use]
            #[doc(alias = "scan")]
            #[doc(alias = "steps_per_execution")]
            pub fn steps_per_launch(
                mut self,
                steps: impl Into<$crate::train::StepsPerLaunch>,
            ) -> $config {
                self $(.$run)? .steps_per_launch = steps.into();
                self
            }

            /// Sets the precision in which the model computes: see `docs/precision.md`. Defaults to
            /// [`Precision::Tf32`]($crate::graph::Precision::Tf32). A trainer whose graph is built
            /// already has the precision of that graph
            /// ([`Graph::set_precision`]($crate::graph::Graph::set_precision)); another one is an
            /// error.
            #[must_use]
            #[doc(alias = "mixed_precision")]
            #[doc(alias = "autocast")]
            pub fn precision(mut self, precision: $crate::graph::Precision) -> $config {
                self $(.$run)? .precision = Some(precision);
                self
            }

            /// Sets the limit of the memory of variables and steps, in bytes, on each device. Defaults
            /// to what is available.
            ///
            /// If the plan of a step takes more, parts of its forward pass are computed again in the
            /// backward pass. If no plan fits, training ends with an error that has the size of the
            /// smallest. See `docs/memory.md`.
            #[must_use]
            pub fn memory_limit(mut self, bytes: usize) -> $config {
                self $(.$run)? .session.memory_limit = Some(bytes);
                self
            }

            /// Sets how the cost is scaled in [`Precision::F16`]($crate::graph::Precision::F16); other
            /// precisions ignore it. Like the precision, it must be that of a graph that is built
            /// already.
            #[must_use]
            pub fn loss_scale(mut self, loss_scale: $crate::graph::LossScale) -> $config {
                self $(.$run)? .loss_scale = Some(loss_scale);
                self
            }
        }
    };
}
pub(super) use run_settings;

run_settings!(RunConfig);

impl RunConfig {
    /// Creates a configuration with all defaults.
    pub fn new() -> RunConfig {
        RunConfig::default()
    }

    /// Adds the default callbacks and monitors, unless they were replaced.
    pub(super) fn with_defaults(mut self) -> RunConfig {
        self.extra_callbacks.get_or_insert_with(default_callbacks);
        self.monitors.get_or_insert_with(|| default_monitors(self.logdir.as_deref()));
        self
    }

    /// Returns the options of the session, including seed and deadline. Returns an error if two
    /// settings contradict each other.
    pub(super) fn session_options(&self) -> Result<SessionOptions> {
        let default = SessionOptions::default();
        Ok(SessionOptions {
            seed: agreed("seed", self.seed, self.session.seed, default.seed)?,
            deadline: agreed("deadline", self.deadline, self.session.deadline, default.deadline)?,
            ..self.session.clone()
        })
    }

    /// Returns the longest wait for another tower, also if settings contradict each other.
    pub(super) fn session_options_deadline(&self) -> Duration {
        self.deadline.unwrap_or(self.session.deadline)
    }

    /// Checks the configuration before anything is built or written.
    pub(super) fn check(&self) -> Result<()> {
        if self.starting_epoch == 0 {
            return Err(Error::argument("starting_epoch is 0, but epochs are numbered from 1"));
        }
        self.steps_per_launch.check()?;
        if self.logdir.as_ref().is_some_and(|dir| dir.as_os_str().is_empty()) {
            return Err(Error::argument("logdir is empty")
                .note("name a directory (\".\" is the current one), or write nothing with no_logdir()"));
        }
        self.session_options().map(|_| ())
    }
}

/// Returns the value of a setting that has its own method and is also a session option. An option
/// that still has its default value counts as not set.
fn agreed<T: PartialEq + std::fmt::Debug>(name: &str, set: Option<T>, option: T, default: T) -> Result<T> {
    match set {
        Some(set) if option != default && option != set => {
            let why = format!("{name} is set to {set:?} and, in the session options, to {option:?}");
            Err(Error::argument(why).note(format!("set it once: with {name}(..) or in session(..)")))
        }
        Some(set) => Ok(set),
        None => Ok(option),
    }
}

impl AsMut<RunConfig> for RunConfig {
    fn as_mut(&mut self) -> &mut RunConfig {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorpack_tensor::ErrorKind;

    const DEADLINE: Duration = Duration::from_secs(7);

    fn found(config: RunConfig) -> (u64, Duration, Option<usize>) {
        let options = config.session_options().unwrap();
        (options.seed, options.deadline, options.threads)
    }

    #[test]
    fn settings_hold_in_any_order() {
        let options = || SessionOptions { threads: Some(3), ..SessionOptions::default() };
        let before = RunConfig::new().seed(5).deadline(DEADLINE).session(options());
        let after = RunConfig::new().session(options()).seed(5).deadline(DEADLINE);
        assert_eq!(found(before), (5, DEADLINE, Some(3)));
        assert_eq!(found(after), (5, DEADLINE, Some(3)));
        let inside = SessionOptions { seed: 5, deadline: DEADLINE, ..options() };
        assert_eq!(found(RunConfig::new().session(inside.clone())), (5, DEADLINE, Some(3)));
        assert_eq!(found(RunConfig::new().seed(5).session(inside)), (5, DEADLINE, Some(3)));
    }

    #[test]
    fn contradicting_settings_are_errors_in_any_order() {
        let seed = || SessionOptions { seed: 6, ..SessionOptions::default() };
        let deadline = || SessionOptions { deadline: DEADLINE, ..SessionOptions::default() };
        for (config, name) in [
            (RunConfig::new().seed(5).session(seed()), "seed"),
            (RunConfig::new().session(seed()).seed(5), "seed"),
            (RunConfig::new().deadline(Duration::MAX).session(deadline()), "deadline"),
            (RunConfig::new().session(deadline()).deadline(Duration::MAX), "deadline"),
            (RunConfig::new().starting_epoch(0), "starting_epoch"),
            (RunConfig::new().steps_per_launch(0), "steps_per_launch"),
            (RunConfig::new().steps_per_launch(1025), "steps_per_launch"),
        ] {
            let error = config.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
            assert!(error.message().contains(name), "{error}");
        }
    }
}
