//! The training step of advantage actor-critic: play a few steps of all games, and learn from them.

use super::games::{Evaluation, Rules};
use super::model;
use super::rollout::{Rollout, RolloutInput};
use std::cell::RefCell;
use std::rc::Rc;
use tensorpack::graph::Fetch;
use tensorpack::input::InputSource;
use tensorpack::prelude::*;
use tensorpack::tower::TowerFunc;
use tensorpack::train::{Iteration, StepCx, Trained, Trainer};

/// The settings of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) rules: Rules,
    /// Games that are played at the same time.
    pub(crate) games: usize,
    /// Steps of every game per training step.
    pub(crate) rollout: usize,
    pub(crate) learning_rate: f64,
    /// Training steps in the whole run, over which the learning rate falls to 0.
    pub(crate) steps: u64,
    /// Episodes of an evaluation.
    pub(crate) evaluation: u64,
    /// The mean score of an evaluation at which training stops.
    pub(crate) solved_at: f64,
    pub(crate) seed: u64,
}

/// The step of advantage actor-critic.
struct PlayAndLearn {
    /// Steps of every game per training step.
    length: usize,
    rollout: Rc<RefCell<Rollout>>,
    train: Fetch,
    /// The policy, in the inference tower `actor`.
    logits: Fetch,
}

impl Iteration for PlayAndLearn {
    fn run_step(&mut self, cx: &mut StepCx<'_>) -> Result<()> {
        for _ in 0..self.length {
            let observations = self.rollout.borrow().observations()?;
            let logits = cx.run_plain(&[&self.logits], &[("actor/observation", &observations)])?;
            self.rollout.borrow_mut().play(&logits[0])?;
        }
        cx.run(&self.train).map(|_| ())
    }
}

/// Trains a player with these settings.
pub(crate) fn train(settings: Settings, config: RunConfig) -> Result<Trained> {
    let Settings { rules, games, seed, .. } = settings;
    let rollout = Rc::new(RefCell::new(Rollout::new(rules, games, seed)?));
    let mut input = RolloutInput::new(rollout.clone());

    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    let mut tower = TowerFunc::new(model::signature(rules), move |t, inputs| model::build(t, rules, inputs))?;
    let inputs = input.tensors(&t, tower.signature())?;
    let cost = tower.train(&t, &inputs)?.outputs()[0].clone();
    let rate = Schedule::polynomial(settings.learning_rate, 0.0, settings.steps, 1.0);
    let optimizer = Adam::new(rate).process(GlobalNormClip::new(0.5));
    let train = apply_gradients(&optimizer, &graph, &compute_gradients(&cost)?)?;
    let logits = Fetch::from(&tower.infer(&graph, "actor")?.get_tensor("logits")?);

    let evaluation = Evaluation {
        rules,
        episodes: settings.evaluation,
        solved_at: settings.solved_at,
        action_values: logits.clone(),
    };
    let config = config.callback(ModelSaver::new()).callback(evaluation).seed(seed);
    let step = PlayAndLearn { length: settings.rollout, rollout, train: Fetch::from(&train), logits };
    Trainer::new(&graph).with_tower_func(tower).input(input.boxed()).train_with_defaults(config, step)
}
