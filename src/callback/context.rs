//! What callbacks can see and do, at each stage of training.

use crate::graph::{Fetch, Graph, Op, Tensor, VariableId, VariableInfo, split_tower};
use crate::monitor::{Moment, Monitors};
use crate::runtime::{Cadence, Declared, HookedRun, Interrupt, Session};
use crate::tower::{TowerContext, TowerFunc, TowerHandle, Towers};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// How far training is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The epoch, from 1; before the first, one less than the first.
    pub epoch_num: u64,
    /// The step within the epoch, from 0; -1 before the first.
    pub local_step: i64,
    /// Steps finished in all.
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

/// A checkpoint that was asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct SaveRequest {
    pub(crate) tags: Vec<String>,
}

/// What training consists of while it runs, apart from the callbacks and the input.
pub(crate) struct Run {
    pub(crate) session: Session,
    pub(crate) monitors: Monitors,
    pub(crate) progress: Progress,
    pub(crate) logdir: Option<PathBuf>,
    pub(crate) interrupt: Interrupt,
    pub(crate) save: Option<SaveRequest>,
    pub(crate) stop: Option<String>,
    pub(crate) resumed: bool,
    pub(crate) seed: u64,
}

/// While the graph is built.
pub struct GraphCx<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) tower: Option<&'a mut TowerFunc>,
    pub(crate) declared: &'a mut Vec<(Fetch, Cadence)>,
    pub(crate) along: &'a mut Vec<Fetch>,
    pub(crate) logdir: Option<&'a Path>,
}

/// A value that is fetched with runs, see [`GraphCx::fetch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetched(pub(crate) usize);

impl GraphCx<'_> {
    /// The graph, to add to.
    pub fn graph(&self) -> &Graph {
        self.graph
    }

    /// The directory of this run, if it has one.
    pub fn logdir(&self) -> Option<&Path> {
        self.logdir
    }

    /// The directory of this run; an error that says who needs it if there is none.
    pub fn need_logdir(&self, who: &str) -> Result<&Path> {
        let why = || Error::argument(format!("{who} needs a log directory: give one with logdir(..)"));
        self.logdir.ok_or_else(why)
    }

    /// Fetches a tensor with the first hooked run of the steps `cadence` says; see [`HookCx::value`].
    pub fn fetch(&mut self, tensor: &Tensor, cadence: Cadence) -> Fetched {
        self.declared.push((Fetch::from(tensor), cadence));
        Fetched(self.declared.len() - 1)
    }

    /// Runs an operation along with the first hooked run of every step.
    pub fn run_along(&mut self, op: &Op) {
        self.along.push(Fetch::from(op));
    }

    /// The tensor of this name, or of this name in the first training tower.
    #[doc(alias = "get_tensors_maybe_in_tower")]
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let first = self.tower.as_ref().and_then(|t| t.towers().training().first().copied().cloned());
        let in_graph = self.graph.tensor(name);
        match first {
            Some(tower) => in_graph.or_else(|_| tower.get_tensor(name)),
            None => in_graph,
        }
    }

    /// The tensors of a summary collection, by the names monitors know them under: those without the tower's.
    pub(super) fn summaries(&self, collection: &str) -> Vec<(String, Tensor)> {
        let tensors =
            self.graph.collection(collection).tensors.into_iter().map(|id| self.graph.tensor_at(id));
        tensors.map(|t| (split_tower(&t.name()).1.to_string(), t)).collect()
    }

    /// All variables made so far.
    pub(super) fn variables(&self) -> impl Iterator<Item = VariableInfo> {
        (0..).map_while(|i| self.graph.variable_info(VariableId(i)))
    }

    /// The replicas built so far; none if the graph was not built by a tower function.
    pub fn towers(&self) -> Option<Towers<'_>> {
        self.tower.as_ref().map(|t| t.towers())
    }

    /// One more replica of the model, for inference, under `scope`: its inputs are fed as `scope/NAME`.
    pub fn inference_tower(&mut self, scope: &str) -> Result<TowerHandle> {
        let t = TowerContext::inference(self.graph);
        self.tower_func(scope)?.infer_in(&t, scope)
    }

    /// The function that built the model, for replicas of other kinds: several that run at the same time, or one that
    /// reads averages ([`TowerContext::averaged`]). An error that says who needs it if there is none.
    pub fn tower_func(&mut self, who: &str) -> Result<&mut TowerFunc> {
        self.tower.as_deref_mut().ok_or_else(|| {
            let why = "needs a model made by a tower function, which this trainer does not have";
            Error::new(ErrorKind::Graph, format!("{who} {why}"))
        })
    }
}

/// Around a hooked run. There is neither session nor graph in reach: nothing can be run or built here by mistake.
pub struct HookCx<'a> {
    pub(crate) run: &'a mut Run,
    /// What ran, once it did.
    pub(crate) hooked: Option<(&'a HookedRun, &'a [Declared])>,
}

impl HookCx<'_> {
    /// What this run fetched; `None` before the run, where it was not due, and in further runs of a step.
    pub fn value(&self, fetched: Fetched) -> Option<&HostTensor> {
        let (run, declared) = self.hooked?;
        run.value(*declared.get(fetched.0)?)
    }

    /// The same as a number, for scalars.
    pub fn scalar(&self, fetched: Fetched) -> Option<f64> {
        self.value(fetched).and_then(|v| v.to_scalar().ok())
    }
}

/// What a run brought for [`Callback::collect`](super::Callback::collect), with where training was when it ran.
pub struct Collected<'a> {
    pub(crate) progress: Progress,
    /// What ran; nothing in tests of single callbacks.
    pub(crate) hooked: Option<(&'a HookedRun, &'a [Declared])>,
}

impl Collected<'_> {
    /// What the run fetched; `None` in further runs of a step.
    pub fn value(&self, fetched: Fetched) -> Option<&HostTensor> {
        let (run, declared) = self.hooked?;
        run.collected(*declared.get(fetched.0)?)
    }

    /// The same as a number, for scalars.
    pub fn scalar(&self, fetched: Fetched) -> Option<f64> {
        self.value(fetched).and_then(|v| v.to_scalar().ok())
    }
}

impl Deref for Collected<'_> {
    type Target = Progress;
    fn deref(&self) -> &Progress {
        &self.progress
    }
}

/// Between runs.
pub struct TrainCx<'a> {
    pub(crate) run: &'a mut Run,
}

impl TrainCx<'_> {
    /// The session, for plain runs: nothing is hooked, no step is counted, no training input is drawn.
    pub fn session(&self) -> &Session {
        &self.run.session
    }

    /// The statistics so far.
    pub fn monitors(&self) -> &Monitors {
        &self.run.monitors
    }

    /// Gives the monitors a number that depends on the clock: it is not part of what a resumed run repeats.
    pub fn put_timing(&mut self, name: &str, value: f64) {
        self.run.monitors.put_timing(name, value);
    }

    /// What the run's randomness is drawn from.
    pub fn seed(&self) -> u64 {
        self.run.seed
    }

    /// Whether this run goes on from a checkpoint. Then what `before_train` and `before_epoch` would do to variables
    /// or statistics was done already.
    pub fn resumed(&self) -> bool {
        self.run.resumed
    }

    /// Asks for a checkpoint, which is written when all callbacks and monitors of this moment are done.
    pub fn request_save(&mut self) {
        self.run.save.get_or_insert_default();
    }

    /// Names the checkpoint of this moment, if there is one: it is kept until another gets the name.
    pub fn tag_save(&mut self, tag: impl Into<String>) {
        self.run.save.get_or_insert_default().tags.push(tag.into());
    }

    /// An error if a signal asked the process to end. What takes long looks at this now and then, and returns it.
    pub fn check_interrupt(&self) -> Result<()> {
        self.run.interrupt.check()
    }

    /// The flag behind [`TrainCx::check_interrupt`].
    pub fn interrupt(&self) -> Interrupt {
        self.run.interrupt.clone()
    }
}

/// What can be done around a run as well as between runs.
macro_rules! during_training {
    ($($cx:ident),*) => {$(
        impl $cx<'_> {
            /// Gives the monitors a number.
            pub fn put_scalar(&mut self, name: &str, value: f64) {
                self.run.monitors.put_scalar(name, value);
            }

            /// Gives the monitors images: `[height, width, channels]`, or several with one more dim, in 0..255.
            pub fn put_image(&mut self, name: &str, image: &HostTensor) -> Result<()> {
                self.run.monitors.put_image(name, image)
            }

            /// Gives the monitors the distribution of a tensor's elements.
            pub fn put_histogram(&mut self, name: &str, values: &HostTensor) {
                self.run.monitors.put_histogram(name, values);
            }

            /// The directory of this run, if it has one.
            pub fn logdir(&self) -> Option<&Path> {
                self.run.logdir.as_deref()
            }

            /// Ends training at the end of this moment, for this reason. That is no error.
            #[doc(alias = "StopTraining")]
            pub fn stop(&mut self, reason: impl Into<String>) {
                self.run.stop.get_or_insert(reason.into());
            }
        }

        impl Deref for $cx<'_> {
            type Target = Progress;
            fn deref(&self) -> &Progress {
                &self.run.progress
            }
        }
    )*};
}
during_training!(HookCx, TrainCx);

impl Run {
    /// Tells the monitors the time: the step that runs or, between steps, ran last.
    pub(crate) fn set_moment(&mut self, global_step: u64) {
        self.monitors.set_moment(Moment { epoch_num: self.progress.epoch_num, global_step });
    }
}

#[cfg(test)]
impl Run {
    /// A run of nothing, before its first epoch, for tests of single callbacks.
    pub(super) fn of_nothing() -> Run {
        let graph = Graph::new().freeze().expect("an empty graph is whole");
        Run {
            session: Session::new(graph).expect("an empty graph needs nothing"),
            monitors: Monitors::new(),
            progress: Progress {
                epoch_num: 0,
                local_step: -1,
                global_step: 0,
                steps_per_epoch: 1,
                starting_epoch: 1,
                max_epoch: 100,
            },
            logdir: None,
            interrupt: Interrupt::default(),
            save: None,
            stop: None,
            resumed: false,
            seed: 0,
        }
    }

    /// Goes to the end of the epoch of this number, of one step.
    pub(super) fn at_epoch(&mut self, epoch: u64) -> TrainCx<'_> {
        self.progress.epoch_num = epoch;
        self.progress.global_step = epoch;
        self.set_moment(epoch);
        TrainCx { run: self }
    }
}
