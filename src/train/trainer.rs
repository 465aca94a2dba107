//! The trainer: from a graph to a run.

use super::live::Live;
use super::main_loop::{Ended, MainLoop};
use super::position::Position;
use super::signals::{self, Signals};
use super::step::{HookedOps, Iteration, NanCount, Opening};
use super::{TrainConfig, default_callbacks, default_monitors};
use crate::callback::{Callback, Callbacks, GraphCx, Progress, Run};
use crate::graph::{FLUSH_OPS, Fetch, Graph};
use crate::input::InputSource;
use crate::io::{CheckpointStore, RealDisk, RunLock};
use crate::logger;
use crate::monitor::{Moment, Monitors};
use crate::nn::describe_trainables;
use crate::predict::{OfflinePredictor, PredictConfig};
use crate::runtime::{Interrupt, Session};
use crate::tower::{TowerFunc, Towers};
use serde_json::{Map, Value, json};
use std::path::Path;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Training of any kind: a graph, callbacks and monitors, a session, and a loop of epochs and steps. What a step is,
/// an [`Iteration`] says. It assumes neither batches nor gradients nor costs.
///
/// Build the graph, make the trainer of it, then [`train`](Trainer::train). Trainers for models with one cost do the
/// first two: see [`SingleCostTrainer`](super::SingleCostTrainer).
pub struct Trainer {
    graph: Graph,
    tower: Option<TowerFunc>,
    input: Option<Box<dyn InputSource>>,
    callbacks: Callbacks,
}

impl Trainer {
    /// Of a graph that has been built, or will be before training begins.
    pub fn new(graph: &Graph) -> Trainer {
        Trainer { graph: graph.clone(), tower: None, input: None, callbacks: Callbacks::default() }
    }

    /// With the tower function that built the model: inference during training and predictors need it.
    #[must_use]
    pub fn tower_func(self, tower: TowerFunc) -> Trainer {
        Trainer { tower: Some(tower), ..self }
    }

    /// With the source of what steps are fed with.
    #[must_use]
    pub fn input(self, input: Box<dyn InputSource>) -> Trainer {
        Trainer { input: Some(input), ..self }
    }

    /// The graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The replicas the tower function built, if there is one.
    pub fn towers(&self) -> Option<Towers<'_>> {
        self.tower.as_ref().map(TowerFunc::towers)
    }

    /// Adds a callback of the trainer's own. They come before the user's.
    pub fn register_callback(&mut self, callback: impl Callback + 'static) {
        self.callbacks.push(Box::new(callback));
    }

    /// Trains with the default callbacks and monitors added, unless the configuration has others: sets up callbacks and
    /// monitors, freezes the graph, makes the session or takes up the run that is in the log directory, and runs
    /// the loop. A signal that asked for the end ends the process once everything is saved.
    pub fn train_with_defaults(self, mut config: TrainConfig, iteration: impl Iteration) -> Result<Trained> {
        config.extra_callbacks.get_or_insert_with(default_callbacks);
        config.monitors.get_or_insert_with(|| default_monitors(config.logdir.is_some()));
        self.train(config, iteration)
    }

    /// Trains with the callbacks and monitors of the configuration alone.
    pub fn train(self, config: TrainConfig, mut iteration: impl Iteration) -> Result<Trained> {
        config.check()?;
        config.check_unused()?;
        let interrupt = Interrupt::new();
        let signals = Signals::watch(&interrupt)?;
        let ended = self.run(config, &interrupt, &mut iteration);
        drop(signals);
        let by_signal = match &ended {
            Ok(trained) => matches!(trained.ended, Ended::Interrupted(_)),
            Err(_) => true,
        };
        if let Some(signal) = interrupt.signal().filter(|_| by_signal) {
            if let Err(e) = &ended {
                log::error!("{e}");
            }
            log::logger().flush();
            signals::die_by(signal);
        }
        ended
    }

    fn run(
        mut self,
        mut config: TrainConfig,
        interrupt: &Interrupt,
        iteration: &mut dyn Iteration,
    ) -> Result<Trained> {
        let steps_per_epoch = self.steps_per_epoch(&config)?;
        logger::init();
        let lock = config.logdir.as_deref().map(|dir| open_directory(dir, config.fresh)).transpose()?;
        let ops = self.setup_callbacks(&mut config)?;
        let disk = config.disk.take().unwrap_or_else(|| Box::new(RealDisk));
        let store = lock.as_ref().map(|lock| CheckpointStore::open_on(disk, lock)).transpose()?;
        let store = store.map(|store| store.keep(config.keep));
        let mut live = self.initialize(&mut config, interrupt, steps_per_epoch, ops, store)?;
        let saved = match &live.store {
            Some(store) => store.latest()?,
            None => None,
        };
        if let Some((folder, checkpoint)) = &saved {
            live.restore(checkpoint, &mut self.callbacks)?;
            live.run.progress.epoch_num = live.at.epoch_num;
            live.run.progress.global_step = live.at.global_step;
            live.run.progress.local_step = live.at.steps as i64 - 1;
            log::info!(
                "resuming {} at epoch {}, step {}",
                folder.display(),
                live.at.epoch_num,
                live.at.global_step
            );
            let ended = match live.run.stop.take_if(|_| live.at.ended) {
                Some(reason) => Some(Ended::Stopped(reason)),
                None => (live.at.ended && live.at.epoch_num >= config.max_epoch).then_some(Ended::Finished),
            };
            if let Some(ended) = ended {
                let how = match &ended {
                    Ended::Stopped(reason) => format!("was stopped ({reason})"),
                    _ => "is finished".into(),
                };
                log::info!(
                    "this run {how}: nothing to do. Begin anew with --fresh, or go on with more epochs"
                );
                let mut monitors = Monitors::new();
                monitors.start(None, Some(&checkpoint.state["monitors"]), Moment::default());
                return Ok(Trained { ended, session: live.run.session, monitors, tower: self.tower });
            }
        } else if let Some(init) = &config.session_init {
            init.init(&live.run.session)?;
        }
        let state = saved.as_ref().map(|(_, c)| &c.state);
        let Progress { epoch_num, global_step, .. } = live.run.progress;
        live.run.monitors.start(
            config.logdir.as_deref(),
            state.map(|s| &s["monitors"]),
            Moment { epoch_num, global_step },
        );
        live.run.monitors.put_graph(live.run.session.graph());
        if let Some(input) = &mut self.input {
            live.start_input(input.as_mut(), state.map_or(&Value::Null, |s| &s["input"]))?;
        }
        let counts_in_graph = live.run.session.graph().variables().iter().any(|v| v.name == "global_step");
        let mut main_loop = MainLoop {
            live: &mut live,
            callbacks: &mut self.callbacks,
            input: self.input,
            iteration,
            counts_in_graph,
        };
        let ended = main_loop.run()?;
        let Run { session, monitors, .. } = live.run;
        Ok(Trained { ended, session, monitors, tower: self.tower })
    }

    fn steps_per_epoch(&self, config: &TrainConfig) -> Result<u64> {
        let size = || self.input.as_ref().and_then(|i| i.size());
        config.steps_per_epoch.or_else(size).ok_or_else(|| {
            Error::argument("how many steps an epoch has is not known")
                .note("the data do not say how many batches a pass has: give steps_per_epoch(..)")
        })
    }

    /// Adds the callbacks and lets them build; returns what they declared.
    fn setup_callbacks(&mut self, config: &mut TrainConfig) -> Result<HookedOps> {
        self.graph.first_error()?;
        let extra = config.extra_callbacks.take().unwrap_or_default();
        for callback in config.callbacks.drain(..).chain(extra) {
            self.callbacks.push(callback);
        }
        let (mut declared, mut along) = (Vec::new(), Vec::new());
        self.callbacks.setup_graph(&mut GraphCx {
            graph: &self.graph,
            tower: self.tower.as_mut(),
            declared: &mut declared,
            along: &mut along,
            logdir: config.logdir.as_deref(),
        })?;
        self.graph.first_error()?;
        self.callbacks.check_statistics()?;
        log::info!("{}", describe_trainables(&self.graph));
        Ok(HookedOps::new(declared, along))
    }

    /// Freezes the graph and makes the session.
    fn initialize(
        &self,
        config: &mut TrainConfig,
        interrupt: &Interrupt,
        steps_per_epoch: u64,
        ops: HookedOps,
        store: Option<CheckpointStore>,
    ) -> Result<Live> {
        let flush = self.graph.collection_ops(FLUSH_OPS);
        let flush =
            (!flush.is_empty()).then(|| Fetch::from(&self.graph.group(&flush.iter().collect::<Vec<_>>())));
        let session = Session::with(self.graph.clone().freeze()?, config.session.clone())?;
        session.watch(interrupt)?;
        let progress = Progress {
            epoch_num: config.starting_epoch - 1,
            local_step: -1,
            global_step: 0,
            steps_per_epoch,
            starting_epoch: config.starting_epoch,
            max_epoch: config.max_epoch,
        };
        let seed = config.session.seed;
        let mut monitors = Monitors::new();
        config.monitors.take().into_iter().flatten().for_each(|m| monitors.add_boxed(m));
        let run = Run {
            session,
            monitors,
            progress,
            logdir: config.logdir.clone(),
            interrupt: interrupt.clone(),
            save: None,
            stop: None,
            resumed: false,
            seed,
        };
        let towers = self.towers().map_or(1, |t| t.training().len());
        let settings = json!({
            "seed": seed,
            "towers": towers,
            "steps_per_epoch": steps_per_epoch,
            "max_epoch": config.max_epoch,
            "device": config.session.device.to_string(),
        });
        Ok(Live {
            run,
            ops,
            flush,
            opening: Some(Opening {
                towers,
                apart: 1,
                steps_per_epoch,
                pass: self.input.as_ref().and_then(|i| i.size()),
            }),
            nan: NanCount { policy: config.nan, ..NanCount::default() },
            store,
            at: Position::start(config.starting_epoch),
            settings: settings.as_object().cloned().unwrap_or_else(Map::new),
        })
    }
}

/// Locks the directory of a run; with `fresh`, what an earlier run left is moved aside first.
fn open_directory(dir: &Path, fresh: bool) -> Result<RunLock> {
    let lock = RunLock::acquire(dir)?;
    logger::set_directory(dir)?;
    let checkpoints = dir.join("checkpoints");
    if fresh && checkpoints.exists() {
        let aside = (1..).map(|i| dir.join(format!("checkpoints.{i}"))).find(|p| !p.exists());
        let aside = aside.unwrap_or_else(|| dir.join("checkpoints.old"));
        std::fs::rename(&checkpoints, &aside)
            .map_err(|e| Error::new(ErrorKind::Io, format!("moving {} aside: {e}", checkpoints.display())))?;
        log::info!("beginning anew: the earlier checkpoints are in {}", aside.display());
    }
    Ok(lock)
}

/// What is left when training is over.
pub struct Trained {
    /// How it ended.
    pub ended: Ended,
    /// The session, with the variables as training left them.
    pub session: Session,
    /// The statistics.
    pub monitors: Monitors,
    /// The tower function, for predictors.
    pub tower: Option<TowerFunc>,
}

impl Trained {
    /// The model as training left it, in inference mode: the tensors of these names, given the inputs of those names.
    pub fn get_predictor(self, inputs: &[&str], outputs: &[&str]) -> Result<OfflinePredictor> {
        let tower = self.tower.ok_or_else(|| {
            Error::new(
                ErrorKind::Graph,
                "this model was not made by a tower function: it cannot be built again",
            )
        })?;
        let config =
            PredictConfig::of(tower.rebuilt(), outputs.iter().copied()).inputs(inputs.iter().copied());
        let predictor = OfflinePredictor::new(config)?;
        for v in predictor.session().graph().variables() {
            predictor.session().write(&v.name, &self.session.read(&v.name)?)?;
        }
        Ok(predictor)
    }
}
