//! A function of every sample, on several threads.

use super::crew::{Crew, Plan, Task, guarded};
use super::feed::{Feed, Ticket};
use crate::adaptor::map::{Apply, Function};
use crate::stop::DEADLINE;
use crate::{DataFlow, Draws, Flow, Lookup, Map, Reader, Resume, Sample, Seed, State};
use std::sync::Arc;
use std::time::Duration;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Every sample through a function, on several threads: [`DataFlow::map_parallel`].
///
/// It reads what [`DataFlow::map_random`] with the same function reads, byte for byte and in the same order. Where the
/// input's samples can be looked up, the threads also read them at the same time.
#[derive(Clone)]
#[doc(alias = "MultiThreadMapData")]
#[doc(alias = "MultiProcessMapData")]
pub struct MapParallel {
    inner: Flow,
    function: Function,
    plan: Plan,
}

impl MapParallel {
    pub(crate) fn new(
        inner: impl DataFlow + 'static,
        workers: usize,
        function: impl Fn(Sample, &mut Draws) -> Result<Sample> + Send + Sync + 'static,
    ) -> MapParallel {
        let ahead = workers.saturating_mul(4).max(32);
        let plan = Plan { stage: "map_parallel", workers, ahead, keep_order: true, deadline: DEADLINE };
        MapParallel { inner: Arc::new(inner), function: Arc::new(function), plan }
    }

    /// How many samples may be made ahead, those being made among them; 32 unless told otherwise,
    /// or four for each worker if that is more.
    #[doc(alias = "buffer_size")]
    #[must_use]
    pub fn buffer(mut self, samples: usize) -> MapParallel {
        self.plan.ahead = samples;
        self
    }

    /// Gives samples as they get ready. Every pass still has exactly its own. Such a reader cannot go on in the middle of
    /// a pass.
    #[must_use]
    pub fn unordered(mut self) -> MapParallel {
        self.plan.keep_order = false;
        self
    }

    /// How long to wait for a sample before that is an error; 300 seconds unless told otherwise.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> MapParallel {
        self.plan.deadline = deadline;
        self
    }

    fn in_one_thread(&self) -> Map {
        Map::of(&self.inner, &self.function)
    }
}

impl DataFlow for MapParallel {
    fn size(&self) -> Option<u64> {
        self.inner.size()
    }

    fn resume(&self) -> Resume {
        if self.plan.keep_order { self.inner.resume() } else { Resume::Never }
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        if !self.plan.keep_order && at.index > 0 {
            let why = format!(
                "an unordered map_parallel cannot go on at sample {} of epoch {}",
                at.index, at.epoch
            );
            let what = "it does not know which samples those were: leave out unordered(), or begin a pass";
            return Err(Error::new(ErrorKind::Unsupported, why).note(what));
        }
        let feed = Feed::open(&self.inner, seed.of("input"), at)?;
        let apply = Apply::new(&self.function, seed);
        let work = move |ticket: Ticket| {
            let (epoch, index) = (ticket.epoch, ticket.index);
            apply.to(ticket.sample()?, epoch, index)
        };
        let crew = Crew::start(&self.plan, feed.state(), one_by_one(feed, self.plan.stage), work)?;
        Ok(Box::new(ParallelReader {
            crew,
            at: State::at(at.epoch, at.index),
            keep_order: self.plan.keep_order,
        }))
    }

    fn lookup(&self, seed: Seed) -> Result<Option<Arc<dyn Lookup>>> {
        if self.plan.keep_order { self.in_one_thread().lookup(seed) } else { Ok(None) }
    }
}

/// A task for each input.
pub(super) fn one_by_one(mut feed: Feed, stage: &'static str) -> impl FnMut() -> Task<Ticket> {
    move || {
        let State { epoch, index, .. } = feed.state();
        let work = guarded(stage, epoch, index, || feed.next());
        Task { work, state: feed.state(), epoch, index }
    }
}

/// Reads what a crew makes of its input, sample for sample.
pub(super) struct ParallelReader {
    pub(super) crew: Crew,
    pub(super) at: State,
    pub(super) keep_order: bool,
}

impl Reader for ParallelReader {
    fn read(&mut self) -> Result<Option<Sample>> {
        let read = self.crew.read();
        self.at.advance(&read);
        read
    }

    fn state(&self) -> State {
        if self.keep_order { self.crew.state() } else { self.at.clone() }
    }
}
