//! A trainer whose graph a tower function built.

use super::largest_batch::{self, Input};
use super::{Iteration, RunConfig, Trained, Trainer};
use crate::callback::Callback;
use crate::graph::{Fetch, Graph, Tensor, TensorSpec, UPDATE_OPS};
use crate::predict::OnlinePredictor;
use crate::runtime::{IntoFetch, Session};
use crate::tower::{TowerContext, TowerFunc, Towers};
use tensorpack_tensor::{Error, ErrorKind, Result, Site};

/// A trainer that is ready to train: a tower function built its graph, and its step is known.
/// [`SingleCostTrainer::setup_graph`](super::SingleCostTrainer::setup_graph) returns one.
pub struct TowerTrainer {
    /// Without the tower function.
    trainer: Trainer,
    tower: TowerFunc,
    step: Fetch,
    iteration: Box<dyn Iteration>,
    /// The number of towers that the trainer's own iteration runs. They are more than those in the
    /// graph if several towers run the same part of it.
    run_towers: usize,
    /// Where the iteration was replaced.
    replaced: Option<Site>,
}

impl TowerTrainer {
    pub(super) fn new(
        trainer: Trainer,
        tower: TowerFunc,
        step: Fetch,
        iteration: Box<dyn Iteration>,
        run_towers: usize,
    ) -> TowerTrainer {
        TowerTrainer { trainer, tower, step, iteration, run_towers, replaced: None }
    }

    /// Returns the graph.
    pub fn graph(&self) -> &Graph {
        self.trainer.graph()
    }

    /// Returns the tower function.
    pub fn tower_func(&self) -> &TowerFunc {
        &self.tower
    }

    /// Returns the input signature of the tower function.
    pub fn input_signature(&self) -> &[TensorSpec] {
        self.tower.signature()
    }

    /// Returns the towers that were built.
    pub fn towers(&self) -> Towers<'_> {
        self.tower.towers()
    }

    /// Returns the operation of one step.
    #[doc(alias = "built")]
    pub fn train_op(&self) -> &Fetch {
        &self.step
    }

    /// Builds a predictor from the named inputs to the named outputs of the model, which predicts
    /// with the current weights during training. Callbacks create theirs with
    /// [`GraphCx::predictor`](crate::callback::GraphCx::predictor).
    pub fn get_predictor(&mut self, inputs: &[&str], outputs: &[&str]) -> Result<OnlinePredictor> {
        let t = TowerContext::inference(self.trainer.graph());
        OnlinePredictor::new(&mut self.tower, &t, inputs, outputs)
    }

    /// Adds a callback of the trainer itself. It runs before the user's callbacks.
    pub fn register_callback(&mut self, callback: impl Callback + 'static) {
        self.trainer.register_callback(callback);
    }

    /// Replaces the step. [`train_op`](TowerTrainer::train_op) is the operation that the step ran
    /// before.
    ///
    /// Several towers of an [`AsyncMultiGpuTrainer`](super::AsyncMultiGpuTrainer) run only through
    /// its own iteration, so training them with another one is an error.
    #[must_use]
    #[track_caller]
    #[doc(alias = "run_step")]
    pub fn with_iteration(self, iteration: impl Iteration + 'static) -> TowerTrainer {
        let replaced = Some(Site::caller());
        TowerTrainer { iteration: Box::new(iteration), replaced, ..self }
    }

    /// Returns the cost of the first tower, if every step minimizes it: not if the iteration was
    /// replaced, and not without gradients. Then fetching it would be work, and might take a batch
    /// that the step does not.
    fn cost(&self) -> Option<Tensor> {
        let cost = self.towers().training().first()?.outputs().first().cloned()?;
        (self.replaced.is_none() && cost.is_cost()).then_some(cost)
    }

    /// Returns an error if a replaced iteration would leave towers idle.
    fn check_iteration(&self) -> Result<()> {
        let (all, built) = (self.run_towers, self.towers().training().len());
        match self.replaced {
            Some(site) if all > built => {
                let why = format!("with_iteration would run {built} of the {all} towers of this trainer");
                Err(Error::argument(why).at(site).note(
                    "use a synchronous trainer such as SyncMultiGpuTrainer, whose train op runs all towers, \
                     or one asynchronous tower",
                ))
            }
            _ => Ok(()),
        }
    }

    /// Returns the largest batch of each tower whose step fits into memory. See
    /// [`largest_batch`](super::largest_batch()).
    pub fn largest_batch(self, config: RunConfig) -> Result<usize> {
        if self.run_towers > self.towers().training().len() {
            let why = "the plan of asynchronous towers is not known before they run";
            return Err(Error::new(ErrorKind::Unsupported, why).note("use a synchronous trainer"));
        }
        let mut inputs: Vec<Input> = Vec::new();
        for tower in self.towers().training() {
            for (_, x) in tower.inputs() {
                let sizes: Vec<Option<usize>> = x.shape().iter().map(|d| d.known()).collect();
                if sizes.iter().skip(1).any(Option::is_none) {
                    let why = format!("the input {} has an unknown dim that is not the first", x.name());
                    let e = Error::shape(why).note("declare it with all sizes but the batch");
                    return Err(x.site().map_or(e.clone(), |site| e.at(site)));
                }
                inputs.push((x.name(), x.dtype(), sizes));
            }
        }
        let cost = self.cost().map(|cost| Fetch::from(&cost));
        // By default, steps run the updates of batch normalization's running statistics, too.
        let updates: Vec<Fetch> = self.graph().collection_ops(UPDATE_OPS).iter().map(Fetch::from).collect();
        let fetches = cost.iter().chain([&self.step]).chain(&updates);
        let fetches: Vec<&dyn IntoFetch> = fetches.map(|f| f as _).collect();
        let options = self.trainer.session_options(&config)?;
        let limit = largest_batch::limit(&options);
        let session = Session::with(self.graph().clone().freeze()?, options)?;
        largest_batch::search(&session, &fetches, &inputs, limit)
    }

    /// Trains with the default callbacks and monitors, unless the configuration replaces them. See
    /// [`Trainer::train_with_defaults`].
    pub fn train_with_defaults(self, config: RunConfig) -> Result<Trained> {
        self.train(config.with_defaults())
    }

    /// Trains with only the callbacks and monitors of the configuration.
    pub fn train(self, config: RunConfig) -> Result<Trained> {
        self.check_iteration()?;
        let cost = self.cost();
        let step = self.replaced.is_none().then(|| self.step.clone());
        self.trainer.with_cost(cost).with_step(step).with_tower_func(self.tower).train(config, self.iteration)
    }
}
