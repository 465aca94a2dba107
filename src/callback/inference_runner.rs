//! Inference during training.

use super::{Callback, GraphCx, Inferencer, Statistic, TrainCx, When};
use crate::graph::Fetch;
use crate::runtime::{IntoFetch, Prepared};
use std::sync::Arc;
use tensorpack_dataflow::{DataFlow, Flow, Seed, State};
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// Runs the model in inference mode over a whole dataflow, each sample once, and puts what its inferencers make of the
/// results. Training does not notice: neither its input nor its counters move.
pub struct InferenceRunner {
    flow: Flow,
    inferencers: Vec<Box<dyn Inferencer>>,
    scope: String,
    /// What is fetched, and how much of it belongs to each inferencer.
    fetches: Vec<Fetch>,
    counts: Vec<usize>,
    inputs: Vec<String>,
    prepared: Option<Prepared>,
    outputs: Vec<HostTensor>,
    on_ema: bool,
    with_updates: bool,
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
            fetches: Vec::new(),
            counts: Vec::new(),
            inputs: Vec::new(),
            prepared: None,
            outputs: Vec::new(),
            on_ema: false,
            with_updates: false,
        }
    }

    /// One more inferencer.
    #[must_use]
    pub fn with(mut self, inferencer: impl Inferencer + 'static) -> InferenceRunner {
        self.inferencers.push(Box::new(inferencer));
        self
    }

    /// With its tower under another name than `InferenceTower`: two runners need two names.
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
    /// batch: the state of a recurrent net. Such a state is the training's too; see to it that it begins anew before
    /// and after, with a [`RunOp`](super::RunOp) on either side.
    #[must_use]
    pub fn with_updates(self) -> InferenceRunner {
        InferenceRunner { with_updates: true, ..self }
    }

    /// One pass, or its first few batches; returns the statistics.
    pub(super) fn pass(&mut self, cx: &TrainCx<'_>, most: Option<u64>) -> Result<Vec<(String, f64)>> {
        self.inferencers.iter_mut().for_each(|i| i.start());
        let mut reader = self.flow.open(Seed::new(cx.seed()).of("inference"), &State::start())?;
        let mut batches = 0;
        while most.is_none_or(|most| batches < most)
            && let Some(sample) = reader.read()?
        {
            cx.check_interrupt()?;
            self.batch(cx, &sample).map_err(|e| e.within(format!("batch {batches}")))?;
            batches += 1;
        }
        if batches == 0 {
            return Err(Error::new(ErrorKind::Data, "the dataflow has no sample"));
        }
        Ok(self.inferencers.iter_mut().flat_map(|i| i.finish()).collect())
    }

    fn batch(&mut self, cx: &TrainCx<'_>, sample: &[HostTensor]) -> Result<()> {
        if sample.len() != self.inputs.len() {
            return Err(Error::new(
                ErrorKind::Data,
                format!(
                    "a sample has {} components, but the model takes {} inputs",
                    sample.len(),
                    self.inputs.len()
                ),
            ));
        }
        let prepared = match &self.prepared {
            Some(prepared) => prepared,
            None => {
                let fetches: Vec<&dyn IntoFetch> = self.fetches.iter().map(|f| f as &dyn IntoFetch).collect();
                self.prepared.insert(cx.session().prepare(&fetches)?)
            }
        };
        let feeds: Vec<(&str, &HostTensor)> = self.inputs.iter().map(String::as_str).zip(sample).collect();
        cx.session().run_prepared(prepared, &feeds, &mut self.outputs)?;
        let rows = sample.first().and_then(|t| t.sizes().first().copied()).unwrap_or(1);
        let mut from = 0;
        for (inferencer, count) in self.inferencers.iter_mut().zip(&self.counts) {
            inferencer.batch(&self.outputs[from..from + count], rows)?;
            from += count;
        }
        Ok(())
    }
}

impl Callback for InferenceRunner {
    fn name(&self) -> String {
        format!("InferenceRunner({})", self.scope)
    }

    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        let tower = match self.on_ema {
            true => g.averaged_tower(&self.scope)?,
            false => g.inference_tower(&self.scope)?,
        };
        self.inputs = tower.inputs().iter().map(|(_, t)| t.name()).collect();
        for inferencer in &mut self.inferencers {
            let tensors = inferencer.fetches(&tower)?;
            self.counts.push(tensors.len());
            self.fetches.extend(tensors.iter().map(Fetch::from));
        }
        if self.with_updates {
            self.fetches.extend(tower.updates().iter().map(Fetch::from));
        }
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
