//! Predictions for a whole data set.

use super::{BatchGroups, Predictor};
use std::sync::Arc;
use tensorpack_dataflow::{DataFlow, Flow, Seed};
use tensorpack_tensor::{HostTensor, Result, Site};

/// Predicts every batch of a dataflow in order, with as many batches at a time as the predictor has
/// towers. The components of a batch are the predictor's inputs.
#[doc(alias = "SimpleDatasetPredictor")]
#[doc(alias = "MultiProcessDatasetPredictor")]
#[doc(alias = "MultiThreadDatasetPredictor")]
pub struct DatasetPredictor<P> {
    predictor: P,
    flow: Flow,
    /// Where the user combined them.
    site: Site,
}

impl<P: Predictor> DatasetPredictor<P> {
    /// Creates a predictor for the batches of `flow`. The error of a batch that does not match the
    /// model has the line of the caller.
    #[track_caller]
    pub fn new(predictor: P, flow: impl DataFlow + 'static) -> DatasetPredictor<P> {
        DatasetPredictor { predictor, flow: Arc::new(flow), site: Site::caller() }
    }

    /// Returns an iterator over the outputs of each batch, computed lazily. It ends after an error.
    #[doc(alias = "get_result")]
    pub fn results(&self) -> Result<Predictions<'_, P>> {
        let groups = BatchGroups::open(&self.flow, Seed::new(0), self.predictor.towers().max(1))?;
        let (predictor, site) = (&self.predictor, self.site);
        Ok(Predictions { predictor, groups, ready: Vec::new().into_iter(), failed: false, site })
    }

    /// Returns the outputs of all batches.
    #[doc(alias = "get_all_result")]
    pub fn all_results(&self) -> Result<Vec<Vec<HostTensor>>> {
        self.results()?.collect()
    }
}

/// The iterator that [`DatasetPredictor::results`] returns.
pub struct Predictions<'a, P> {
    predictor: &'a P,
    groups: BatchGroups,
    /// The outputs of the last group that were not returned yet.
    ready: std::vec::IntoIter<Vec<HostTensor>>,
    failed: bool,
    site: Site,
}

impl<P: Predictor> Iterator for Predictions<'_, P> {
    type Item = Result<Vec<HostTensor>>;

    fn next(&mut self) -> Option<Result<Vec<HostTensor>>> {
        if self.ready.len() == 0 && !self.failed {
            let batches = self.groups.read(u64::MAX);
            let outputs = batches.and_then(|batches| {
                self.predictor.predict_batches(&batches).map_err(|e| self.groups.name(e).at(self.site))
            });
            match outputs {
                Ok(outputs) => self.ready = outputs.into_iter(),
                Err(e) => {
                    self.failed = true;
                    return Some(Err(e));
                }
            }
        }
        self.ready.next().map(Ok)
    }
}
