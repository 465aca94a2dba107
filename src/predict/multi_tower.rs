//! Inference on several batches concurrently.

use super::{ParallelTowers, PredictConfig, Predictor};
use crate::runtime::Session;
use tensorpack_dataflow::Sample;
use tensorpack_tensor::{HostTensor, Result};

/// A model in inference mode with several towers, which share its variables. The towers predict
/// concurrently, each on its own batch and its own thread team. The outputs are bit-identical to
/// those of an [`OfflinePredictor`](super::OfflinePredictor).
#[doc(alias = "DataParallelOfflinePredictor")]
pub struct MultiTowerOfflinePredictor {
    session: Session,
    towers: ParallelTowers,
    outputs: usize,
}

impl MultiTowerOfflinePredictor {
    /// Builds the model once per tower and initializes its variables.
    pub fn new(config: PredictConfig, towers: usize) -> Result<MultiTowerOfflinePredictor> {
        let (session, parts) = config.open("tower", towers)?;
        let outputs = parts.first().map_or(0, |part| part.fetches.len());
        Ok(MultiTowerOfflinePredictor { session, towers: ParallelTowers::new(parts)?, outputs })
    }

    /// Returns the session, to read and write variables.
    pub fn session(&self) -> &Session {
        &self.session
    }
}

impl Predictor for MultiTowerOfflinePredictor {
    /// Returns the outputs for these inputs, computed on the first tower.
    fn predict(&self, inputs: &[&HostTensor]) -> Result<Vec<HostTensor>> {
        let batch: Sample = inputs.iter().copied().cloned().collect();
        let mut outputs = Vec::new();
        self.towers.run(&self.session, &[&batch], &mut outputs)?;
        Ok(outputs)
    }

    fn towers(&self) -> usize {
        self.towers.count()
    }

    fn predict_batches(&self, batches: &[Sample]) -> Result<Vec<Vec<HostTensor>>> {
        let mut all = Vec::new();
        for group in batches.chunks(self.towers()) {
            let group: Vec<&[HostTensor]> = group.iter().map(Vec::as_slice).collect();
            let mut outputs = Vec::new();
            self.towers.run(&self.session, &group, &mut outputs)?;
            all.extend(outputs.chunks(self.outputs).map(<[HostTensor]>::to_vec));
        }
        Ok(all)
    }
}
