//! Reading ahead.

use super::crew::{Crew, Plan};
use super::feed::{Feed, Ticket};
use super::map_parallel::{ParallelReader, one_by_one};
use crate::stop::DEADLINE;
use crate::{DataFlow, Flow, Lookup, Reader, Resume, Seed, State};
use std::sync::Arc;
use std::time::Duration;
use tensorpack_tensor::Result;

/// Reads its input on a thread of its own, a number of samples ahead: [`DataFlow::prefetch`], [`DataFlow::deadline`].
#[derive(Clone)]
#[doc(alias = "PrefetchData")]
#[doc(alias = "MultiThreadRunner")]
#[doc(alias = "MultiProcessRunner")]
pub struct Prefetch {
    inner: Flow,
    plan: Plan,
}

impl Prefetch {
    pub(crate) fn new(inner: impl DataFlow + 'static, ahead: usize) -> Prefetch {
        let plan = Plan { stage: "prefetch", workers: 1, ahead, keep_order: true, deadline: DEADLINE };
        Prefetch { inner: Arc::new(inner), plan }
    }

    /// How long to wait for a sample before that is an error; 300 seconds unless told otherwise.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Prefetch {
        self.plan.deadline = deadline;
        self
    }
}

impl DataFlow for Prefetch {
    fn size(&self) -> Option<u64> {
        self.inner.size()
    }

    fn resume(&self) -> Resume {
        self.inner.resume()
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        // Read in order: that is what files are fast at.
        let feed = Feed::Read(DataFlow::open(&self.inner, seed, at)?);
        let crew = Crew::start(&self.plan, feed.state(), one_by_one(feed, self.plan.stage), Ticket::sample)?;
        Ok(Box::new(ParallelReader { crew, at: State::at(at.epoch, at.index), keep_order: true }))
    }

    fn lookup(&self, seed: Seed) -> Result<Option<Arc<dyn Lookup>>> {
        self.inner.lookup(seed)
    }
}
