//! Inference during training.

use super::{Callback, GraphCx, Inferencer, Statistic, TrainCx, When};
use crate::graph::{Fetch, Tensor};
use crate::predict::{BatchGroups, ParallelTowers, Part};
use crate::tower::TowerContext;
use std::sync::Arc;
use tensorpack_dataflow::{DataFlow, Flow, Seed};
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// Runs the model in inference mode over a whole dataflow, each sample once, and puts what its inferencers make of the
/// results. Training does not notice: neither its input nor its counters move.
#[doc(alias = "DataParallelInferenceRunner")]
pub struct InferenceRunner {
    flow: Flow,
    inferencers: Vec<Box<dyn Inferencer>>,
    scope: String,
    count: usize,
    on_ema: bool,
    with_updates: bool,
    towers: ParallelTowers,
    /// For each tower, how much of what it fetches belongs to each inferencer.
    counts: Vec<Vec<usize>>,
    outputs: Vec<HostTensor>,
}

impl InferenceRunner {
    /// Over this dataflow, of batches as the model takes them.
    pub fn new<I: Inferencer + 'static>(
        flow: impl DataFlow + 'static,
        inferencers: impl IntoIterator<Item = I>,
    ) -> InferenceRunner {
        let inferencers = inferencers.into_iter().map(|i| Box::new(i) as Box<dyn Inferencer>).collect();
        InferenceRunner {
            flow: Arc::new(flow),
            inferencers,
            scope: "InferenceTower".into(),
            count: 1,
            on_ema: false,
            with_updates: false,
            towers: ParallelTowers::default(),
            counts: Vec::new(),
            outputs: Vec::new(),
        }
    }

    /// One more inferencer.
    #[must_use]
    pub fn with(mut self, inferencer: impl Inferencer + 'static) -> InferenceRunner {
        self.inferencers.push(Box::new(inferencer));
        self
    }

    /// With this many towers, which run at the same time, each on a batch of its own. Where fewer batches than towers
    /// remain, the first towers take them. Inferencers see every batch once, in the order of the dataflow, so the
    /// statistics are those of one tower, to the bit. Training may have any other number of towers.
    #[must_use]
    pub fn towers(self, count: usize) -> InferenceRunner {
        InferenceRunner { count, ..self }
    }

    /// With its tower under another name than `InferenceTower`: two runners need two names. Several towers are numbered:
    /// `InferenceTower0` and so on.
    #[must_use]
    pub fn tower_name(self, name: impl Into<String>) -> InferenceRunner {
        InferenceRunner { scope: name.into(), ..self }
    }

    /// With the moving averages of the variables in their place, which an optimizer in [`Ema`](crate::optim::Ema) keeps.
    /// The tower reads them; the variables themselves stay as they are.
    #[must_use]
    pub fn on_ema(self) -> InferenceRunner {
        InferenceRunner { on_ema: true, ..self }
    }

    /// With the updates of its tower run along with every batch, for a model that carries something over from batch to
    /// batch: the state of a recurrent net. Such a state is the training's too: let it begin anew before and after, with a
    /// [`RunOp`](super::RunOp) on either side. It follows one batch after the other, so there can be only one tower.
    #[must_use]
    pub fn with_updates(self) -> InferenceRunner {
        InferenceRunner { with_updates: true, ..self }
    }

    /// One pass, or its first few batches; returns the statistics.
    pub(super) fn pass(&mut self, cx: &TrainCx<'_>, most: Option<u64>) -> Result<Vec<(String, f64)>> {
        self.inferencers.iter_mut().for_each(|i| i.start());
        let seed = Seed::new(cx.seed()).derive("inference");
        let mut groups = BatchGroups::open(&self.flow, seed, self.towers.count())?;
        let mut any = false;
        loop {
            let group = groups.read(most.unwrap_or(u64::MAX))?;
            if group.is_empty() {
                break;
            }
            cx.check_interrupt()?;
            // A batch without examples has nothing to count, and the mean of nothing does not exist.
            let batches: Vec<&[HostTensor]> =
                group.iter().filter(|b| examples(b) > 0).map(Vec::as_slice).collect();
            if batches.is_empty() {
                continue;
            }
            any = true;
            self.run(cx, &batches).map_err(|e| groups.name(e))?;
        }
        if !any {
            return Err(Error::new(ErrorKind::Data, "the dataflow has no sample"));
        }
        Ok(self.inferencers.iter_mut().flat_map(|i| i.finish()).collect())
    }

    /// Runs as many towers as there are batches, and shows the inferencers one after the other.
    fn run(&mut self, cx: &TrainCx<'_>, batches: &[&[HostTensor]]) -> Result<()> {
        self.towers.run(cx.session(), batches, &mut self.outputs)?;
        let mut values = self.outputs.as_slice();
        for (batch, counts) in batches.iter().zip(&self.counts) {
            for (inferencer, &count) in self.inferencers.iter_mut().zip(counts) {
                let (own, rest) = values.split_at(count);
                inferencer.batch(own, examples(batch))?;
                values = rest;
            }
        }
        Ok(())
    }
}

/// How many examples a batch has.
fn examples(batch: &[HostTensor]) -> usize {
    batch.first().and_then(|t| t.sizes().first().copied()).unwrap_or(1)
}

impl Callback for InferenceRunner {
    fn name(&self) -> String {
        format!("InferenceRunner({})", self.scope)
    }

    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        if self.with_updates && self.count != 1 {
            let why = format!("{} has updates, which follow one batch after the other", self.scope);
            return Err(Error::argument(why).note("give it one tower"));
        }
        let t = TowerContext::inference(g.graph());
        let t = if self.on_ema { t.averaged() } else { t };
        let towers = g.tower_func(&self.scope)?.infer_towers(&t, &self.scope, self.count)?;
        let mut parts = Vec::new();
        for (i, tower) in towers.iter().enumerate() {
            let tensors = |inferencer: &mut Box<dyn Inferencer>| inferencer.fetches(tower);
            // What an inferencer adds to a tower runs with it.
            let wanted: Vec<Vec<Tensor>> = g
                .graph()
                .in_tower(i, false, || self.inferencers.iter_mut().map(tensors).collect::<Result<_>>())?;
            self.counts.push(wanted.iter().map(Vec::len).collect());
            let updates = tower.updates().iter().filter(|_| self.with_updates).map(Fetch::from);
            parts.push(Part {
                inputs: tower.inputs().iter().map(|(_, t)| t.name()).collect(),
                fetches: wanted.iter().flatten().map(Fetch::from).chain(updates).collect(),
            });
        }
        self.towers = ParallelTowers::new(parts).map_err(|e| e.within(&self.scope))?;
        Ok(())
    }

    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        for (name, value) in self.pass(cx, None)? {
            cx.put_scalar(&name, value);
        }
        Ok(())
    }

    fn makes(&self) -> Vec<Statistic> {
        let names = self.inferencers.iter().flat_map(|i| i.names());
        names.map(|name| Statistic::new(name, When::Epoch)).collect()
    }
}
