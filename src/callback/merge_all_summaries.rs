//! Reports all summaries once per epoch.

use super::{Callback, FetchHandle, GraphCx, RunCx, Statistic, When};
use crate::graph::{IMAGE_SUMMARIES, SUMMARIES};
use crate::runtime::Cadence;
use tensorpack_tensor::Result;

/// Reports every tensor of the summary collections with the last run of an epoch, and optionally
/// every few steps: scalars as they are, others as histograms or images.
#[derive(Debug, Default)]
pub struct MergeAllSummaries {
    every_steps: Option<u64>,
    summaries: Vec<Summary>,
}

#[derive(Debug)]
struct Summary {
    name: String,
    kind: Kind,
    /// The fetch at the end of epochs, and the one every few steps.
    fetched: Vec<FetchHandle>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Scalar,
    Histogram,
    Image,
}

impl MergeAllSummaries {
    /// Also reports every `steps` steps.
    #[must_use]
    pub fn every_steps(self, steps: u64) -> MergeAllSummaries {
        MergeAllSummaries { every_steps: Some(steps), ..self }
    }
}

impl Callback for MergeAllSummaries {
    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        let cadences = std::iter::once(Cadence::EveryEpoch).chain(self.every_steps.map(Cadence::EverySteps));
        let plain = g.summaries(SUMMARIES).into_iter().map(|(name, t)| {
            let kind = if t.rank() == 0 { Kind::Scalar } else { Kind::Histogram };
            (name, t, kind)
        });
        let images = g.summaries(IMAGE_SUMMARIES).into_iter().map(|(name, t)| (name, t, Kind::Image));
        for (name, tensor, kind) in plain.chain(images).collect::<Vec<_>>() {
            let fetched = cadences.clone().map(|cadence| g.fetch(&tensor, cadence)).collect();
            self.summaries.push(Summary { name, kind, fetched });
        }
        Ok(())
    }

    fn after_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        for Summary { name, kind, fetched } in &self.summaries {
            let Some(value) = fetched.iter().find_map(|f| cx.value(*f)).cloned() else { continue };
            match kind {
                Kind::Scalar => cx.put_scalar(name, value.to_scalar()?),
                Kind::Histogram => cx.put_histogram(name, &value),
                Kind::Image => cx.put_image(name, &value)?,
            }
        }
        Ok(())
    }

    fn produces(&self) -> Vec<Statistic> {
        let scalars = self.summaries.iter().filter(|s| s.kind == Kind::Scalar);
        scalars.map(|s| Statistic::new(s.name.as_str(), When::Run)).collect()
    }
}
