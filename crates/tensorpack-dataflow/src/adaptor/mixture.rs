//! Samples of several dataflows in random turns.

use super::inputs::Inputs;
use crate::{DataFlow, Draws, Flow, Reader, Resume, Sample, Seed, State, replay};
use tensorpack_tensor::{Error, Result};

/// Takes every sample from one of several dataflows, chosen at random with fixed probabilities. A pass ends when the
/// chosen one has no more.
#[derive(Clone)]
#[doc(alias = "RandomChooseData")]
pub struct ChooseRandom {
    parts: Vec<Flow>,
    chances: Vec<f64>,
}

impl ChooseRandom {
    /// Each with its probability, which are at least 0 and sum to 1.
    pub fn new(parts: impl IntoIterator<Item = (Flow, f64)>) -> ChooseRandom {
        let (parts, chances) = parts.into_iter().unzip();
        ChooseRandom { parts, chances }
    }

    /// Each as likely as the others.
    pub fn evenly(parts: impl IntoIterator<Item = Flow>) -> ChooseRandom {
        let parts: Vec<Flow> = parts.into_iter().collect();
        let chances = vec![1.0 / parts.len() as f64; parts.len()];
        ChooseRandom { parts, chances }
    }
}

impl DataFlow for ChooseRandom {
    fn size(&self) -> Option<u64> {
        None
    }

    fn resume(&self) -> Resume {
        slowest(&self.parts)
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        let sum: f64 = self.chances.iter().sum();
        if !((sum - 1.0).abs() < 1e-9 && self.chances.iter().all(|&p| p >= 0.0)) {
            let why =
                format!("choose_random: probabilities {:?} are not at least 0 with a sum of 1", self.chances);
            return Err(Error::argument(why));
        }
        MixtureReader::open(&self.parts, Turns::Chances(self.chances.clone()), seed, at)
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
        slowest(&self.parts)
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        let Some(sizes) = self.sizes() else {
            let why = "mix needs to know how many samples each of its inputs has";
            return Err(Error::argument(why).note("choose_random takes probabilities instead"));
        };
        MixtureReader::open(&self.parts, Turns::Sizes(sizes), seed, at)
    }
}

fn slowest(parts: &[Flow]) -> Resume {
    parts.iter().map(|p| p.resume()).max().unwrap_or(Resume::Seek)
}

/// How many samples a pass of each has, without end for some; `None` where that is not known of all.
fn sizes(parts: &[Flow], seed: Seed) -> Result<Option<Vec<u64>>> {
    let size = |(i, part): (usize, &Flow)| {
        let endless = part.size().is_none() && part.lookup(Inputs::seed(seed, i))?.is_some();
        Ok(part.size().or(endless.then_some(u64::MAX)))
    };
    parts.iter().enumerate().map(size).collect()
}

/// How turns are drawn.
enum Turns {
    /// With these probabilities.
    Chances(Vec<f64>),
    /// In proportion to what is left of these sizes.
    Sizes(Vec<u64>),
}

impl Turns {
    /// Whose turn it is, where `taken` have been read; `None` where all are through.
    fn next(&self, taken: &[u64], draws: &mut Draws) -> Option<usize> {
        match self {
            Turns::Chances(chances) => {
                let mut left = draws.uniform();
                let likely = chances.iter().rposition(|&p| p > 0.0);
                let hit = chances.iter().position(|&p| {
                    left -= p;
                    left < 0.0
                });
                // Rounding may leave a sliver beyond the last.
                hit.or(likely)
            }
            Turns::Sizes(sizes) => {
                let left: Vec<u64> = sizes.iter().zip(taken).map(|(n, k)| n.saturating_sub(*k)).collect();
                let mut place = draws.below(left.iter().sum());
                left.iter().position(|&n| {
                    let hit = place < n;
                    place = place.wrapping_sub(n);
                    hit
                })
            }
        }
    }

    /// Draws the turns of a pass up to `at`: how often each had one, and whether the pass ends before.
    fn until(&self, at: &State, seed: Seed, sizes: &[u64]) -> (Vec<u64>, bool) {
        let mut taken = vec![0; sizes.len()];
        for index in 0..at.index {
            let turn = self.next(&taken, &mut seed.draws(at.epoch, index));
            let Some(turn) = turn.filter(|&turn| taken[turn] < sizes[turn]) else { return (taken, true) };
            taken[turn] += 1;
        }
        (taken, false)
    }
}

struct MixtureReader {
    inputs: Inputs,
    turns: Turns,
    seed: Seed,
    /// How many samples of this pass were taken of each.
    taken: Vec<u64>,
    /// The pass is over, and the parts have to be brought to the next.
    ended: bool,
    at: State,
}

impl MixtureReader {
    fn open(parts: &[Flow], turns: Turns, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        let (n, turn_seed) = (parts.len(), seed.of("turns"));
        // Where they stand is told, or follows from the turns, or comes out by reading.
        let (states, ended, index) = if !at.inputs.is_empty() {
            (at.inputs.clone(), false, at.index)
        } else if let Some(sizes) = sizes(parts, seed)? {
            let (taken, ended) = turns.until(at, turn_seed, &sizes);
            (taken.into_iter().map(|index| State::at(at.epoch, index)).collect(), ended, at.index)
        } else {
            (vec![State::at(at.epoch, 0); n], false, 0)
        };
        if states.len() != n {
            let why = format!("a state of {} parts does not fit a mixture of {n}", states.len());
            return Err(Error::argument(why));
        }
        let reader = MixtureReader {
            inputs: Inputs::open(parts, seed, &states)?,
            turns,
            seed: turn_seed,
            taken: states.iter().map(|s| s.index).collect(),
            ended,
            at: State::at(at.epoch, index),
        };
        replay::to(Box::new(reader), at)
    }

    fn next(&mut self) -> Result<Option<Sample>> {
        if !self.ended {
            let State { epoch, index, .. } = self.at;
            if let Some(turn) = self.turns.next(&self.taken, &mut self.seed.draws(epoch, index)) {
                let read = self.inputs.readers[turn].read();
                // The part's own index: what took too long was not taken.
                self.taken[turn] = self.inputs.readers[turn].state().index;
                if let Some(sample) = read? {
                    return Ok(Some(sample));
                }
            }
            self.ended = true;
        }
        self.inputs.begin(self.at.epoch + 1)?;
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
        self.at.with(self.inputs.states())
    }
}
