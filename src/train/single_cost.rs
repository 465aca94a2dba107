//! Trainers of models with one cost.

use super::{Iteration, RunTrainOp, StepCx, TrainConfig, Trained, Trainer};
use crate::graph::{Fetch, Graph, Op, Tensor, TensorSpec};
use crate::input::{FeedInput, InputSource, QueueInput};
use crate::optim::Optimizer;
use crate::runtime::Device;
use crate::tower::{TowerContext, TowerFunc, Towers};
use tensorpack_dataflow::Flow;
use tensorpack_tensor::{Error, Result};

/// How a model with one cost is laid out over devices: placement, averaging of gradients, updates.
pub trait Strategy {
    /// Builds the training towers on inputs of `input`, and the operation that is one step.
    fn build(&self, setup: &mut Setup<'_>) -> Result<Op>;

    /// What a step does, of the operation that was built: to run it, unless said.
    fn iteration(&self, step: Fetch) -> Box<dyn Iteration> {
        Box::new(RunTrainOp(step))
    }

    /// How many towers there are.
    fn towers(&self) -> usize {
        1
    }

    /// What the session runs on, if the trainer says so.
    fn device(&self) -> Option<Device> {
        None
    }

    /// How a dataflow is read if nothing else is said: ahead of the model, in a thread of its own.
    fn default_input(&self, dataflow: Flow) -> Box<dyn InputSource> {
        QueueInput::new(dataflow).boxed()
    }

    /// What this kind of trainer asks of its input.
    fn check_input(&self, input: &dyn InputSource) -> Result<()> {
        let _ = input;
        Ok(())
    }

    /// The trainer of a configuration, for `SimpleTrainer::from_config(config).train()`.
    fn from_config(config: TrainConfig) -> Configured
    where
        Self: Sized + Default + 'static,
    {
        Configured { config, trainer: Self::default().into() }
    }
}

/// A trainer with all it needs.
pub struct Configured {
    pub(super) config: TrainConfig,
    pub(super) trainer: SingleCostTrainer,
}

impl Configured {
    /// Trains.
    pub fn train(self) -> Result<Trained> {
        super::launch_train_with_config(self.config, self.trainer)
    }
}

/// What a [`Strategy`] builds from.
pub struct Setup<'a> {
    graph: &'a Graph,
    tower: &'a mut TowerFunc,
    input: &'a mut dyn InputSource,
    optimizer: &'a dyn Fn(&TowerContext) -> Box<dyn Optimizer>,
}

impl Setup<'_> {
    /// The graph.
    pub fn graph(&self) -> &Graph {
        self.graph
    }

    /// Builds the tower of this context on inputs of its own; returns its cost.
    #[track_caller]
    pub fn tower(&mut self, t: &TowerContext) -> Result<Tensor> {
        let inputs = self.input.tensors(t, self.tower.signature())?;
        let handle = self.tower.train(t, &inputs)?;
        let cost = handle.outputs().first().cloned();
        let cost = cost.ok_or_else(|| Error::argument("the tower function returned no cost"))?;
        match cost.rank() {
            0 => Ok(cost),
            _ => Err(Error::shape(format!("the cost {} is {}, not a scalar", cost.name(), cost.shape()))
                .note("take its mean")),
        }
    }

    /// The inputs of the tower that was built last.
    pub fn inputs(&self) -> Vec<Tensor> {
        let last = self.tower.towers().training().pop();
        last.map_or_else(Vec::new, |tower| tower.inputs().iter().map(|(_, x)| x.clone()).collect())
    }

    /// The optimizer. To be asked for once.
    pub fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer> {
        (self.optimizer)(t)
    }
}

/// A trainer that minimises one cost.
pub struct SingleCostTrainer {
    strategy: Box<dyn Strategy>,
    graph: Graph,
    built: Option<(Trainer, Fetch)>,
}

impl<S: Strategy + 'static> From<S> for SingleCostTrainer {
    fn from(strategy: S) -> SingleCostTrainer {
        SingleCostTrainer { strategy: Box::new(strategy), graph: Graph::new(), built: None }
    }
}

impl SingleCostTrainer {
    /// The strategy.
    pub fn strategy(&self) -> &dyn Strategy {
        &*self.strategy
    }

    /// Builds the graph: the towers of `get_cost`, a tower function that returns the cost, on inputs of `input`, and the
    /// updates of the optimizer.
    pub fn setup_graph(
        &mut self,
        signature: Vec<TensorSpec>,
        mut input: Box<dyn InputSource>,
        get_cost: impl Fn(&TowerContext, &[Tensor]) -> Tensor + 'static,
        get_optimizer: impl Fn(&TowerContext) -> Box<dyn Optimizer>,
    ) -> Result<()> {
        if self.built.is_some() {
            return Err(Error::argument("setup_graph was called before, and builds the graph once"));
        }
        self.strategy.check_input(&*input)?;
        let mut tower = TowerFunc::new(signature, move |t, inputs| vec![get_cost(t, inputs)])?;
        let mut setup =
            Setup { graph: &self.graph, tower: &mut tower, input: &mut *input, optimizer: &get_optimizer };
        let step = self.strategy.build(&mut setup)?;
        let fetch = Fetch::from(&step);
        self.built = Some((Trainer::new(&self.graph).tower_func(tower).input(input), fetch));
        Ok(())
    }

    /// The towers, once they are built.
    pub fn towers(&self) -> Option<Towers<'_>> {
        self.built.as_ref().and_then(|(trainer, _)| trainer.towers())
    }

    /// Trains with the default callbacks and monitors added, unless the configuration has others.
    pub fn train_with_defaults(self, config: TrainConfig) -> Result<Trained> {
        let config = self.on_device(config);
        let (trainer, mut iteration) = self.ready()?;
        trainer.train_with_defaults(config, move |cx: &mut StepCx<'_>| iteration.run_step(cx))
    }

    /// Trains with the callbacks and monitors of the configuration alone.
    pub fn train(self, config: TrainConfig) -> Result<Trained> {
        let config = self.on_device(config);
        let (trainer, mut iteration) = self.ready()?;
        trainer.train(config, move |cx: &mut StepCx<'_>| iteration.run_step(cx))
    }

    fn ready(mut self) -> Result<(Trainer, Box<dyn Iteration>)> {
        let built = self.built.take().ok_or_else(no_graph)?;
        Ok((built.0, self.strategy.iteration(built.1)))
    }

    /// The configuration with the device that the trainer names.
    fn on_device(&self, mut config: TrainConfig) -> TrainConfig {
        config.session.device = self.strategy.device().unwrap_or(config.session.device);
        config
    }

    /// The trainer and its step, to run something else around it.
    pub fn built(self) -> Result<(Trainer, Fetch)> {
        self.built.ok_or_else(no_graph)
    }
}

fn no_graph() -> Error {
    Error::argument("there is no graph yet: call setup_graph first")
}

/// A feed of the dataflow, read while the model waits.
pub(super) fn feed(dataflow: Flow) -> Box<dyn InputSource> {
    FeedInput::new(dataflow).boxed()
}
