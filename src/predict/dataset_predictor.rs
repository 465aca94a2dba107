//! Predictions for all of a data set.

use super::{BatchGroups, Predictor};
use std::sync::Arc;
use tensorpack_dataflow::{DataFlow, Flow, Seed};
use tensorpack_tensor::{HostTensor, Result};

/// Predicts every batch of a dataflow, in its order, with any predictor: as many at a time as the predictor has towers.
/// The components of a batch are the predictor's inputs.
#[doc(alias = "SimpleDatasetPredictor")]
#[doc(alias = "MultiProcessDatasetPredictor")]
#[doc(alias = "MultiThreadDatasetPredictor")]
pub struct DatasetPredictor<P> {
    predictor: P,
    flow: Flow,
}

impl<P: Predictor> DatasetPredictor<P> {
    /// Of this predictor and this dataflow.
    pub fn new(predictor: P, flow: impl DataFlow + 'static) -> DatasetPredictor<P> {
        DatasetPredictor { predictor, flow: Arc::new(flow) }
    }

    /// The outputs of one batch after the other, made as they are asked for. After an error there are no more.
    #[doc(alias = "get_result")]
    pub fn results(&self) -> Result<Predictions<'_, P>> {
        let groups = BatchGroups::open(&self.flow, Seed::new(0), self.predictor.towers().max(1))?;
        Ok(Predictions { predictor: &self.predictor, groups, made: Vec::new().into_iter(), failed: false })
    }

    /// The outputs of all batches.
    #[doc(alias = "get_all_result")]
    pub fn all_results(&self) -> Result<Vec<Vec<HostTensor>>> {
        self.results()?.collect()
    }
}

/// What [`DatasetPredictor::results`] gives.
pub struct Predictions<'a, P> {
    predictor: &'a P,
    groups: BatchGroups,
    /// Of the batches that were predicted together, what was not yet asked for.
    made: std::vec::IntoIter<Vec<HostTensor>>,
    failed: bool,
}

impl<P: Predictor> Iterator for Predictions<'_, P> {
    type Item = Result<Vec<HostTensor>>;

    fn next(&mut self) -> Option<Result<Vec<HostTensor>>> {
        if self.made.len() == 0 && !self.failed {
            let batches = self.groups.read(u64::MAX);
            let made = batches.and_then(|batches| {
                self.predictor.predict_batches(&batches).map_err(|e| self.groups.name(e))
            });
            match made {
                Ok(made) => self.made = made.into_iter(),
                Err(e) => {
                    self.failed = true;
                    return Some(Err(e));
                }
            }
        }
        self.made.next().map(Ok)
    }
}
