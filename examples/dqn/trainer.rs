//! The training step of DQN: play, learn from the replay buffer, and update the target network now
//! and then.

use super::experience::{Experience, ReplayInput};
use super::games::{Evaluation, Rules};
use super::model;
use std::cell::RefCell;
use std::rc::Rc;
use tensorpack::callback::RunOp;
use tensorpack::graph::Fetch;
use tensorpack::input::InputSource;
use tensorpack::prelude::*;
use tensorpack::tower::TowerFunc;
use tensorpack::train::{Iteration, StepCx, Trained, Trainer};

/// The settings of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) rules: Rules,
    /// Games that are played at the same time. Each takes an action in every training step.
    pub(crate) games: usize,
    /// The capacity of the replay buffer, in transitions.
    pub(crate) capacity: usize,
    /// Random transitions before the first training step.
    pub(crate) warm_up: usize,
    pub(crate) batch: usize,
    pub(crate) learning_rate: f64,
    /// Training steps in the whole run, over which the learning rate falls to 0.
    pub(crate) steps: u64,
    /// Training steps until the probability of random actions has fallen from 1 to `epsilon`.
    pub(crate) exploration_steps: u64,
    /// The final probability of random actions.
    pub(crate) epsilon: f64,
    /// Training steps between two updates of the target network.
    pub(crate) target_period: u64,
    /// Episodes of an evaluation.
    pub(crate) evaluation: u64,
    /// The mean score of an evaluation at which training stops.
    pub(crate) solved_at: f64,
    pub(crate) seed: u64,
}

/// The step of DQN.
struct Learn {
    settings: Settings,
    experience: Rc<RefCell<Experience>>,
    /// The update of the online network.
    train: Fetch,
    copy_to_target: Fetch,
    /// The values of all actions, in the inference tower `actor`.
    q_values: Fetch,
}

impl Learn {
    /// Returns the probability of a random action.
    fn epsilon(&self, step: u64) -> f64 {
        let Settings { exploration_steps, epsilon, .. } = self.settings;
        let progress = (step as f64 / exploration_steps.max(1) as f64).min(1.0);
        1.0 + progress * (epsilon - 1.0)
    }
}

impl Iteration for Learn {
    fn run_step(&mut self, cx: &mut StepCx<'_>) -> Result<()> {
        self.experience.borrow_mut().warm_up()?;
        let observations = self.experience.borrow().observations()?;
        let values = cx.run_plain(&[&self.q_values], &[("actor/observation", &observations)])?;
        let epsilon = self.epsilon(cx.global_step);
        self.experience.borrow_mut().play(Some(&values[0]), epsilon)?;
        // The simulators play while the model is trained on earlier transitions.
        let trained = cx.run(&self.train).map(|_| ());
        self.experience.borrow_mut().collect()?;
        trained?;
        if (cx.global_step + 1).is_multiple_of(self.settings.target_period) {
            cx.run(&self.copy_to_target)?;
        }
        Ok(())
    }
}

/// Trains a player with these settings.
pub(crate) fn train(settings: Settings, config: RunConfig) -> Result<Trained> {
    let Settings { rules, games, capacity, warm_up, batch, seed, .. } = settings;
    let experience = Rc::new(RefCell::new(Experience::new(rules, games, capacity, warm_up, seed)?));
    let mut input = ReplayInput::new(experience.clone(), batch, seed);

    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    let mut tower = TowerFunc::new(model::signature(rules), move |t, inputs| model::build(t, rules, inputs))?;
    let inputs = input.tensors(&t, tower.signature())?;
    let cost = tower.train(&t, &inputs)?.outputs()[0].clone();
    let rate = Schedule::polynomial(settings.learning_rate, 0.0, settings.steps, 1.0);
    let train = apply_gradients(&Adam::new(rate), &graph, &compute_gradients(&cost)?)?;
    let copy_to_target = graph.copy_variables("online", "target");
    let q_values = Fetch::from(&tower.infer(&graph, "actor")?.get_tensor("q_values")?);

    let evaluation = Evaluation {
        rules,
        episodes: settings.evaluation,
        solved_at: settings.solved_at,
        action_values: q_values.clone(),
    };
    let config = config
        .callback(RunOp::from_op(&copy_to_target).no_trigger())
        .callback(ModelSaver::new())
        .callback(evaluation)
        .seed(seed);
    let learn = Learn {
        settings,
        experience,
        train: Fetch::from(&train),
        copy_to_target: Fetch::from(&copy_to_target),
        q_values,
    };
    Trainer::new(&graph).with_tower_func(tower).input(input.boxed()).train_with_defaults(config, learn)
}
