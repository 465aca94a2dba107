//! Rollouts: a few steps of many games, which are the batch of the next training step.

use super::games::{
    Episodes, RecentScores, Rules, Simulators, Transition, batch_of_observations, find, restore_games,
    states_of_games,
};
use super::n_step::{NStep, n_step};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::rc::Rc;
use tensorpack::input::{InputSource, Start};
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;

const SIMULATOR_THREADS: usize = 2;

/// Games that are played at the same time, and their latest steps.
pub(crate) struct Rollout {
    rules: Rules,
    simulators: Simulators,
    /// The steps of each game since the last training step.
    played: Vec<Vec<Transition>>,
    scores: RecentScores,
    /// Steps that every game has taken.
    steps: u64,
    chance: CounterRng,
}

impl Rollout {
    /// Starts this many games.
    pub(crate) fn new(rules: Rules, games: usize, seed: u64) -> Result<Rollout> {
        let episodes = (0..games).map(|i| Episodes::new(rules, CounterRng::new(seed, &format!("game {i}"))));
        Ok(Rollout {
            rules,
            simulators: Simulators::new(episodes.collect(), SIMULATOR_THREADS)?,
            played: vec![Vec::new(); games],
            scores: RecentScores::default(),
            steps: 0,
            chance: CounterRng::new(seed, "actions"),
        })
    }

    /// Returns what the player sees in all games, as a batch.
    pub(crate) fn observations(&self) -> Result<HostTensor> {
        batch_of_observations(self.rules, self.simulators.games())
    }

    /// Plays a step of all games, with actions drawn from the policy that has these logits.
    pub(crate) fn play(&mut self, logits: &HostTensor) -> Result<()> {
        let rows = logits.as_slice::<f32>()?.chunks(self.rules.actions()).enumerate();
        let actions: Vec<usize> =
            rows.map(|(i, row)| draw(row, self.chance.uniform(self.steps, i as u64))).collect();
        self.steps += 1;
        self.simulators.play(&actions)?;
        for (played, transition) in self.played.iter_mut().zip(self.simulators.collect()?) {
            if let Some(score) = transition.score {
                self.scores.push(score);
            }
            played.push(transition);
        }
        Ok(())
    }

    /// Takes the steps since the last call, as the inputs of the model.
    fn take(&mut self) -> Result<Vec<HostTensor>> {
        let steps: Vec<NStep> = self.played.iter_mut().flat_map(|p| n_step(std::mem::take(p))).collect();
        let batch = steps.len();
        let observations = |of: fn(&NStep) -> &Vec<f32>| {
            let mut sizes = vec![batch];
            sizes.extend(self.rules.observation_sizes());
            HostTensor::new(sizes, steps.iter().flat_map(of).copied().collect())
        };
        let scalars = |of: fn(&NStep) -> f32| HostTensor::new([batch], steps.iter().map(of).collect());
        Ok(vec![
            observations(|s| &s.observation)?,
            HostTensor::new([batch], steps.iter().map(|s| s.action as i32).collect())?,
            scalars(|s| s.rewards)?,
            observations(|s| &s.last_observation)?,
            scalars(|s| s.last_discount)?,
        ])
    }
}

/// Draws an action with probabilities from these logits. `uniform` is a random number in `[0, 1)`.
pub(crate) fn draw(logits: &[f32], uniform: f64) -> usize {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let likely: Vec<f64> = logits.iter().map(|l| f64::from(l - largest).exp()).collect();
    let mut left = uniform * likely.iter().sum::<f64>();
    let drawn = likely.iter().position(|p| {
        left -= p;
        left < 0.0
    });
    drawn.unwrap_or(logits.len() - 1)
}

/// The input source whose batch is the rollout that was played before.
pub(crate) struct RolloutInput {
    rollout: Rc<RefCell<Rollout>>,
    feeds: Vec<(String, HostTensor)>,
}

impl RolloutInput {
    pub(crate) fn new(rollout: Rc<RefCell<Rollout>>) -> RolloutInput {
        RolloutInput { rollout, feeds: Vec::new() }
    }
}

impl InputSource for RolloutInput {
    fn size(&self) -> Option<u64> {
        None
    }

    fn tensors(&mut self, t: &TowerContext, signature: &[TensorSpec]) -> Result<Vec<Tensor>> {
        let empty = |spec: &TensorSpec| Ok((spec.name.clone(), HostTensor::zeros(spec.dtype, [0])?));
        self.feeds = signature.iter().map(empty).collect::<Result<_>>()?;
        Ok(signature.iter().map(|spec| t.graph().placeholder(spec)).collect())
    }

    fn start(&mut self, start: Start<'_>) -> Result<()> {
        if start.at.is_null() {
            return Ok(());
        }
        let mut rollout = self.rollout.borrow_mut();
        let missing = || Error::argument("the checkpoint's input has no \"steps\"");
        rollout.steps = start.at["steps"].as_u64().ok_or_else(missing)?;
        rollout.scores.restore(find(start.tensors, "scores")?.as_slice()?);
        restore_games(&mut rollout.simulators, find(start.tensors, "games")?)
    }

    fn next(&mut self) -> Result<&[(String, HostTensor)]> {
        let batch = self.rollout.borrow_mut().take()?;
        self.feeds.iter_mut().zip(batch).for_each(|((_, feed), value)| *feed = value);
        Ok(&self.feeds)
    }

    fn state(&self) -> Value {
        json!({"steps": self.rollout.borrow().steps})
    }

    fn state_tensors(&self) -> Result<Vec<(String, HostTensor)>> {
        let rollout = self.rollout.borrow();
        let scores = rollout.scores.to_vec();
        Ok(vec![
            ("games".into(), states_of_games(&rollout.simulators)?),
            ("scores".into(), HostTensor::new([scores.len()], scores)?),
        ])
    }

    fn report(&self) -> Vec<(String, f64)> {
        self.rollout.borrow().scores.report()
    }
}
