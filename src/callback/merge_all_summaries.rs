//! Summaries, once an epoch.

use super::{Callback, Fetched, GraphCx, HookCx, Statistic, When};
use crate::graph::{IMAGE_SUMMARIES, SUMMARIES};
use crate::runtime::Cadence;
use tensorpack_tensor::Result;

/// Puts every tensor of the summary collections with the last run of an epoch (or every few steps): scalars as they
/// are, others as histograms or images.
#[derive(Debug, Default)]
pub struct MergeAllSummaries {
    every_steps: Option<u64>,
    summaries: Vec<(String, Fetched, Kind)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Scalar,
    Histogram,
    Image,
}

impl MergeAllSummaries {
    /// Every `steps` steps, too.
    #[must_use]
    pub fn every_steps(self, steps: u64) -> MergeAllSummaries {
        MergeAllSummaries { every_steps: Some(steps), ..self }
    }
}

impl Callback for MergeAllSummaries {
    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        let cadence = self.every_steps.map_or(Cadence::EveryEpoch, Cadence::EverySteps);
        let plain = g.summaries(SUMMARIES).into_iter().map(|(name, t)| {
            let kind = if t.rank() == 0 { Kind::Scalar } else { Kind::Histogram };
            (name, t, kind)
        });
        let images = g.summaries(IMAGE_SUMMARIES).into_iter().map(|(name, t)| (name, t, Kind::Image));
        for (name, tensor, kind) in plain.chain(images).collect::<Vec<_>>() {
            let fetched = g.fetch(&tensor, cadence);
            self.summaries.push((name, fetched, kind));
        }
        Ok(())
    }

    fn after_run(&mut self, cx: &mut HookCx<'_>) -> Result<()> {
        for (name, fetched, kind) in &self.summaries {
            let Some(value) = cx.value(*fetched).cloned() else { continue };
            match kind {
                Kind::Scalar => cx.put_scalar(name, value.to_scalar()?),
                Kind::Histogram => cx.put_histogram(name, &value),
                Kind::Image => cx.put_image(name, &value)?,
            }
        }
        Ok(())
    }

    fn makes(&self) -> Vec<Statistic> {
        let scalars = self.summaries.iter().filter(|(_, _, kind)| *kind == Kind::Scalar);
        scalars.map(|(name, ..)| Statistic::new(name.as_str(), When::Run)).collect()
    }
}
