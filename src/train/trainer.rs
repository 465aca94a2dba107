//! The trainer: sets up and runs training of a graph.

use super::batch_summary::{BatchSummary, Description, describe_model};
use super::main_loop::{Ended, MainLoop};
use super::manifest::{self, Started};
use super::ranks::{self, Ranks};
use super::rerun::Rerun;
use super::resume;
use super::signals::{self, Signals};
use super::step::Iteration;
use super::step_plan::StepPlan;
use super::{NanPolicy, RunConfig, StepsPerLaunch};
use crate::callback::{Callback, Callbacks, GraphCx, Progress, SkippedSteps, TrainState};
use crate::distributed::ProcessGroup;
use crate::graph::{FLUSH_OPS, Fetch, GLOBAL_STEP, Graph, Tensor, TensorSpec};
use crate::input::{InputSource, OtherTowers, no_batch};
use crate::io::{Checkpoint, CheckpointStore, CheckpointWriter, RealDisk, RunLock};
use crate::logger;
use crate::monitor::{Moment, Monitors};
use crate::nn::describe_trainables;
use crate::optim::EMA_PREFIX;
use crate::predict::{OfflinePredictor, OnlinePredictor, PredictConfig};
use crate::runtime::{Device, Interrupt, Launches, Session, SessionOptions};
use crate::terminal::Activity;
use crate::tower::{TowerContext, TowerFunc, Towers};
use serde_json::{Map, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// A general trainer: a graph, callbacks, monitors, a session, and a loop over epochs and steps. An
/// [`Iteration`] defines the step. The trainer assumes neither batches nor gradients nor costs.
///
/// Build the graph, create a trainer for it, then call [`train`](Trainer::train).
/// [`SingleCostTrainer::setup_graph`](super::SingleCostTrainer::setup_graph) does the first two for
/// models with one cost.
pub struct Trainer {
    graph: Graph,
    tower: Option<TowerFunc>,
    input: Option<Box<dyn InputSource>>,
    /// The device of the session, if the trainer and not the configuration sets it.
    device: Option<Device>,
    /// The processes that train together, if there are several.
    group: Option<Arc<ProcessGroup>>,
    /// The cost that every step minimizes, if there is one.
    cost: Option<Tensor>,
    /// The operation that every step runs, if it is one.
    step: Option<Fetch>,
    callbacks: Callbacks,
}

impl Trainer {
    /// Creates a trainer for a graph. The graph must be complete before training starts.
    pub fn new(graph: &Graph) -> Trainer {
        let callbacks = Callbacks::default();
        Trainer {
            graph: graph.clone(),
            tower: None,
            input: None,
            device: None,
            group: None,
            cost: None,
            step: None,
            callbacks,
        }
    }

    /// Sets the tower function that built the model. Inference during training and predictors need
    /// it.
    #[must_use]
    pub fn with_tower_func(self, tower: TowerFunc) -> Trainer {
        Trainer { tower: Some(tower), ..self }
    }

    /// Sets the input source that feeds the steps.
    #[must_use]
    pub fn input(self, input: Box<dyn InputSource>) -> Trainer {
        Trainer { input: Some(input), ..self }
    }

    /// Runs the session on this device, whatever the configuration says.
    pub(super) fn on_device(self, device: Option<Device>) -> Trainer {
        Trainer { device, ..self }
    }

    /// Trains together with the other processes of this group.
    pub(super) fn with_group(self, group: Option<Arc<ProcessGroup>>) -> Trainer {
        Trainer { group, ..self }
    }

    /// Tells callbacks which cost every step minimizes.
    pub(super) fn with_cost(self, cost: Option<Tensor>) -> Trainer {
        Trainer { cost, ..self }
    }

    /// Sets the operation that every step runs, for checks before the first one.
    pub(super) fn with_step(self, step: Option<Fetch>) -> Trainer {
        Trainer { step, ..self }
    }

    /// Returns the graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns the tower function, if there is one.
    pub fn tower_func(&self) -> Option<&TowerFunc> {
        self.tower.as_ref()
    }

    /// Returns the input signature of the tower function, if there is one.
    pub fn input_signature(&self) -> Option<&[TensorSpec]> {
        self.tower.as_ref().map(TowerFunc::signature)
    }

    /// Returns the towers that the tower function built, if there is one.
    pub fn towers(&self) -> Option<Towers<'_>> {
        self.tower.as_ref().map(TowerFunc::towers)
    }

    /// Builds a predictor from the named inputs to the named outputs of the model, which predicts
    /// with the current weights during training. Callbacks create theirs with
    /// [`GraphCx::predictor`].
    pub fn get_predictor(&mut self, inputs: &[&str], outputs: &[&str]) -> Result<OnlinePredictor> {
        let t = TowerContext::inference(&self.graph);
        OnlinePredictor::new(self.tower.as_mut().ok_or_else(no_tower_func)?, &t, inputs, outputs)
    }

    /// Adds a callback of the trainer itself. It runs before the user's callbacks.
    pub fn register_callback(&mut self, callback: impl Callback + 'static) {
        self.callbacks.push(Box::new(callback));
    }

    /// Trains with the default callbacks and monitors, unless the configuration replaces them. Sets
    /// up callbacks and monitors, freezes the graph, creates the session, resumes the run in the
    /// log directory if there is one, and runs the loop.
    ///
    /// After SIGTERM, SIGINT or SIGHUP the process terminates once everything is saved, and after a
    /// second signal at once. A SIGHUP that is ignored, as under `nohup`, stays ignored. When
    /// training ends, signals do again what they did before.
    pub fn train_with_defaults(self, config: RunConfig, iteration: impl Iteration) -> Result<Trained> {
        self.train(config.with_defaults(), iteration)
    }

    /// Trains with only the callbacks and monitors of the configuration.
    pub fn train(self, mut config: RunConfig, mut iteration: impl Iteration) -> Result<Trained> {
        // Here, whatever the program sets before: it must not train in the directory of the run.
        if let Some(rerun) = Rerun::from_environment()? {
            rerun.apply(&mut config)?;
        }
        config.check()?;
        let then_exit = config.then_exit;
        let (signals, interrupt) = Signals::install()?;
        let (group, deadline) = (self.group.clone(), config.session_options_deadline());
        if group.is_some() {
            signals::expect_repeats();
        }
        let run = || self.run(config, &interrupt, &mut iteration);
        let ended = match &group {
            Some(group) => ranks::finish(group, ranks::report_panic(group, run), deadline),
            None => run(),
        };
        drop(signals);
        // Also if training has finished meanwhile: the signal was for the process. And if it was for
        // another process of the group.
        let of_another = match &ended {
            Ok(Trained { ended: Ended::Interrupted(signal), .. }) => Some(*signal),
            _ => None,
        };
        if let Some(signal) = interrupt.signal().or(of_another) {
            if let Err(e) = &ended {
                log::error!("{e}");
            }
            log::logger().flush();
            signals::terminate_by(signal);
        }
        if then_exit && ended.is_ok() {
            log::logger().flush();
            std::process::exit(0);
        }
        ended
    }

    /// Opens the log directory and runs training. The error that ends it is the end of `log.log`.
    fn run(self, config: RunConfig, interrupt: &Interrupt, iteration: &mut dyn Iteration) -> Result<Trained> {
        logger::init();
        logger::set_quiet(config.quiet);
        if self.group.is_none() {
            ranks::warn_of_launcher();
        }
        let is_chief = self.group.as_ref().is_none_or(|group| group.rank() == 0);
        let lock = match config.logdir.as_deref().filter(|_| !config.dry_run) {
            Some(dir) if is_chief => Some(open_directory(dir)?),
            Some(dir) => {
                // Only rank 0 needs the directory.
                if let Err(e) = logger::set_directory(dir) {
                    log::warn!("this rank has no log file: {e}");
                }
                None
            }
            None => None,
        };
        let has_log_file = config.logdir.is_some() && !config.dry_run;
        let ended = self.run_locked(config, interrupt, iteration, lock);
        // After a signal `train` logs the error.
        if let Err(e) = &ended
            && has_log_file
            && interrupt.signal().is_none()
        {
            logger::record_error(e);
        }
        ended
    }

    fn run_locked(
        mut self,
        mut config: RunConfig,
        interrupt: &Interrupt,
        iteration: &mut dyn Iteration,
        lock: Option<RunLock>,
    ) -> Result<Trained> {
        let steps_per_epoch = self.steps_per_epoch(&config)?;
        let is_chief = self.group.as_ref().is_none_or(|group| group.rank() == 0);
        // A signal to one process ends all of them, at a step that they agree on.
        let others = self.group.clone().filter(|group| group.size() > 1);
        let ranks = others.map(|group| Ranks::new(group, interrupt, config.session_options_deadline()));
        let unset = Interrupt::new();
        let (interrupt, signals) = (if ranks.is_some() { &unset } else { interrupt }, interrupt);
        if !is_chief || config.dry_run {
            config.monitors = None;
        }
        if config.fresh
            && let Some(lock) = &lock
        {
            move_checkpoints_aside(lock.dir())?;
        }
        let mut plan = self.setup_callbacks(&mut config)?;
        let flush = self.flush_op();
        let creating = Activity::begin("creating the session");
        let mut state = self.initialize(&mut config, interrupt, signals, steps_per_epoch, lock.as_ref())?;
        drop(creating);
        iteration.check(state.session.graph())?;
        plan.launches = self.launches(&config, &state, &plan, iteration)?;
        let reading = Activity::begin("reading the checkpoint");
        let saved = match &mut state.checkpoints {
            Some(checkpoints) => checkpoints.latest()?,
            None => None,
        };
        let saved = match &ranks {
            Some(ranks) => ranks.share_checkpoint(saved)?,
            None => saved,
        };
        if let Some((folder, checkpoint)) = &saved {
            resume::restore(&mut state, checkpoint, &mut self.callbacks, iteration)?;
            drop(reading);
            let Progress { epoch_num, global_step, .. } = state.progress;
            log::info!("resuming {} at epoch {epoch_num}, step {global_step}", folder.display());
            if let Some(ended) = already_ended(&state) {
                return Ok(self.already_complete(ended, state, checkpoint));
            }
            resume::warn_of_changed_options(&state, checkpoint);
        } else if let Some(init) = &config.session_init {
            drop(reading);
            let _loading = Activity::begin("loading initial values");
            init.init(&state.session)?;
        } else {
            drop(reading);
        }
        if let Some(ranks) = &ranks {
            ranks.check_same(&state, self.input.as_deref())?;
        }
        let saved = saved.as_ref().map(|(_, checkpoint)| checkpoint);
        let Progress { epoch_num, global_step, .. } = state.progress;
        state.monitors.start(
            config.logdir.as_deref(),
            saved.map(|c| &c.state["monitors"]),
            Moment { epoch_num, global_step },
        );
        state.monitors.put_graph(state.session.graph());
        if let Some(lock) = &lock {
            let started = Started {
                settings: &state.settings,
                options: &config.options,
                platform: state.session.platform()?,
                processes: self.group.as_ref().map_or(1, |group| group.size()),
                resumed_at: saved.map(|_| global_step),
                logdir: lock.dir(),
            };
            let start = manifest::describe(&started);
            manifest::record(lock.dir(), &start);
            state.monitors.put_manifest(&start);
        }
        let towers = self.tower_count();
        if let Some(input) = &mut self.input {
            let others = ranks.as_ref().map_or_else(OtherTowers::default, |ranks| ranks.other_towers(towers));
            let steps_per_launch = plan.launches.map_or(1, |launches| launches.steps);
            let _starting = Activity::begin("starting the input");
            if let Some(why) = input.cannot_resume().filter(|_| config.rerun.is_some()) {
                return Err(Error::new(ErrorKind::Unsupported, format!("no step can be repeated: {why}"))
                    .note("verify and replay need data that can be read again from any position"));
            }
            resume::start_input(&state, input.as_mut(), saved, others, steps_per_launch)?;
        }
        if config.dry_run {
            return self.end_dry_run(state, &mut plan);
        }
        let counts_in_graph = state.session.graph().variables().iter().any(|v| v.name == GLOBAL_STEP);
        let summary = BatchSummary {
            towers,
            groups: self.group.as_ref().map_or(1, |group| group.size()),
            steps_per_epoch,
            pass: self.input.as_ref().and_then(|i| i.size()),
            same_pass: saved.is_some_and(|s| {
                let pass = &s.state["settings"]["batches_per_pass"];
                !pass.is_null() && *pass == state.settings["batches_per_pass"]
            }),
        };
        let mut main_loop = MainLoop {
            rerun: config.rerun.take(),
            state: &mut state,
            plan,
            callbacks: &mut self.callbacks,
            input: self.input,
            iteration,
            nan_policy: config.nan,
            ranks,
            summary: Some(summary),
            description: match (config.summary, config.is_program) {
                (true, _) => Description::Table,
                (false, true) => Description::Totals,
                (false, false) => Description::Nothing,
            },
            flush,
            counts_in_graph,
            is_first_step: true,
        };
        let ended = main_loop.run()?;
        if let Some(dir) = lock.as_ref().map(RunLock::dir).filter(|_| config.is_program) {
            log::info!("to see this run: tensorpack dashboard {}", runs_directory(dir).display());
        }
        let TrainState { session, monitors, logdir, .. } = state;
        Ok(Trained { ended, session, monitors, tower: self.tower, logdir })
    }

    /// Reads the first batch, compiles the step for it, and logs a table of the model.
    fn end_dry_run(mut self, state: TrainState, plan: &mut StepPlan) -> Result<Trained> {
        let batch = match &mut self.input {
            Some(input) => input.next()?.to_vec(),
            None => Vec::new(),
        };
        let feeds: Vec<(&str, &HostTensor)> = batch.iter().map(|(n, value)| (n.as_str(), value)).collect();
        match &self.step {
            Some(step) => {
                let id = plan.find(state.session.graph(), step, true)?;
                let text = describe_model(
                    &state.session,
                    state.logdir.is_some(),
                    &mut plan.run(id).program,
                    &feeds,
                )?;
                log::info!("the model\n{text}");
            }
            None => log::info!("the step of this trainer is its own, and was not compiled"),
        }
        if let Some(input) = &mut self.input {
            input.stop();
        }
        log::info!("dry run: everything was checked, nothing was trained");
        let TrainState { session, monitors, logdir, .. } = state;
        Ok(Trained { ended: Ended::Stopped("dry run".into()), session, monitors, tower: self.tower, logdir })
    }

    /// Returns the result of a run that its last checkpoint marks as ended.
    fn already_complete(self, ended: Ended, state: TrainState, checkpoint: &Checkpoint) -> Trained {
        let Progress { epoch_num, max_epoch, global_step, .. } = state.progress;
        let how = match &ended {
            Ended::Stopped(reason) => format!("was stopped at step {global_step} ({reason})"),
            _ => format!("is already complete ({epoch_num} of {max_epoch} epochs)"),
        };
        log::info!("run {how}; use --fresh to start over or --max-epoch to extend it");
        let mut monitors = Monitors::new();
        monitors.start(None, Some(&checkpoint.state["monitors"]), Moment::default());
        let TrainState { session, logdir, .. } = state;
        Trained { ended, session, monitors, tower: self.tower, logdir }
    }

    fn steps_per_epoch(&self, config: &RunConfig) -> Result<u64> {
        let size = || self.input.as_ref().and_then(|i| i.size());
        match config.steps_per_epoch.or_else(size) {
            // Epochs without steps are allowed only on request.
            Some(0) if config.steps_per_epoch.is_none() => Err(no_batch()),
            Some(steps) => Ok(steps),
            None => Err(Error::argument("the number of steps per epoch is unknown")
                .note("the input has no known size: set steps_per_epoch(..)")),
        }
    }

    /// Adds the callbacks and calls their `setup_graph`. Returns the plan with their fetches.
    fn setup_callbacks(&mut self, config: &mut RunConfig) -> Result<StepPlan> {
        self.graph.first_error()?;
        let extra = config.extra_callbacks.take().unwrap_or_default();
        for callback in config.callbacks.drain(..).chain(extra) {
            self.callbacks.push(callback);
        }
        let (mut declared, mut step_ops) = (Vec::new(), Vec::new());
        self.callbacks.setup_graph(&mut GraphCx {
            graph: &self.graph,
            tower: self.tower.as_mut(),
            declared: &mut declared,
            step_ops: &mut step_ops,
            logdir: config.logdir.as_deref(),
            cost: self.cost.clone(),
        })?;
        self.graph.first_error()?;
        self.callbacks.check_statistics()?;
        match &self.group {
            Some(group) if group.rank() > 0 => self.callbacks.remove_chief_only(),
            Some(group) if group.size() > 1 => self.callbacks.postpone_chief_requests(),
            _ => {}
        }
        log::info!("{}", describe_trainables(&self.graph));
        Ok(StepPlan::new(declared, step_ops))
    }

    /// Returns how steps are put into launches, if a launch runs several.
    fn launches(
        &self,
        config: &RunConfig,
        state: &TrainState,
        plan: &StepPlan,
        iteration: &dyn Iteration,
    ) -> Result<Option<Launches>> {
        let skip_limit = match config.nan {
            NanPolicy::Stop => 0,
            NanPolicy::Skip(most) => most,
        };
        match config.steps_per_launch {
            StepsPerLaunch::Exactly(1) => Ok(None),
            StepsPerLaunch::Exactly(steps) => {
                self.check_several_steps(steps, state, plan, iteration)?;
                Ok(Some(Launches { steps, skip_limit }))
            }
            // Steps with batches of different sizes run by themselves, and only the data show how many
            // there are.
            StepsPerLaunch::Auto if self.tower_count() > 1 => {
                log::info!("1 step per launch, because there are several towers");
                Ok(None)
            }
            StepsPerLaunch::Auto => {
                let steps = StepsPerLaunch::AUTO;
                match self.check_several_steps(steps, state, plan, iteration) {
                    Ok(()) => {
                        log::info!("{steps} steps per launch");
                        Ok(Some(Launches { steps, skip_limit }))
                    }
                    Err(e) if matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::Argument) => {
                        log::info!("1 step per launch: {}", e.message());
                        Ok(None)
                    }
                    Err(e) => Err(e),
                }
            }
        }
    }

    /// Returns an error if something needs every step by itself.
    fn check_several_steps(
        &self,
        steps: usize,
        state: &TrainState,
        plan: &StepPlan,
        iteration: &dyn Iteration,
    ) -> Result<()> {
        let refused = |why: String| {
            Err(Error::new(ErrorKind::Unsupported, format!("{steps} steps per launch: {why}"))
                .note("use one step per launch, which is the default"))
        };
        if !iteration.is_one_run() {
            return refused("a step of this trainer is not one run of one operation".into());
        }
        if self.group.as_ref().is_some_and(|group| group.size() > 1) {
            return refused("several processes agree on every step".into());
        }
        if !state.session.runs_several_steps()? {
            return refused("this device launches every step by itself; XLA devices do not".into());
        }
        plan.check_several_steps().map_err(|e| e.within(format!("{steps} steps per launch")))
    }

    fn tower_count(&self) -> usize {
        self.towers().map_or(1, |t| t.training().len())
    }

    /// Returns the operation that applies accumulated gradients at the end of training, if there is
    /// one.
    fn flush_op(&self) -> Option<Fetch> {
        let flush = self.graph.collection_ops(FLUSH_OPS);
        (!flush.is_empty()).then(|| Fetch::from(&self.graph.group(&flush.iter().collect::<Vec<_>>())))
    }

    pub(super) fn session_options(&self, config: &RunConfig) -> Result<SessionOptions> {
        let options = config.session_options()?;
        let threads = options
            .threads
            .or_else(|| self.group.as_ref().map(|group| ranks::threads(group, self.tower_count())));
        let process_group = self.group.clone().or(options.process_group);
        let (precision, device) = (self.graph.precision(), self.device.unwrap_or(options.device));
        if let Some(wanted) = config.precision.filter(|wanted| *wanted != precision) {
            let why = format!("the precision of the run is {wanted}, but its graph was built in {precision}");
            return Err(
                Error::argument(why).note("call set_precision(..) on the graph before towers are built")
            );
        }
        if config.loss_scale.is_some_and(|wanted| wanted != self.graph.loss_scale()) {
            return Err(Error::argument("the loss scale of the run is not that of its graph")
                .note("call set_loss_scale(..) on the graph before gradients are computed"));
        }
        Ok(SessionOptions { device, threads, process_group, ..options }.in_precision(precision))
    }

    /// Freezes the graph and creates the session.
    fn initialize(
        &self,
        config: &mut RunConfig,
        interrupt: &Interrupt,
        signals: &Interrupt,
        steps_per_epoch: u64,
        lock: Option<&RunLock>,
    ) -> Result<TrainState> {
        let disk = config.disk.take().unwrap_or_else(|| Box::new(RealDisk));
        let store = lock.map(|lock| CheckpointStore::open_on(disk, lock)).transpose()?;
        let options = SessionOptions { interrupt: interrupt.clone(), ..self.session_options(config)? };
        let (seed, device, precision) = (options.seed, options.device, self.graph.precision());
        let session = Session::with(self.graph.clone().freeze()?, options)?;
        let progress = Progress {
            epoch_num: config.starting_epoch - 1,
            local_step: -1,
            global_step: 0,
            steps_per_epoch,
            starting_epoch: config.starting_epoch,
            max_epoch: config.max_epoch,
        };
        let mut monitors = Monitors::new();
        config.monitors.take().into_iter().flatten().for_each(|m| monitors.add_boxed(m));
        let settings = json!({
            "seed": seed,
            "towers": self.tower_count() * self.group.as_ref().map_or(1, |group| group.size()),
            "steps_per_epoch": steps_per_epoch,
            "batches_per_pass": self.input.as_ref().and_then(|i| i.size()),
            "max_epoch": config.max_epoch,
            "device": device.to_string(),
            "precision": precision.to_string(),
        });
        Ok(TrainState {
            session,
            monitors,
            progress,
            steps_done: 0,
            epoch_ended: true,
            skipped: SkippedSteps::default(),
            checkpoints: store.map(|store| CheckpointWriter::new(store.keep(config.keep))),
            settings: settings.as_object().cloned().unwrap_or_else(Map::new),
            task_options: config.task_options.clone(),
            seed,
            logdir: config.logdir.clone(),
            interrupt: interrupt.clone(),
            signals: signals.clone(),
            save_request: None,
            stop_reason: None,
            group: self.group.clone(),
            resumed: false,
        })
    }
}

/// Returns how a resumed run ended, if it is complete.
fn already_ended(state: &TrainState) -> Option<Ended> {
    let ended = state.epoch_ended;
    // A stop in the last step of an epoch still runs the end of the epoch.
    let stopped = ended || state.steps_done < state.progress.steps_per_epoch;
    match &state.stop_reason {
        Some(reason) if stopped => Some(Ended::Stopped(reason.clone())),
        _ => (ended && state.progress.epoch_num >= state.progress.max_epoch).then_some(Ended::Finished),
    }
}

/// Returns the directory of a run and of its neighbours, which is the one to look at.
fn runs_directory(run: &Path) -> &Path {
    run.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(run)
}

/// Locks the log directory, and opens its log file.
fn open_directory(dir: &Path) -> Result<RunLock> {
    let lock = RunLock::acquire(dir)?;
    logger::set_directory(dir)?;
    Ok(lock)
}

/// Moves the checkpoints of an earlier run aside.
fn move_checkpoints_aside(dir: &Path) -> Result<()> {
    let checkpoints = dir.join("checkpoints");
    let failed = |e: std::io::Error| {
        Error::new(ErrorKind::Io, format!("cannot move {} aside: {e}", checkpoints.display()))
    };
    // If this is unknown, the run would resume what the user wants to leave behind.
    if checkpoints.try_exists().map_err(failed)? {
        let aside = (1..).map(|i| dir.join(format!("checkpoints.{i}"))).find(|p| !p.exists());
        let aside = aside.unwrap_or_else(|| dir.join("checkpoints.old"));
        std::fs::rename(&checkpoints, &aside).map_err(failed)?;
        log::info!("starting a new run; the earlier checkpoints are in {}", aside.display());
    }
    Ok(())
}

/// The result of training.
pub struct Trained {
    /// How training ended.
    pub ended: Ended,
    /// The session, with the trained variables.
    pub session: Session,
    /// The statistics.
    pub monitors: Monitors,
    /// The tower function, for predictors.
    pub tower: Option<TowerFunc>,
    logdir: Option<PathBuf>,
}

impl Trained {
    /// Builds the trained model in inference mode, as a predictor from the named inputs to the
    /// named outputs.
    pub fn get_predictor(self, inputs: &[&str], outputs: &[&str]) -> Result<OfflinePredictor> {
        let tower = self.tower.ok_or_else(no_tower_func)?;
        let config = PredictConfig::from_tower(tower.rebuilt(), outputs.iter().copied())
            .inputs(inputs.iter().copied());
        let predictor = OfflinePredictor::new(config)?;
        for v in predictor.session().graph().variables() {
            predictor.session().write(&v.name, &self.session.read(&v.name)?)?;
        }
        Ok(predictor)
    }

    /// Returns the log directory of the run, if it has one.
    pub fn logdir(&self) -> Option<&Path> {
        self.logdir.as_deref()
    }

    /// Replaces the value of every variable that has a moving average (see
    /// [`Ema`](crate::optim::Ema)) by the average, for predictors and exports:
    /// `trained.on_ema()?.get_predictor(..)`. Returns an error if there is none.
    pub fn on_ema(self) -> Result<Trained> {
        let variables = self.session.graph().variables();
        let mut count = 0;
        for v in variables {
            let average = format!("{EMA_PREFIX}{}", v.name);
            if variables.iter().any(|other| other.name == average) {
                self.session.write(&v.name, &self.session.read(&average)?)?;
                count += 1;
            }
        }
        match count {
            0 => Err(Error::new(ErrorKind::Graph, "no variable of the run has a moving average")
                .note("train with Ema::new(optimizer, decay), or remove on_ema()")),
            _ => Ok(self),
        }
    }
}

fn no_tower_func() -> Error {
    let why = "a predictor needs the tower function of the model, but this trainer has none";
    Error::new(ErrorKind::Graph, why)
}
