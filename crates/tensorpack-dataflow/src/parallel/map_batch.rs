//! Samples made straight into the batch they belong to.

use super::crew::{Crew, Plan, Task, guarded};
use super::feed::{Feed, Ticket};
use crate::adaptor::gather::{self, Gather};
use crate::adaptor::map::component;
use crate::lookup::name_sample;
use crate::stop::DEADLINE;
use crate::{ComponentSpec, DataFlow, Draws, Flow, Reader, Resume, Sample, Seed, State};
use std::sync::Arc;
use std::time::Duration;
use tensorpack_tensor::{Element, HostTensor, Result};

type Function = Arc<dyn Fn(Sample, &mut Draws, &mut Slot<'_>) -> Result<()> + Send + Sync>;

/// Batches that a function writes its samples into, on several threads: [`DataFlow::map_batch`].
///
/// It reads what `map_random(..).batch(..)` would, without a sample ever being anywhere but in its batch. Each thread
/// makes a batch of its own, so that no two write into the same.
#[derive(Clone)]
#[doc(alias = "MultiProcessMapAndBatchData")]
pub struct MapBatch {
    inner: Flow,
    batch: usize,
    components: Arc<[ComponentSpec]>,
    function: Function,
    keep_remainder: bool,
    plan: Plan,
}

impl MapBatch {
    pub(crate) fn new(
        inner: impl DataFlow + 'static,
        workers: usize,
        batch: usize,
        components: Vec<ComponentSpec>,
        function: impl Fn(Sample, &mut Draws, &mut Slot<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> MapBatch {
        let ahead = workers.saturating_add(1);
        MapBatch {
            inner: Arc::new(inner),
            batch,
            components: components.into(),
            function: Arc::new(function),
            keep_remainder: false,
            plan: Plan { stage: "map_batch", workers, ahead, keep_order: true, deadline: DEADLINE },
        }
    }

    /// Keeps what is left at the end of a pass, as a smaller batch. Otherwise it is dropped.
    #[must_use]
    pub fn keep_remainder(self) -> MapBatch {
        MapBatch { keep_remainder: true, ..self }
    }

    /// How many batches may be made ahead, those being made among them; one more than workers unless told otherwise.
    #[must_use]
    pub fn buffer(mut self, batches: usize) -> MapBatch {
        self.plan.ahead = batches;
        self
    }

    /// How long to wait for a batch before that is an error; 300 seconds unless told otherwise.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> MapBatch {
        self.plan.deadline = deadline;
        self
    }
}

/// Where a sample goes: its row in every component of the batch.
pub struct Slot<'a> {
    batch: &'a mut [HostTensor],
    components: &'a [ComponentSpec],
    row: usize,
}

impl Slot<'_> {
    /// The elements of component `index`, zeros at first, in row-major order.
    pub fn component<T: Element>(&mut self, index: usize) -> Result<&mut [T]> {
        let tensor = component(self.batch, index)?;
        let n = self.components[index].elements();
        let rows = tensor.as_mut_slice::<T>().map_err(|e| e.within(format!("component {index}")))?;
        Ok(&mut rows[self.row * n..][..n])
    }
}

impl DataFlow for MapBatch {
    fn size(&self) -> Option<u64> {
        Some(gather::batches(self.inner.size()?, self.batch, self.keep_remainder))
    }

    fn resume(&self) -> Resume {
        self.inner.resume()
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        let stage = self.plan.stage;
        gather::check(stage, self.inner.size(), self.batch, self.keep_remainder)?;
        let inner_at = at.input(at.epoch, at.index.saturating_mul(self.batch as u64));
        let mut feed = Feed::open(&self.inner, seed.of("input"), &inner_at)?;
        let mut gather = Gather::new(self.batch, self.keep_remainder, inner_at.epoch > at.epoch);
        let begin = feed.state();
        let mut state = begin.clone();
        let next = move || {
            let State { epoch, index, .. } = feed.state();
            let work = guarded(stage, epoch, index, || gather.next(|_| feed.next()));
            if !gather.is_open() {
                state = feed.state();
            }
            Task { work, state: state.clone(), epoch, index }
        };
        let (components, function, seed) = (self.components.clone(), self.function.clone(), seed.of("map"));
        let work = move |tickets: Vec<Ticket>| {
            let rows = tickets.len();
            let mut batch: Sample = components.iter().map(|c| c.batch(rows)).collect::<Result<_>>()?;
            for (row, ticket) in tickets.into_iter().enumerate() {
                let (epoch, index) = (ticket.epoch, ticket.index);
                let sample = ticket.sample()?;
                let mut slot = Slot { batch: &mut batch, components: &components, row };
                guarded(stage, epoch, index, || {
                    function(sample, &mut seed.draws(epoch, index), &mut slot)
                        .map_err(|e| name_sample(e, epoch, index))
                })?;
            }
            Ok(batch)
        };
        let crew = Crew::start(&self.plan, begin, next, work)?;
        Ok(Box::new(MapBatchReader { crew, at: State::at(at.epoch, at.index) }))
    }
}

struct MapBatchReader {
    crew: Crew,
    at: State,
}

impl Reader for MapBatchReader {
    fn read(&mut self) -> Result<Option<Sample>> {
        let read = self.crew.read();
        self.at.advance(&read);
        read
    }

    fn state(&self) -> State {
        self.at.over(self.crew.state())
    }
}
