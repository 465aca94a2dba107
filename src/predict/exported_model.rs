//! Inference with an exported model.

use super::graph_file::{LoadedGraph, read};
use super::{OfflinePredictor, OnnxOptions, Predictor};
use crate::graph::TensorSpec;
use crate::runtime::{Session, SessionOptions};
use std::panic::Location;
use std::path::Path;
use tensorpack_tensor::{HostTensor, Result};

/// A model loaded from a file that [`OfflinePredictor::export`] wrote. It needs none of the code
/// that built it. Dimensions of unknown size, such as the batch, stay dynamic.
pub struct ExportedModel {
    predictor: OfflinePredictor,
    inputs: Vec<TensorSpec>,
}

impl ExportedModel {
    /// Loads a model from a file. A damaged file is an error that describes the damage.
    #[track_caller]
    pub fn load(path: impl AsRef<Path>) -> Result<ExportedModel> {
        ExportedModel::load_with(path, SessionOptions::default())
    }

    /// Like [`ExportedModel::load`], with these session options, such as the device and the number
    /// of threads.
    #[track_caller]
    pub fn load_with(path: impl AsRef<Path>, options: SessionOptions) -> Result<ExportedModel> {
        let (path, caller) = (path.as_ref(), Location::caller());
        let loaded = read(path).and_then(|(graph, tensors)| graph.rebuild(tensors, caller));
        let model = loaded.and_then(|loaded| ExportedModel::from_graph(loaded, options));
        model.map_err(|e| e.within(path.display()))
    }

    fn from_graph(loaded: LoadedGraph, options: SessionOptions) -> Result<ExportedModel> {
        let LoadedGraph { graph, inputs, outputs, variables } = loaded;
        let session = Session::with(graph.freeze()?, options)?;
        for (name, value) in &variables {
            session.write(name, value)?;
        }
        let names = inputs.iter().map(|spec| spec.name.clone()).collect();
        Ok(ExportedModel { predictor: OfflinePredictor::from_session(session, names, outputs)?, inputs })
    }

    /// Returns the input signature, in order.
    pub fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }

    /// Returns the names of the outputs, in order.
    pub fn outputs(&self) -> impl Iterator<Item = &str> {
        self.predictor.outputs.iter().map(|(name, _)| name.as_str())
    }

    /// Writes the model as an ONNX file: see [`OfflinePredictor::export_onnx`].
    pub fn export_onnx(&self, path: impl AsRef<Path>, options: &OnnxOptions) -> Result<()> {
        self.predictor.export_onnx(path, options)
    }

    /// Returns the outputs for these inputs.
    pub fn predict(&self, inputs: &[&HostTensor]) -> Result<Vec<HostTensor>> {
        self.predictor.predict(inputs)
    }
}

impl Predictor for ExportedModel {
    fn predict(&self, inputs: &[&HostTensor]) -> Result<Vec<HostTensor>> {
        ExportedModel::predict(self, inputs)
    }
}
