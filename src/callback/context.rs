//! The contexts that callbacks get at each stage of training.

use super::train_state::{Progress, TrainState};
use crate::graph::{Fetch, Graph, Op, Tensor, VariableId, VariableInfo, split_tower};
use crate::monitor::Monitors;
use crate::predict::OnlinePredictor;
use crate::runtime::{Cadence, FetchHandle, Interrupt, Session, StepProgram};
use crate::tower::{TowerContext, TowerFunc, TowerHandle, Towers};
use std::ops::Deref;
use std::path::Path;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result, Site};

/// The context of [`Callback::setup_graph`](super::Callback::setup_graph): the graph is still being built.
pub struct GraphCx<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) tower: Option<&'a mut TowerFunc>,
    pub(crate) declared: &'a mut Vec<(Fetch, Cadence)>,
    pub(crate) step_ops: &'a mut Vec<Fetch>,
    pub(crate) logdir: Option<&'a Path>,
    /// The cost that the step minimizes.
    pub(crate) cost: Option<Tensor>,
}

impl GraphCx<'_> {
    /// The graph; add nodes to it freely.
    pub fn graph(&self) -> &Graph {
        self.graph
    }

    /// The log directory of this run, if it has one.
    pub fn logdir(&self) -> Option<&Path> {
        self.logdir
    }

    /// Returns the log directory of this run, or an error that `who` needs one.
    pub fn need_logdir(&self, who: &str) -> Result<&Path> {
        let why = || Error::argument(format!("{who} needs a log directory: give one with logdir(..)"));
        self.logdir.ok_or_else(why)
    }

    /// Fetches a tensor with the first run of each step at which `cadence` is due. Read it with [`RunCx::value`] or, if it is
    /// [`Cadence::Deferred`], with [`CollectCx::value`].
    pub fn fetch(&mut self, tensor: &Tensor, cadence: Cadence) -> FetchHandle {
        let fetch = (Fetch::from(tensor), cadence);
        // Callbacks that fetch the same tensor share its copy on the host.
        let at = self.declared.iter().position(|declared| *declared == fetch).unwrap_or_else(|| {
            self.declared.push(fetch);
            self.declared.len() - 1
        });
        FetchHandle(at)
    }

    /// Returns the cost that every step of the trainer minimizes; of several towers, that of the
    /// first. `None` if the trainer has no single cost, or another iteration replaces its step.
    pub fn cost(&self) -> Option<Tensor> {
        self.cost.clone()
    }

    /// Runs an operation as part of the first run of every step.
    #[doc(alias = "run_along")]
    pub fn run_with_step(&mut self, op: &Op) {
        self.step_ops.push(Fetch::from(op));
    }

    /// The tensor of this name, in the graph or in the first training tower.
    #[doc(alias = "get_tensors_maybe_in_tower")]
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let first = self.tower.as_ref().and_then(|t| t.towers().training().first().copied().cloned());
        match (first, self.graph.find_tensor(name)) {
            (_, Some(tensor)) => Ok(tensor),
            (Some(tower), None) => tower.get_tensor(name),
            (None, None) => self.graph.tensor(name),
        }
    }

    /// The tensors of a summary collection, with the names monitors know them by: without the tower prefix.
    pub(super) fn summaries(&self, collection: &str) -> Vec<(String, Tensor)> {
        let tensors =
            self.graph.collection(collection).tensors.into_iter().map(|id| self.graph.tensor_at(id));
        tensors.map(|t| (split_tower(&t.name()).1.to_string(), t)).collect()
    }

    /// All variables created so far.
    pub(super) fn variables(&self) -> impl Iterator<Item = VariableInfo> {
        (0..).map_while(|i| self.graph.variable_info(VariableId(i)))
    }

    /// The towers built so far; `None` if the graph was not built by a tower function.
    pub fn towers(&self) -> Option<Towers<'_>> {
        self.tower.as_ref().map(|t| t.towers())
    }

    /// Builds one more tower of the model, for inference, under `scope`: its inputs are fed as `scope/NAME`.
    pub fn inference_tower(&mut self, scope: &str) -> Result<TowerHandle> {
        let t = TowerContext::inference(self.graph);
        self.tower_func(scope)?.infer_in(&t, scope)
    }

    /// Builds a predictor from the named inputs to the named outputs of the model, which predicts
    /// with the current weights. Call it in a later hook, with
    /// [`TrainCx::session`](TrainCx::session).
    ///
    /// ```
    /// use tensorpack::callback::{GraphCx, TrainCx};
    /// use tensorpack::predict::OnlinePredictor;
    /// use tensorpack::prelude::*;
    ///
    /// /// Records the probability of the first class for one image.
    /// struct Watch {
    ///     image: HostTensor,
    ///     predictor: Option<OnlinePredictor>,
    /// }
    ///
    /// impl Callback for Watch {
    ///     fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
    ///         self.predictor = Some(g.predictor(&["image"], &["probability"])?);
    ///         Ok(())
    ///     }
    ///
    ///     fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
    ///         let Some(predictor) = &self.predictor else { return Ok(()) };
    ///         let outputs = predictor.predict(cx.session(), &[&self.image])?;
    ///         cx.put_scalar("first_class", outputs[0].to_f64_vec()[0]);
    ///         Ok(())
    ///     }
    /// }
    /// ```
    #[doc(alias = "get_predictor")]
    pub fn predictor(&mut self, inputs: &[&str], outputs: &[&str]) -> Result<OnlinePredictor> {
        let t = TowerContext::inference(self.graph);
        OnlinePredictor::new(self.tower_func("a predictor")?, &t, inputs, outputs)
    }

    /// The function that built the model, for other kinds of towers: several that run in parallel, or one that reads
    /// averaged weights ([`TowerContext::averaged`]). An error that names `who` if there is none.
    pub fn tower_func(&mut self, who: &str) -> Result<&mut TowerFunc> {
        self.tower.as_deref_mut().ok_or_else(|| {
            let why = "needs a model made by a tower function, which this trainer does not have";
            Error::new(ErrorKind::Graph, format!("{who} {why}"))
        })
    }
}

/// The context around a run of a step. It has neither session nor graph, so nothing can be run or built here by mistake.
#[doc(alias = "HookCx")]
pub struct RunCx<'a> {
    pub(crate) state: &'a mut TrainState,
    /// The program that ran; `None` before the run.
    pub(crate) program: Option<&'a StepProgram>,
}

impl RunCx<'_> {
    /// The fetched value; `None` before the run, where it was not due, and in all but the first run of a step.
    pub fn value(&self, handle: FetchHandle) -> Option<&HostTensor> {
        self.program?.value(handle)
    }

    /// The fetched value of a scalar tensor as a number.
    pub fn scalar(&self, handle: FetchHandle) -> Option<f64> {
        self.value(handle).and_then(|v| v.to_scalar().ok())
    }
}

/// The values of a collected run, for [`Callback::collect`](super::Callback::collect), with the progress it belongs to.
#[doc(alias = "Collected")]
pub struct CollectCx<'a> {
    pub(crate) progress: Progress,
    /// The program that ran; `None` in tests of single callbacks.
    pub(crate) program: Option<&'a StepProgram>,
}

impl CollectCx<'_> {
    /// The fetched value; `None` in all but the first run of a step.
    pub fn value(&self, handle: FetchHandle) -> Option<&HostTensor> {
        self.program?.deferred(handle)
    }

    /// The fetched value of a scalar tensor as a number.
    pub fn scalar(&self, handle: FetchHandle) -> Option<f64> {
        self.value(handle).and_then(|v| v.to_scalar().ok())
    }
}

impl Deref for CollectCx<'_> {
    type Target = Progress;
    fn deref(&self) -> &Progress {
        &self.progress
    }
}

/// The context of all hooks between runs.
pub struct TrainCx<'a> {
    pub(crate) state: &'a mut TrainState,
}

impl TrainCx<'_> {
    /// The session, for plain runs: no callback sees them, no step is counted, no training input is drawn.
    pub fn session(&self) -> &Session {
        &self.state.session
    }

    /// The statistics so far.
    pub fn monitors(&self) -> &Monitors {
        &self.state.monitors
    }

    /// Records a number that depends on the clock, and so is not part of what a resumed run reproduces.
    pub fn put_timing(&mut self, name: &str, value: f64) {
        self.state.monitors.put_timing(name, value);
    }

    /// The seed of the run.
    pub fn seed(&self) -> u64 {
        self.state.seed
    }

    /// Whether this run continues from a checkpoint. Then whatever `before_train` and `before_epoch` would do to
    /// variables or statistics is already done.
    pub fn resumed(&self) -> bool {
        self.state.resumed
    }

    /// Requests a checkpoint. It is written once all callbacks have had the current hook; in
    /// `after_epoch` and `trigger_epoch`, once the epoch boundary is complete. A request in
    /// `after_train` is written if training finished or a callback stopped it. After an error or a
    /// signal there may be half a step, so the request is dropped with a warning.
    pub fn request_save(&mut self) {
        self.state.save_request.get_or_insert_default();
    }

    /// Requests a checkpoint and tags it. A tagged checkpoint is kept until another one gets the
    /// tag. A tag that is empty or reserved (`latest`, or one that starts with `.` or `step-`) ends
    /// training with an error.
    #[track_caller]
    pub fn tag_save(&mut self, tag: impl Into<String>) {
        let site = Site::caller();
        self.state.save_request.get_or_insert_default().tags.push((tag.into(), site));
    }

    /// Returns an error if a signal asked the process to end. Long-running work should call this
    /// regularly and return the error.
    pub fn check_interrupt(&self) -> Result<()> {
        self.state.interrupt.check()
    }

    /// The flag behind [`TrainCx::check_interrupt`].
    pub fn interrupt(&self) -> Interrupt {
        self.state.interrupt.clone()
    }
}

/// The methods that [`RunCx`] and [`TrainCx`] share.
macro_rules! during_training {
    ($($cx:ident),*) => {$(
        impl $cx<'_> {
            /// Records a scalar.
            pub fn put_scalar(&mut self, name: &str, value: f64) {
                self.state.monitors.put_scalar(name, value);
            }

            /// Records images: `[height, width, channels]`, or several with one more dim, with values in 0..255.
            pub fn put_image(&mut self, name: &str, image: &HostTensor) -> Result<()> {
                self.state.monitors.put_image(name, image)
            }

            /// Records the distribution of a tensor's elements.
            pub fn put_histogram(&mut self, name: &str, values: &HostTensor) {
                self.state.monitors.put_histogram(name, values);
            }

            /// The log directory of this run, if it has one.
            pub fn logdir(&self) -> Option<&Path> {
                self.state.logdir.as_deref()
            }

            /// Stops training once all callbacks have had this hook, for this reason, and saves a
            /// checkpoint. This is not an error. The run is then finished: started again, the
            /// program does not train on unless `max_epoch` or a
            /// [`stop_criterion`](super::Callback::stop_criterion) has changed.
            #[doc(alias = "StopTraining")]
            pub fn stop(&mut self, reason: impl Into<String>) {
                self.state.stop_reason.get_or_insert(reason.into());
            }
        }

        impl Deref for $cx<'_> {
            type Target = Progress;
            fn deref(&self) -> &Progress {
                &self.state.progress
            }
        }
    )*};
}
during_training!(RunCx, TrainCx);
