//! Trains generator and discriminator on one or several towers, simultaneously or alternately.

use super::GanModelDesc;
use std::rc::Rc;
use tensorpack::graph::Fetch;
use tensorpack::input::InputSource;
use tensorpack::prelude::*;
use tensorpack::tower::{Mode, TowerFunc};
use tensorpack::train::{Iteration, RunTrainOp, StepCx, TrainArgs, Trained, Trainer, average_gradients};

/// A [`Trainer`] of a [`GanModelDesc`], with one operation for each player's update.
pub(crate) struct GanTrainer {
    trainer: Trainer,
    update_d: Op,
    update_g: Op,
}

impl GanTrainer {
    /// Builds the model on the towers and in the precision of the command line. Each tower has its own
    /// batch. Gradients are averaged over the towers; batch normalization is separate in each tower.
    pub(crate) fn new(
        model: impl GanModelDesc + 'static,
        mut input: Box<dyn InputSource>,
        args: &TrainArgs,
    ) -> Result<GanTrainer> {
        let towers = towers(args)?;
        if args.fake {
            // Zeros teach nothing, so there is no result to check after all the steps.
            args.without(&["--assert"])?;
        }
        let graph = Graph::new();
        graph.set_precision(args.precision.unwrap_or_default());
        let model = Rc::new(model);
        let builder = model.clone();
        let mut tower = TowerFunc::new(model.inputs(), move |t, inputs| {
            let losses = builder.build_graph(t, inputs);
            vec![losses.d_loss, losses.g_loss]
        })?;
        let (mut d, mut g) = (Vec::new(), Vec::new());
        for index in 0..towers {
            let t = TowerContext::new(&graph, Mode::Training, index, towers);
            let inputs = input.tensors(&t, tower.signature())?;
            let built = tower.train(&t, &inputs)?;
            let losses = built.outputs();
            d.push((t.clone(), compute_gradients_of(&losses[0], "discrim/.*")?));
            g.push((t, compute_gradients_of(&losses[1], "gen/.*")?));
        }
        let (d, g) = (average_gradients(d)?, average_gradients(g)?);
        let optimizer = model.optimizer(&TowerContext::new(&graph, Mode::Training, 0, towers));
        let update_d = apply_gradients(&*optimizer, &graph, &d)?;
        let update_g = apply_gradients(&*optimizer, &graph, &g)?;
        let trainer = Trainer::new(&graph).with_tower_func(tower).input(input);
        Ok(GanTrainer { trainer, update_d, update_g })
    }

    /// The graph.
    pub(crate) fn graph(&self) -> &Graph {
        self.trainer.graph()
    }

    /// A step is one operation: both players see the same batch and the same fakes, and both updates
    /// start from the weights at the start of the step.
    #[doc(alias = "GANTrainer")]
    pub(crate) fn train_together(self, config: RunConfig) -> Result<Trained> {
        let both = self.graph().group(&[&self.update_g, &self.update_d]);
        self.trainer.train_with_defaults(config, RunTrainOp(Fetch::from(&both)))
    }

    /// A step runs the discriminator's update, then the generator's, each with its own batch. The
    /// discriminator is updated in every `d_period`-th step, the generator in every `g_period`-th.
    #[doc(alias = "SeparateGANTrainer")]
    pub(crate) fn train_in_turn(self, config: RunConfig, d_period: u64, g_period: u64) -> Result<Trained> {
        if d_period.min(g_period) != 1 {
            return Err(Error::argument(format!("one of the periods {d_period} and {g_period} must be 1"))
                .note("otherwise some steps would update nothing"));
        }
        let turn = |op: &Op, period| Turn { update: Fetch::from(op), period };
        let turns = InTurn([turn(&self.update_d, d_period), turn(&self.update_g, g_period)]);
        self.trainer.train_with_defaults(config, turns)
    }
}

/// One player's update, and how often it is due.
struct Turn {
    update: Fetch,
    period: u64,
}

/// Updates the players one after the other.
struct InTurn([Turn; 2]);

impl Iteration for InTurn {
    fn run_step(&mut self, cx: &mut StepCx<'_>) -> Result<()> {
        // Periods count steps, not runs: with a period of 5 the other player is updated five times as
        // often.
        let step = cx.global_step + 1;
        for turn in self.0.iter().filter(|turn| step.is_multiple_of(turn.period)) {
            cx.run(&turn.update)?;
        }
        Ok(())
    }
}

/// The number of towers given on the command line.
fn towers(args: &TrainArgs) -> Result<usize> {
    match args.trainer.as_deref() {
        None | Some("simple" | "queue" | "sync-ps" | "sync-replicated") => {
            args.trainer().map(|_| args.towers())
        }
        Some(other) => Err(Error::argument(format!("the trainer {other:?} does not support GANs"))
            .note("use simple, queue, sync-ps or sync-replicated")),
    }
}
