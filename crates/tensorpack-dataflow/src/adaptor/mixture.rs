//! Random interleaving of several dataflows.

use super::input_readers::InputReaders;
use crate::{DataFlow, Flow, Reader, Resume, Sample, SampleRng, Seed, State, replay};
use tensorpack_tensor::{Error, Result};

/// Reads every sample from a randomly chosen input with fixed probabilities. A pass ends when the
/// chosen input is exhausted.
#[derive(Clone)]
#[doc(alias = "RandomChooseData")]
pub struct ChooseRandom {
    parts: Vec<Flow>,
    probabilities: Vec<f64>,
}

impl ChooseRandom {
    /// Creates a mixture from inputs and their probabilities, which must be non-negative and sum to
    /// 1.
    pub fn new(parts: impl IntoIterator<Item = (Flow, f64)>) -> ChooseRandom {
        let (parts, probabilities) = parts.into_iter().unzip();
        ChooseRandom { parts, probabilities }
    }

    /// Creates a mixture with equal probabilities.
    #[doc(alias = "evenly")]
    pub fn uniform(parts: impl IntoIterator<Item = Flow>) -> ChooseRandom {
        let parts: Vec<Flow> = parts.into_iter().collect();
        let probabilities = vec![1.0 / parts.len() as f64; parts.len()];
        ChooseRandom { parts, probabilities }
    }
}

impl DataFlow for ChooseRandom {
    fn size(&self) -> Option<u64> {
        None
    }

    fn resume(&self) -> Resume {
        combined_resume(&self.parts)
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        let sum: f64 = self.probabilities.iter().sum();
        if !((sum - 1.0).abs() < 1e-9 && self.probabilities.iter().all(|&p| p >= 0.0)) {
            let why = format!(
                "ChooseRandom: probabilities {:?} must be non-negative and sum to 1",
                self.probabilities
            );
            return Err(Error::argument(why));
        }
        MixtureReader::open(&self.parts, Chooser::Probabilities(self.probabilities.clone()), seed, at)
    }
}

/// Interleaves all samples of several inputs randomly. Every input keeps its order, and all
/// interleavings are equally likely.
#[derive(Clone)]
#[doc(alias = "RandomMixData")]
pub struct Mix {
    parts: Vec<Flow>,
}

impl Mix {
    /// Creates an interleaving of `parts`, whose sizes must all be known.
    pub fn new(parts: impl IntoIterator<Item = Flow>) -> Mix {
        Mix { parts: parts.into_iter().collect() }
    }

    fn sizes(&self) -> Option<Vec<u64>> {
        self.parts.iter().map(|p| p.size()).collect()
    }
}

impl DataFlow for Mix {
    fn size(&self) -> Option<u64> {
        Some(self.sizes()?.iter().sum())
    }

    fn resume(&self) -> Resume {
        combined_resume(&self.parts)
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        let Some(sizes) = self.sizes() else {
            let why = "Mix: every input must have a known size";
            return Err(Error::argument(why).note("use ChooseRandom with probabilities instead"));
        };
        MixtureReader::open(&self.parts, Chooser::Sizes(sizes), seed, at)
    }
}

fn combined_resume(parts: &[Flow]) -> Resume {
    parts.iter().map(|p| p.resume()).max().unwrap_or(Resume::Seek)
}

/// Returns the pass length of every input (`u64::MAX` if infinite), or `None` if one is unknown.
fn sizes(parts: &[Flow], seed: Seed) -> Result<Option<Vec<u64>>> {
    let size = |(i, part): (usize, &Flow)| {
        let infinite = part.size().is_none() && part.open_indexed(InputReaders::seed(seed, i))?.is_some();
        Ok(part.size().or(infinite.then_some(u64::MAX)))
    };
    parts.iter().enumerate().map(size).collect()
}

/// How the next input is chosen.
enum Chooser {
    /// With fixed probabilities.
    Probabilities(Vec<f64>),
    /// In proportion to the number of remaining samples.
    Sizes(Vec<u64>),
}

impl Chooser {
    /// Chooses an input, given how many samples each has delivered. Returns `None` when all are
    /// exhausted.
    fn next(&self, taken: &[u64], rng: &mut SampleRng) -> Option<usize> {
        match self {
            Chooser::Probabilities(probabilities) => {
                let mut left = rng.uniform();
                let last_possible = probabilities.iter().rposition(|&p| p > 0.0);
                let hit = probabilities.iter().position(|&p| {
                    left -= p;
                    left < 0.0
                });
                // The probabilities may sum to slightly less than 1.
                hit.or(last_possible)
            }
            Chooser::Sizes(sizes) => {
                let left: Vec<u64> = sizes.iter().zip(taken).map(|(n, k)| n.saturating_sub(*k)).collect();
                let mut ticket = rng.below(left.iter().sum());
                left.iter().position(|&n| {
                    let hit = ticket < n;
                    ticket = ticket.wrapping_sub(n);
                    hit
                })
            }
        }
    }

    /// Replays the choices of a pass up to `at`. Returns how often each input was chosen and
    /// whether the pass ends before `at`.
    fn replay(&self, at: &State, seed: Seed, sizes: &[u64]) -> (Vec<u64>, bool) {
        let mut taken = vec![0; sizes.len()];
        for index in 0..at.index {
            let chosen = self.next(&taken, &mut seed.rng(at.epoch, index));
            let Some(chosen) = chosen.filter(|&chosen| taken[chosen] < sizes[chosen]) else {
                return (taken, true);
            };
            taken[chosen] += 1;
        }
        (taken, false)
    }
}

struct MixtureReader {
    inputs: InputReaders,
    chooser: Chooser,
    seed: Seed,
    /// Number of samples read from each input in this pass.
    taken: Vec<u64>,
    /// The pass has ended; the inputs must be moved to the next one.
    ended: bool,
    at: State,
}

impl MixtureReader {
    fn open(parts: &[Flow], chooser: Chooser, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        let (n, chooser_seed) = (parts.len(), seed.derive("turns"));
        // The states of the inputs are stored, or follow from replaying the choices, or are reached
        // by reading the samples again.
        let (states, ended, index) = if !at.inputs.is_empty() {
            (at.inputs.clone(), false, at.index)
        } else if let Some(sizes) = sizes(parts, seed)? {
            let (taken, ended) = chooser.replay(at, chooser_seed, &sizes);
            (taken.into_iter().map(|index| State::at(at.epoch, index)).collect(), ended, at.index)
        } else {
            (vec![State::at(at.epoch, 0); n], false, 0)
        };
        if states.len() != n {
            let why = format!("the state has {} inputs, but the mixture has {n}", states.len());
            return Err(Error::argument(why));
        }
        let reader = MixtureReader {
            inputs: InputReaders::open(parts, seed, &states)?,
            chooser,
            seed: chooser_seed,
            taken: states.iter().map(|s| s.index).collect(),
            ended,
            at: State::at(at.epoch, index),
        };
        replay::replay_to(Box::new(reader), at)
    }

    fn next(&mut self) -> Result<Option<Sample>> {
        if !self.ended {
            let State { epoch, index, .. } = self.at;
            if let Some(chosen) = self.chooser.next(&self.taken, &mut self.seed.rng(epoch, index)) {
                let read = self.inputs.readers[chosen].read();
                // Take the count from the input itself: a read that timed out consumed nothing.
                self.taken[chosen] = self.inputs.readers[chosen].state().index;
                if let Some(sample) = read? {
                    return Ok(Some(sample));
                }
            }
            self.ended = true;
        }
        self.inputs.start_epoch(self.at.epoch + 1)?;
        self.ended = false;
        self.taken.fill(0);
        Ok(None)
    }
}

impl Reader for MixtureReader {
    fn read(&mut self) -> Result<Option<Sample>> {
        let read = self.next();
        self.at.advance(&read);
        read
    }

    fn state(&self) -> State {
        self.at.with_inputs(self.inputs.states())
    }
}
