//! Running a model from its file alone.

use super::written::{Rebuilt, read};
use super::{OfflinePredictor, Predictor};
use crate::graph::TensorSpec;
use crate::runtime::{Session, SessionOptions};
use std::panic::Location;
use std::path::Path;
use tensorpack_tensor::{HostTensor, Result};

/// A model that [`OfflinePredictor::export`] wrote. It needs none of the code that built it, and takes batches of any
/// size where the model did.
pub struct ExportedModel {
    predictor: OfflinePredictor,
    inputs: Vec<TensorSpec>,
}

impl ExportedModel {
    /// Reads a file. A damaged one is an error that says what is wrong with it.
    #[track_caller]
    pub fn load(path: impl AsRef<Path>) -> Result<ExportedModel> {
        ExportedModel::load_with(path, SessionOptions::default())
    }

    /// [`ExportedModel::load`], to run on this device, with so many threads.
    #[track_caller]
    pub fn load_with(path: impl AsRef<Path>, options: SessionOptions) -> Result<ExportedModel> {
        let (path, caller) = (path.as_ref(), Location::caller());
        let rebuilt = read(path).and_then(|(graph, tensors)| graph.rebuild(tensors, caller));
        let model = rebuilt.and_then(|rebuilt| ExportedModel::of(rebuilt, options));
        model.map_err(|e| e.within(path.display()))
    }

    fn of(rebuilt: Rebuilt, options: SessionOptions) -> Result<ExportedModel> {
        let Rebuilt { graph, inputs, outputs, variables } = rebuilt;
        let session = Session::with(graph.freeze()?, options)?;
        for (name, value) in &variables {
            session.write(name, value)?;
        }
        let names = inputs.iter().map(|spec| spec.name.clone()).collect();
        Ok(ExportedModel { predictor: OfflinePredictor::of(session, names, outputs)?, inputs })
    }

    /// What it takes, in order.
    pub fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }

    /// The names of what it gives, in order.
    pub fn outputs(&self) -> impl Iterator<Item = &str> {
        self.predictor.outputs.iter().map(|(name, _)| name.as_str())
    }

    /// The outputs for these inputs.
    pub fn predict(&self, inputs: &[&HostTensor]) -> Result<Vec<HostTensor>> {
        self.predictor.predict(inputs)
    }
}

impl Predictor for ExportedModel {
    fn predict(&self, inputs: &[&HostTensor]) -> Result<Vec<HostTensor>> {
        ExportedModel::predict(self, inputs)
    }
}
