//! The replay buffer: the latest transitions, in a ring.

use super::games::{Transition, find};
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;

/// The latest transitions. Each column has an element (or an observation) per transition.
pub(crate) struct ReplayBuffer {
    capacity: usize,
    observation_sizes: Vec<usize>,
    observations: Vec<f32>,
    actions: Vec<i32>,
    rewards: Vec<f32>,
    next: Vec<f32>,
    /// 1 where the game ended.
    terminal: Vec<f32>,
    /// The row to overwrite next, once the buffer is full.
    oldest: usize,
}

impl ReplayBuffer {
    pub(crate) fn new(capacity: usize, observation_sizes: &[usize]) -> ReplayBuffer {
        ReplayBuffer {
            capacity,
            observation_sizes: observation_sizes.to_vec(),
            observations: Vec::new(),
            actions: Vec::new(),
            rewards: Vec::new(),
            next: Vec::new(),
            terminal: Vec::new(),
            oldest: 0,
        }
    }

    /// Returns the number of transitions.
    pub(crate) fn len(&self) -> usize {
        self.actions.len()
    }

    /// Adds a transition, and drops the oldest if the buffer is full.
    pub(crate) fn push(&mut self, t: &Transition) {
        let terminal = f32::from(u8::from(t.terminal));
        if self.len() < self.capacity {
            self.observations.extend(&t.observation);
            self.actions.push(t.action as i32);
            self.rewards.push(t.reward);
            self.next.extend(&t.next);
            self.terminal.push(terminal);
            return;
        }
        let (row, size) = (self.oldest, t.observation.len());
        self.observations[row * size..][..size].copy_from_slice(&t.observation);
        self.actions[row] = t.action as i32;
        self.rewards[row] = t.reward;
        self.next[row * size..][..size].copy_from_slice(&t.next);
        self.terminal[row] = terminal;
        self.oldest = (row + 1) % self.capacity;
    }

    /// Returns `batch` transitions, drawn uniformly with replacement: observations, actions,
    /// rewards, next observations, ends. Draw `draw` is always the same for the same content.
    pub(crate) fn sample(&self, batch: usize, rng: &CounterRng, draw: u64) -> Result<Vec<HostTensor>> {
        if self.len() == 0 {
            return Err(Error::argument("the replay buffer is empty: no transition can be drawn"));
        }
        // The product with a word maps it to a row without a division; its bias is below 1e-5.
        let row = |i: u64| ((u64::from(rng.word(draw, i)) * self.len() as u64) >> 32) as usize;
        let rows: Vec<usize> = (0..batch as u64).map(row).collect();
        let size: usize = self.observation_sizes.iter().product();
        let observations = |of: &[f32]| {
            let sizes: Vec<usize> =
                [batch].into_iter().chain(self.observation_sizes.iter().copied()).collect();
            HostTensor::new(sizes, rows.iter().flat_map(|r| &of[r * size..][..size]).copied().collect())
        };
        let scalars = |of: &[f32]| HostTensor::new([batch], rows.iter().map(|&r| of[r]).collect());
        Ok(vec![
            observations(&self.observations)?,
            HostTensor::new([batch], rows.iter().map(|&r| self.actions[r]).collect())?,
            scalars(&self.rewards)?,
            observations(&self.next)?,
            scalars(&self.terminal)?,
        ])
    }

    /// Returns the content as tensors, for a checkpoint.
    pub(crate) fn tensors(&self) -> Result<Vec<(String, HostTensor)>> {
        let size: usize = self.observation_sizes.iter().product();
        let n = self.len();
        let tensors = [
            ("observations", HostTensor::new([n, size], self.observations.clone())?),
            ("actions", HostTensor::new([n], self.actions.clone())?),
            ("rewards", HostTensor::new([n], self.rewards.clone())?),
            ("next", HostTensor::new([n, size], self.next.clone())?),
            ("terminal", HostTensor::new([n], self.terminal.clone())?),
            ("oldest", HostTensor::scalar(self.oldest as i64)),
        ];
        Ok(tensors.into_iter().map(|(name, value)| (name.to_string(), value)).collect())
    }

    /// Restores the content that [`ReplayBuffer::tensors`] returned.
    pub(crate) fn restore(&mut self, tensors: &[(String, HostTensor)]) -> Result<()> {
        self.observations = find(tensors, "observations")?.as_slice()?.to_vec();
        self.actions = find(tensors, "actions")?.as_slice()?.to_vec();
        self.rewards = find(tensors, "rewards")?.as_slice()?.to_vec();
        self.next = find(tensors, "next")?.as_slice()?.to_vec();
        self.terminal = find(tensors, "terminal")?.as_slice()?.to_vec();
        self.oldest = find(tensors, "oldest")?.as_slice::<i64>()?[0] as usize;
        let size: usize = self.observation_sizes.iter().product();
        let n = self.len();
        let lengths = [self.observations.len(), self.next.len(), self.rewards.len(), self.terminal.len()];
        if lengths != [n * size, n * size, n, n] || n > self.capacity || (n > 0 && self.oldest >= n) {
            return Err(Error::argument(
                "the checkpoint's replay buffer is that of another game or capacity",
            )
            .note("start over with --fresh"));
        }
        Ok(())
    }
}
