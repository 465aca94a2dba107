//! The experience of the player: games that are played, and the replay buffer they fill. It is the
//! input of training, and checkpoints hold all of it.

use super::games::{
    Episodes, RecentScores, Rules, Simulators, batch_of_observations, best_actions, find, restore_games,
    states_of_games,
};
use super::replay_buffer::ReplayBuffer;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::rc::Rc;
use tensorpack::input::{InputSource, Start};
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;

const SIMULATOR_THREADS: usize = 2;

/// Everything that happened in the games so far, as far as it matters.
pub(crate) struct Experience {
    rules: Rules,
    simulators: Simulators,
    replay: ReplayBuffer,
    /// Random transitions before the first batch.
    warm_up: usize,
    scores: RecentScores,
    /// Steps that every game has taken.
    steps: u64,
    exploration: CounterRng,
}

impl Experience {
    /// Starts this many games, with an empty replay buffer.
    pub(crate) fn new(
        rules: Rules,
        games: usize,
        capacity: usize,
        warm_up: usize,
        seed: u64,
    ) -> Result<Experience> {
        let episodes = (0..games).map(|i| Episodes::new(rules, CounterRng::new(seed, &format!("game {i}"))));
        Ok(Experience {
            rules,
            simulators: Simulators::new(episodes.collect(), SIMULATOR_THREADS)?,
            replay: ReplayBuffer::new(capacity, rules.observation_sizes()),
            warm_up,
            scores: RecentScores::default(),
            steps: 0,
            exploration: CounterRng::new(seed, "exploration"),
        })
    }

    /// Plays at random until the replay buffer has enough for a batch.
    pub(crate) fn warm_up(&mut self) -> Result<()> {
        while self.replay.len() < self.warm_up {
            self.play(None, 1.0)?;
            self.collect()?;
        }
        Ok(())
    }

    /// Returns what the player sees in all games, as a batch.
    pub(crate) fn observations(&self) -> Result<HostTensor> {
        batch_of_observations(self.rules, self.simulators.games())
    }

    /// Starts a step of all games: with probability `epsilon` a random action, else the best by
    /// `q_values`. Without values all actions are random.
    pub(crate) fn play(&mut self, q_values: Option<&HostTensor>, epsilon: f64) -> Result<()> {
        let (rng, step, actions) = (self.exploration, self.steps, self.rules.actions());
        let best = match q_values {
            Some(values) => best_actions(values)?,
            None => Vec::new(),
        };
        let random = |i: u64| (rng.uniform(step, 2 * i + 1) * actions as f64) as usize;
        let choose = |i: usize| match best.get(i) {
            Some(&best) if rng.uniform(step, 2 * i as u64) >= epsilon => best,
            _ => random(i as u64),
        };
        let chosen: Vec<usize> = (0..self.simulators.games().count()).map(choose).collect();
        self.steps += 1;
        self.simulators.play(&chosen)
    }

    /// Waits for the step that [`Experience::play`] started, and stores what happened.
    pub(crate) fn collect(&mut self) -> Result<()> {
        for transition in self.simulators.collect()? {
            self.replay.push(&transition);
            if let Some(score) = transition.score {
                self.scores.push(score);
            }
        }
        Ok(())
    }
}

/// The input source that draws batches from the replay buffer.
pub(crate) struct ReplayInput {
    pub(crate) experience: Rc<RefCell<Experience>>,
    pub(crate) batch: usize,
    rng: CounterRng,
    drawn: u64,
    feeds: Vec<(String, HostTensor)>,
}

impl ReplayInput {
    pub(crate) fn new(experience: Rc<RefCell<Experience>>, batch: usize, seed: u64) -> ReplayInput {
        ReplayInput { experience, batch, rng: CounterRng::new(seed, "replay"), drawn: 0, feeds: Vec::new() }
    }
}

impl InputSource for ReplayInput {
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
        let number = |key: &str| {
            let missing = || Error::argument(format!("the checkpoint's input has no {key:?}"));
            start.at[key].as_u64().ok_or_else(missing)
        };
        let mut experience = self.experience.borrow_mut();
        self.drawn = number("drawn")?;
        experience.steps = number("steps")?;
        experience.replay.restore(start.tensors)?;
        experience.scores.restore(find(start.tensors, "scores")?.as_slice()?);
        restore_games(&mut experience.simulators, find(start.tensors, "games")?)
    }

    fn next(&mut self) -> Result<&[(String, HostTensor)]> {
        let mut experience = self.experience.borrow_mut();
        // A dry run reads a batch without a step, which warms up otherwise.
        experience.warm_up()?;
        let batch = experience.replay.sample(self.batch, &self.rng, self.drawn)?;
        self.drawn += 1;
        self.feeds.iter_mut().zip(batch).for_each(|((_, feed), value)| *feed = value);
        Ok(&self.feeds)
    }

    fn state(&self) -> Value {
        json!({"drawn": self.drawn, "steps": self.experience.borrow().steps})
    }

    fn state_tensors(&self) -> Result<Vec<(String, HostTensor)>> {
        let experience = self.experience.borrow();
        let scores = experience.scores.to_vec();
        let mut tensors = experience.replay.tensors()?;
        tensors.push(("games".into(), states_of_games(&experience.simulators)?));
        tensors.push(("scores".into(), HostTensor::new([scores.len()], scores)?));
        Ok(tensors)
    }

    fn report(&self) -> Vec<(String, f64)> {
        self.experience.borrow().scores.report()
    }
}
