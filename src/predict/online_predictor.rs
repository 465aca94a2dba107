//! Inference with the current weights during training.

use super::{ParallelTowers, Part};
use crate::runtime::Session;
use crate::tower::{TowerContext, TowerFunc};
use tensorpack_tensor::{Error, HostTensor, Result, Site};

/// A tower of the model in inference mode, in the graph that is trained. It shares the variables of
/// the training towers, so it predicts with their current values.
///
/// `GraphCx::predictor` creates one for a callback, and `get_predictor` of a trainer for any other
/// part of a training program.
#[derive(Debug)]
pub struct OnlinePredictor {
    tower: ParallelTowers,
}

impl OnlinePredictor {
    /// Builds the tower.
    pub(crate) fn new(
        model: &mut TowerFunc,
        t: &TowerContext,
        inputs: &[&str],
        outputs: &[&str],
    ) -> Result<OnlinePredictor> {
        if outputs.is_empty() {
            return Err(Error::argument("a predictor needs at least one output"));
        }
        let names = (0..).map(|i| if i == 0 { "predict".to_string() } else { format!("predict{i}") });
        let mut names = names.skip_while(|name| model.towers().get(name).is_some());
        let scope = names.next().unwrap_or_default();
        let [inputs, outputs] = [inputs, outputs].map(|names| names.iter().map(|s| s.to_string()).collect());
        let (inputs, outputs): (Vec<String>, Vec<String>) = (inputs, outputs);
        let towers = model.infer_towers(t, &scope, 1)?;
        let parts = towers.iter().map(|tower| Part::of_tower(tower, Some(&inputs), &outputs));
        Ok(OnlinePredictor { tower: ParallelTowers::new(parts.collect::<Result<_>>()?)? })
    }

    /// Returns the outputs for these inputs, both in the order in which they were named, with the
    /// current variables of the session that trains the model, `TrainCx::session`.
    #[track_caller]
    pub fn predict(&self, session: &Session, inputs: &[&HostTensor]) -> Result<Vec<HostTensor>> {
        let caller = Site::caller();
        let batch: Vec<HostTensor> = inputs.iter().copied().cloned().collect();
        let mut outputs = Vec::new();
        self.tower.run(session, &[&batch], &mut outputs).map_err(|e| e.at(caller))?;
        Ok(outputs)
    }
}
