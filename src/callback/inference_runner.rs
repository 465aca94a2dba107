//! Runs inference during training.

use super::{Callback, GraphCx, Inferencer, Statistic, TrainCx, When};
use crate::distributed::ProcessGroup;
use crate::graph::{Fetch, Tensor};
use crate::input::no_batch;
use crate::io::Checkpoint;
use crate::predict::{BatchGroups, ParallelTowers, Part};
use crate::tower::TowerContext;
use serde_json::json;
use std::sync::Arc;
use tensorpack_dataflow::{DataFlow, Flow, Seed};
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result, Site};

/// What a process that shares its results calls the signal that it has received.
const SIGNAL: &str = "signal";

/// Runs the model in inference mode over an entire dataflow, each sample once, and reports the
/// statistics of its inferencers. Does not affect training: neither its input nor its counters
/// advance.
#[doc(alias = "DataParallelInferenceRunner")]
pub struct InferenceRunner {
    flow: Flow,
    inferencers: Vec<Box<dyn Inferencer>>,
    scope: String,
    count: usize,
    on_ema: bool,
    with_updates: bool,
    towers: ParallelTowers,
    /// For each tower, the number of fetches of each inferencer.
    counts: Vec<Vec<usize>>,
    outputs: Vec<HostTensor>,
    /// Where the user created this runner.
    site: Site,
}

impl InferenceRunner {
    /// Runs over `flow`, which yields batches with the inputs of the model. The error of a batch that
    /// does not match the model has the line of the caller.
    #[track_caller]
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
            site: Site::caller(),
        }
    }

    /// Adds an inferencer.
    #[must_use]
    pub fn with(mut self, inferencer: impl Inferencer + 'static) -> InferenceRunner {
        self.inferencers.push(Box::new(inferencer));
        self
    }

    /// Sets the number of towers. They run at the same time, each on its own batch. If fewer
    /// batches than towers remain, the first towers take them. Inferencers see every batch once, in
    /// the order of the dataflow, so the statistics are bit-identical to those of one tower. The
    /// number of training towers may differ.
    #[must_use]
    pub fn towers(self, count: usize) -> InferenceRunner {
        InferenceRunner { count, ..self }
    }

    /// Sets the name of the tower. Defaults to `InferenceTower`; each runner needs its own name.
    /// Several towers are numbered: `InferenceTower0` and so on.
    #[must_use]
    pub fn tower_name(self, name: impl Into<String>) -> InferenceRunner {
        InferenceRunner { scope: name.into(), ..self }
    }

    /// Reads the moving averages of the variables, which [`Ema`](crate::optim::Ema) maintains,
    /// instead of the variables. The variables themselves do not change.
    #[must_use]
    pub fn on_ema(self) -> InferenceRunner {
        InferenceRunner { on_ema: true, ..self }
    }

    /// Runs the tower's updates with every batch, for a model that carries state from batch to
    /// batch, such as a recurrent network. Training shares this state: reset it before and after
    /// inference with a [`RunOp`](super::RunOp) on either side. Batches run in sequence, so only
    /// one tower is allowed.
    #[must_use]
    pub fn with_updates(self) -> InferenceRunner {
        InferenceRunner { with_updates: true, ..self }
    }

    /// Runs one pass, or at most `max_batches` of it, and returns the statistics.
    pub(super) fn run_pass(
        &mut self,
        cx: &TrainCx<'_>,
        max_batches: Option<u64>,
    ) -> Result<Vec<(String, f64)>> {
        self.inferencers.iter_mut().for_each(|i| i.start());
        let seed = Seed::new(cx.seed()).derive("inference");
        let processes = self.processes(cx).map_or(1, |group| group.size());
        if let Some(group) = self.processes(cx) {
            let what = format!("runs {}", self.scope);
            group.barrier_between_steps(&what, "", None, cx.session().deadline())?;
        }
        let mut groups = BatchGroups::open(&self.flow, seed, self.towers.count() * processes)?;
        let mut any = false;
        loop {
            let group = groups.read(max_batches.unwrap_or(u64::MAX))?;
            if group.is_empty() {
                break;
            }
            self.check_interrupt(cx)?;
            // Skip empty batches: a mean over no examples is undefined.
            let batches: Vec<&[HostTensor]> =
                group.iter().filter(|b| examples(b) > 0).map(Vec::as_slice).collect();
            if batches.is_empty() {
                continue;
            }
            any = true;
            self.run(cx, &batches).map_err(|e| groups.name(e).at(self.site))?;
        }
        if !any {
            return Err(no_batch().within(&self.scope).at(self.site));
        }
        Ok(self.inferencers.iter_mut().flat_map(|i| i.finish()).collect())
    }

    /// Returns the processes that share the batches, if there are several. Updates carry state from
    /// batch to batch, so every process runs them all.
    fn processes<'a>(&self, cx: &'a TrainCx<'_>) -> Option<&'a Arc<ProcessGroup>> {
        cx.state.group.as_ref().filter(|group| group.size() > 1 && !self.with_updates)
    }

    /// Returns an error if a signal asked this process to end. Processes that share the batches find
    /// out when they share the results.
    fn check_interrupt(&self, cx: &TrainCx<'_>) -> Result<()> {
        match cx.state.group.as_ref().filter(|group| group.size() > 1) {
            Some(group) if self.with_updates => {
                let own = cx.state.signals.signal().unwrap_or(0).to_le_bytes();
                let all = group.all_gather(&own, cx.session().deadline())?;
                let signal = |bytes: &Vec<u8>| bytes[..].try_into().map_or(0, i32::from_le_bytes);
                interrupt(cx, all.iter().map(signal))
            }
            Some(_) => Ok(()),
            None => cx.check_interrupt(),
        }
    }

    /// Runs one tower per batch and passes the batches to the inferencers in order.
    fn run(&mut self, cx: &TrainCx<'_>, batches: &[&[HostTensor]]) -> Result<()> {
        match self.processes(cx) {
            None => self.towers.run(cx.session(), batches, &mut self.outputs)?,
            Some(group) => self.outputs = self.run_share(cx, group, batches)?,
        }
        let mut values = self.outputs.as_slice();
        for (batch, counts) in batches.iter().zip(self.counts.iter().cycle()) {
            for (inferencer, &count) in self.inferencers.iter_mut().zip(counts) {
                let (own, rest) = values.split_at(count);
                inferencer.batch(own, examples(batch))?;
                values = rest;
            }
        }
        Ok(())
    }

    /// Runs the towers of this process on their batches, and returns the values of all batches: every
    /// process has them, so that all decide the same.
    fn run_share(
        &self,
        cx: &TrainCx<'_>,
        group: &Arc<ProcessGroup>,
        batches: &[&[HostTensor]],
    ) -> Result<Vec<HostTensor>> {
        let (first, count) = (group.rank() * self.towers.count(), self.towers.count());
        let own = batches.get(first..).map_or(&[][..], |rest| &rest[..count.min(rest.len())]);
        let mut values = Vec::new();
        if !own.is_empty() {
            self.towers.run(cx.session(), own, &mut values)?;
        }
        group.rendezvous().set_activity("validating");
        let tensors = values.into_iter().enumerate().map(|(i, value)| (i.to_string(), value)).collect();
        let state = json!({ SIGNAL: cx.state.signals.signal() });
        let own = Checkpoint { global_step: 0, tensors, input_tensors: Vec::new(), state };
        let (mut all, mut signals) = (Vec::new(), Vec::new());
        for bytes in group.gather_all(&own.to_bytes()?, cx.session().deadline())? {
            let Checkpoint { tensors: mut of_rank, state, .. } = Checkpoint::from_bytes(&bytes)?;
            of_rank.sort_by_key(|(name, _)| name.parse::<usize>().unwrap_or(0));
            all.extend(of_rank.into_iter().map(|(_, value)| value));
            signals.push(state[SIGNAL].as_i64().and_then(|signal| i32::try_from(signal).ok()).unwrap_or(0));
        }
        interrupt(cx, signals)?;
        Ok(all)
    }
}

/// Ends all processes by the same signal if one of them has received any.
fn interrupt(cx: &TrainCx<'_>, signals: impl IntoIterator<Item = i32>) -> Result<()> {
    if let Some(signal) = signals.into_iter().max().filter(|signal| *signal != 0) {
        cx.state.interrupt.set(signal);
    }
    cx.check_interrupt()
}

/// Returns the number of examples in a batch.
fn examples(batch: &[HostTensor]) -> usize {
    batch.first().and_then(|t| t.sizes().first().copied()).unwrap_or(1)
}

impl Callback for InferenceRunner {
    fn name(&self) -> String {
        format!("InferenceRunner({})", self.scope)
    }

    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        if self.with_updates && self.count != 1 {
            let why = format!("{} runs updates, which needs exactly one tower", self.scope);
            return Err(Error::argument(why).note("remove towers(..) or with_updates()"));
        }
        let t = TowerContext::inference(g.graph());
        let t = if self.on_ema { t.averaged() } else { t };
        let names = self.inferencers.iter().flat_map(|i| i.names()).collect::<Vec<_>>();
        if let Some(name) = names.iter().enumerate().find_map(|(i, n)| names[..i].contains(n).then_some(n)) {
            let why = format!("two inferencers of {} produce the statistic {name:?}", self.scope);
            return Err(Error::argument(why).note("give one of them another prefix(..)"));
        }
        let towers = g.tower_func(&self.scope)?;
        let first = if self.count > 1 { format!("{}0", self.scope) } else { self.scope.clone() };
        if towers.towers().get(&first).is_some() {
            let why = format!("a tower named {first:?} already exists");
            return Err(Error::new(ErrorKind::Name, why)
                .note("a second InferenceRunner needs a name of its own: set it with tower_name(..)"));
        }
        let towers = towers.infer_towers(&t, &self.scope, self.count)?;
        let mut parts = Vec::new();
        for (i, tower) in towers.iter().enumerate() {
            let tensors = |inferencer: &mut Box<dyn Inferencer>| inferencer.fetches(tower);
            // Operations that an inferencer adds belong to the tower.
            let wanted: Vec<Vec<Tensor>> = g
                .graph()
                .in_tower(i, None, || self.inferencers.iter_mut().map(tensors).collect::<Result<_>>())?;
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
        for (name, value) in self.run_pass(cx, None)? {
            cx.put_scalar(&name, value);
        }
        Ok(())
    }

    fn produces(&self) -> Vec<Statistic> {
        let names = self.inferencers.iter().flat_map(|i| i.names());
        names.map(|name| Statistic::new(name, When::Epoch)).collect()
    }
}
