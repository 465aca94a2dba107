//! Trainers for models with one cost.

use super::{Iteration, RunTrainOp, TowerTrainer, TrainConfig, Trained, Trainer};
use crate::distributed::ProcessGroup;
use crate::graph::{Fetch, Graph, LossScale, Op, Precision, Tensor, TensorSpec};
use crate::input::{FeedInput, InputSource, QueueInput};
use crate::optim::Optimizer;
use crate::runtime::Device;
use crate::tower::{TowerContext, TowerFunc};
use std::sync::Arc;
use tensorpack_dataflow::Flow;
use tensorpack_tensor::{Error, Result};

/// How a model with one cost is distributed over devices: placement, averaging of gradients,
/// updates.
pub trait Strategy {
    /// Builds the training towers and returns the operation of one step.
    fn build(&self, setup: &mut Setup<'_>) -> Result<Op>;

    /// Returns the iteration that runs the built operation. Defaults to one run per step.
    fn iteration(&self, step: Fetch) -> Box<dyn Iteration> {
        Box::new(RunTrainOp(step))
    }

    /// Returns the number of towers. Defaults to 1.
    fn towers(&self) -> usize {
        1
    }

    /// Returns the processes that train together, once [`build`](Strategy::build) has joined them.
    /// Defaults to `None`: this process alone.
    fn process_group(&self) -> Option<Arc<ProcessGroup>> {
        None
    }

    /// Returns the device of the session, if the trainer sets it.
    fn device(&self) -> Option<Device> {
        None
    }

    /// Returns the input source for a dataflow. Defaults to [`QueueInput`], which prefetches in a
    /// separate thread.
    #[doc(alias = "apply_default_prefetch")]
    fn default_input(&self, dataflow: Flow) -> Box<dyn InputSource> {
        QueueInput::new(dataflow).boxed()
    }

    /// Checks that this trainer supports the input.
    fn check_input(&self, input: &dyn InputSource) -> Result<()> {
        let _ = input;
        Ok(())
    }

    /// Builds the graph of a trainer: see [`SingleCostTrainer::setup_graph`].
    fn setup_graph(
        self,
        signature: Vec<TensorSpec>,
        input: Box<dyn InputSource>,
        get_cost: impl Fn(&TowerContext, &[Tensor]) -> Tensor + 'static,
        get_optimizer: impl Fn(&TowerContext) -> Box<dyn Optimizer>,
    ) -> Result<TowerTrainer>
    where
        Self: Sized + 'static,
    {
        SingleCostTrainer::from(self).setup_graph(signature, input, get_cost, get_optimizer)
    }

    /// Combines the trainer with a configuration: `SimpleTrainer::from_config(config).train()`.
    fn from_config(config: TrainConfig) -> Configured
    where
        Self: Sized + Default + 'static,
    {
        Configured { config, trainer: Self::default().into() }
    }
}

/// A trainer with its configuration.
pub struct Configured {
    pub(super) config: TrainConfig,
    pub(super) trainer: SingleCostTrainer,
}

impl Configured {
    /// Trains the model.
    pub fn train(self) -> Result<Trained> {
        super::launch_train_with_config(self.config, self.trainer)
    }
}

/// The parts from which a [`Strategy`] builds a step.
pub struct Setup<'a> {
    graph: &'a Graph,
    tower: &'a mut TowerFunc,
    input: &'a mut dyn InputSource,
    optimizer: &'a dyn Fn(&TowerContext) -> Box<dyn Optimizer>,
}

impl Setup<'_> {
    /// Returns the graph.
    pub fn graph(&self) -> &Graph {
        self.graph
    }

    /// Builds the tower of this context on its own inputs and returns its cost.
    #[track_caller]
    pub fn tower(&mut self, t: &TowerContext) -> Result<Tensor> {
        let inputs = self.input.tensors(t, self.tower.signature())?;
        let handle = self.tower.train(t, &inputs)?;
        let cost = handle.outputs().first().cloned();
        let cost = cost.ok_or_else(|| Error::argument("the tower function returned no cost"))?;
        if cost.rank() == 0 {
            return Ok(cost);
        }
        let why = format!("the cost {} has shape {}, not a scalar", cost.name(), cost.shape());
        let e = Error::shape(why).note("take its mean");
        Err(match cost.site() {
            Some(site) => e.at(site),
            None => e,
        })
    }

    /// Returns the inputs of the tower that was built last.
    pub fn inputs(&self) -> Vec<Tensor> {
        let last = self.tower.towers().training().pop();
        last.map_or_else(Vec::new, |tower| tower.inputs().iter().map(|(_, x)| x.clone()).collect())
    }

    /// Creates the optimizer. Call this once.
    pub fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer> {
        (self.optimizer)(t)
    }
}

/// A trainer that minimizes one cost. It trains nothing before [`setup_graph`] has built the graph
/// and returned a [`TowerTrainer`]:
///
/// ```
/// # use tensorpack::prelude::*;
/// # use tensorpack::train::{RunConfig, SingleCostTrainer, TowerTrainer, Trained};
/// fn train(trainer: TowerTrainer) -> Result<Trained> {
///     trainer.train(RunConfig::new())
/// }
/// ```
///
/// ```compile_fail,E0599
/// # use tensorpack::prelude::*;
/// # use tensorpack::train::{RunConfig, SingleCostTrainer, TowerTrainer, Trained};
/// fn train(trainer: SingleCostTrainer) -> Result<Trained> {
///     trainer.train(RunConfig::new())
/// }
/// ```
///
/// [`setup_graph`]: SingleCostTrainer::setup_graph
pub struct SingleCostTrainer {
    strategy: Box<dyn Strategy>,
    precision: Precision,
    loss_scale: LossScale,
}

impl<S: Strategy + 'static> From<S> for SingleCostTrainer {
    fn from(strategy: S) -> SingleCostTrainer {
        SingleCostTrainer {
            strategy: Box::new(strategy),
            precision: Precision::default(),
            loss_scale: LossScale::default(),
        }
    }
}

impl SingleCostTrainer {
    /// Returns the strategy.
    pub fn strategy(&self) -> &dyn Strategy {
        &*self.strategy
    }

    /// Sets the precision in which the towers compute. Defaults to [`Precision::Tf32`].
    #[must_use]
    pub fn precision(self, precision: Precision) -> SingleCostTrainer {
        SingleCostTrainer { precision, ..self }
    }

    /// Sets how the cost is scaled in f16.
    #[must_use]
    pub fn loss_scale(self, loss_scale: LossScale) -> SingleCostTrainer {
        SingleCostTrainer { loss_scale, ..self }
    }

    /// Builds the graph: the towers of the tower function `get_cost`, which returns the cost, on
    /// the tensors of `input`, and the updates of the optimizer.
    pub fn setup_graph(
        self,
        signature: Vec<TensorSpec>,
        mut input: Box<dyn InputSource>,
        get_cost: impl Fn(&TowerContext, &[Tensor]) -> Tensor + 'static,
        get_optimizer: impl Fn(&TowerContext) -> Box<dyn Optimizer>,
    ) -> Result<TowerTrainer> {
        let SingleCostTrainer { strategy, precision, loss_scale } = self;
        strategy.check_input(&*input)?;
        let graph = Graph::new();
        graph.set_precision(precision);
        graph.set_loss_scale(loss_scale);
        let mut tower = TowerFunc::new(signature, move |t, inputs| vec![get_cost(t, inputs)])?;
        let mut setup =
            Setup { graph: &graph, tower: &mut tower, input: &mut *input, optimizer: &get_optimizer };
        let step = Fetch::from(&strategy.build(&mut setup)?);
        let iteration = strategy.iteration(step.clone());
        let trainer = Trainer::new(&graph)
            .input(input)
            .on_device(strategy.device())
            .with_group(strategy.process_group());
        Ok(TowerTrainer::new(trainer, tower, step, iteration, strategy.towers()))
    }
}

/// Returns an input source that reads the dataflow without prefetching.
pub(super) fn feed(dataflow: Flow) -> Box<dyn InputSource> {
    FeedInput::new(dataflow).boxed()
}
