//! Samples of several dataflows in random turns.

use super::input_readers::InputReaders;
use crate::{DataFlow, Flow, Reader, Resume, Sample, SampleRng, Seed, State, replay};
use tensorpack_tensor::{Error, Result};

/// Takes every sample from one of several dataflows, chosen at random with fixed probabilities. A pass ends when the
/// chosen one has no more.
#[derive(Clone)]
#[doc(alias = "RandomChooseData")]
pub struct ChooseRandom {
    parts: Vec<Flow>,
    probabilities: Vec<f64>,
}

impl ChooseRandom {
    /// Each with its probability, which are at least 0 and sum to 1.
    pub fn new(parts: impl IntoIterator<Item = (Flow, f64)>) -> ChooseRandom {
        let (parts, probabilities) = parts.into_iter().unzip();
        ChooseRandom { parts, probabilities }
    }

    /// Each as likely as the others.
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
                "choose_random: probabilities {:?} are not at least 0 with a sum of 1",
                self.probabilities
            );
            return Err(Error::argument(why));
        }
        MixtureReader::open(&self.parts, Chooser::Probabilities(self.probabilities.clone()), seed, at)
    }
}

/// All samples of several dataflows, in random turns: each keeps its own order, and all such orders are as likely as each
/// other.
#[derive(Clone)]
#[doc(alias = "RandomMixData")]
pub struct Mix {
    parts: Vec<Flow>,
}

impl Mix {
    /// These; the sizes of all must be known.
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
            let why = "mix needs to know how many samples each of its inputs has";
            return Err(Error::argument(why).note("choose_random takes probabilities instead"));
        };
        MixtureReader::open(&self.parts, Chooser::Sizes(sizes), seed, at)
    }
}

fn combined_resume(parts: &[Flow]) -> Resume {
    parts.iter().map(|p| p.resume()).max().unwrap_or(Resume::Seek)
}

/// How many samples a pass of each has, without end for some; `None` where that is not known of all.
fn sizes(parts: &[Flow], seed: Seed) -> Result<Option<Vec<u64>>> {
    let size = |(i, part): (usize, &Flow)| {
        let endless = part.size().is_none() && part.open_indexed(InputReaders::seed(seed, i))?.is_some();
        Ok(part.size().or(endless.then_some(u64::MAX)))
    };
    parts.iter().enumerate().map(size).collect()
}

/// How turns are drawn.
enum Chooser {
    /// With these probabilities.
    Probabilities(Vec<f64>),
    /// In proportion to what is left of these sizes.
    Sizes(Vec<u64>),
}

impl Chooser {
    /// Whose turn it is, where `taken` have been read; `None` where all are through.
    fn next(&self, taken: &[u64], rng: &mut SampleRng) -> Option<usize> {
        match self {
            Chooser::Probabilities(probabilities) => {
                let mut left = rng.uniform();
                let likely = probabilities.iter().rposition(|&p| p > 0.0);
                let hit = probabilities.iter().position(|&p| {
                    left -= p;
                    left < 0.0
                });
                // Rounding may leave a sliver beyond the last.
                hit.or(likely)
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

    /// SampleRng the turns of a pass up to `at`: how often each had one, and whether the pass ends before.
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
    /// How many samples of this pass were taken of each.
    taken: Vec<u64>,
    /// The pass is over, and the parts have to be brought to the next.
    ended: bool,
    at: State,
}

impl MixtureReader {
    fn open(parts: &[Flow], chooser: Chooser, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        let (n, chooser_seed) = (parts.len(), seed.derive("turns"));
        // Where they stand is told, or follows from the turns, or comes out by reading.
        let (states, ended, index) = if !at.inputs.is_empty() {
            (at.inputs.clone(), false, at.index)
        } else if let Some(sizes) = sizes(parts, seed)? {
            let (taken, ended) = chooser.replay(at, chooser_seed, &sizes);
            (taken.into_iter().map(|index| State::at(at.epoch, index)).collect(), ended, at.index)
        } else {
            (vec![State::at(at.epoch, 0); n], false, 0)
        };
        if states.len() != n {
            let why = format!("a state of {} parts does not fit a mixture of {n}", states.len());
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
                // The part's own index: what took too long was not taken.
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
