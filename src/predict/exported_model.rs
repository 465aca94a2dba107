//! Inference with an exported model.

use super::graph_file::{LoadedGraph, ModelFile, read};
use super::{OfflinePredictor, OnnxOptions, Predictor};
use crate::graph::{Fetch, Graph, Init, Spec, Tensor, TensorSpec, VariableSpec, nearest_names};
use crate::io::onnx::{OnnxFile, is_onnx};
use crate::io::safetensors::Metadata;
use crate::runtime::{Session, SessionOptions};
use crate::tower::TowerContext;
use serde::de::DeserializeOwned;
use std::panic::Location;
use std::path::Path;
use tensorpack_tensor::{Dim, Error, ErrorKind, HostTensor, Result};

/// A model loaded from a file that [`OfflinePredictor::export`] wrote, or from an ONNX file, whose
/// name ends with `.onnx`. It needs none of the code that built it. Dimensions of unknown size, such
/// as the batch, stay dynamic.
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
        ExportedModel::load_sized(path, &[], options)
    }

    /// Like [`ExportedModel::load_with`], with these sizes of inputs, by name. Some ONNX models
    /// compute with sizes in a way that needs them to be known while the graph is built.
    #[track_caller]
    pub fn load_sized(
        path: impl AsRef<Path>,
        sizes: &[(&str, &[usize])],
        options: SessionOptions,
    ) -> Result<ExportedModel> {
        let (path, caller) = (path.as_ref(), Location::caller());
        let loaded = match is_onnx(path) {
            true => load_onnx(path, sizes, caller),
            false => read(path).and_then(|ModelFile { mut graph, tensors, metadata }| {
                for input in &mut graph.inputs {
                    fix_sizes(&input.name, &mut input.sizes, sizes)?;
                }
                Ok(LoadedGraph { metadata, ..graph.rebuild(tensors, caller)? })
            }),
        };
        let model = loaded.and_then(|loaded| {
            let has = |name: &str| loaded.inputs.iter().any(|spec| spec.name == name);
            if let Some((name, _)) = sizes.iter().find(|(name, _)| !has(name)) {
                let known = loaded.inputs.iter().map(|spec| spec.name.as_str());
                let why = format!("the model has no input named {name:?}");
                return Err(Error::argument(why).note(nearest_names("inputs", name, known)));
            }
            ExportedModel::from_graph(loaded, options)
        });
        model.map_err(|e| e.within(path.display()))
    }

    pub(super) fn from_graph(loaded: LoadedGraph, options: SessionOptions) -> Result<ExportedModel> {
        let LoadedGraph { graph, inputs, outputs, variables, metadata } = loaded;
        let session = Session::with(graph.freeze()?, options)?;
        for (name, value) in &variables {
            session.write(name, value)?;
        }
        let names = inputs.iter().map(|spec| spec.name.clone()).collect();
        let mut predictor = OfflinePredictor::from_session(session, names, outputs)?;
        predictor.metadata = metadata;
        Ok(ExportedModel { predictor, inputs })
    }

    /// Returns the input signature, in order.
    pub fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }

    /// Returns the names of the outputs, in order.
    pub fn outputs(&self) -> impl Iterator<Item = &str> {
        self.predictor.outputs.iter().map(|(name, _)| name.as_str())
    }

    /// Returns the output signature, in order. Sizes that depend on the inputs are `None`.
    #[track_caller]
    pub fn output_signature(&self) -> Vec<TensorSpec> {
        let mut specs = Vec::new();
        for (name, fetch) in &self.predictor.outputs {
            let spec = self.output_spec(fetch);
            let sizes: Vec<Option<usize>> = spec.shape.iter().map(|d| d.known()).collect();
            specs.push(TensorSpec::new(name, spec.dtype, sizes));
        }
        specs
    }

    fn output_spec(&self, fetch: &Fetch) -> &Spec {
        let node = self.predictor.session.graph().node(fetch.node);
        &node.outputs[fetch.output.unwrap_or(0) as usize]
    }

    /// Returns whether the examples of several requests can be predicted in one batch: every input
    /// has a first dimension of any size, and that of every output is the same.
    pub fn is_batched(&self) -> bool {
        let graph = self.predictor.session.graph();
        let first = |name: &String| {
            let spec = &graph.node(graph.fetch(name).ok()?.node).outputs[0];
            spec.shape.iter().next().copied().filter(|dim| dim.known().is_none())
        };
        let Some(batch) = self.predictor.inputs.iter().map(first).collect::<Option<Vec<Dim>>>() else {
            return false;
        };
        let has_rows = |(_, fetch): &(String, Fetch)| {
            self.output_spec(fetch).shape.iter().next().is_some_and(|dim| batch.contains(dim))
        };
        !batch.is_empty() && self.predictor.outputs.iter().all(has_rows)
    }

    /// Returns the metadata of the model: see [`OfflinePredictor::with_metadata`].
    pub fn metadata(&self) -> &Metadata {
        &self.predictor.metadata
    }

    /// Returns an entry of the metadata that was written as JSON. A missing entry is an error that
    /// names the closest ones.
    pub fn json_metadata<T: DeserializeOwned>(&self, key: &str) -> Result<T> {
        let text = self.metadata().get(key).ok_or_else(|| {
            let known = self.metadata().keys().map(String::as_str);
            let why = format!("the model has no metadata {key:?}");
            Error::new(ErrorKind::Name, why).note(nearest_names("keys", key, known))
        })?;
        serde_json::from_str(text)
            .map_err(|e| Error::new(ErrorKind::Data, format!("the metadata {key:?} cannot be read: {e}")))
    }

    /// Returns the session that runs the model, as for its profile.
    pub fn session(&self) -> &Session {
        &self.predictor.session
    }

    /// Returns the model with batch normalization folded into weights: see
    /// [`OfflinePredictor::folded`].
    #[track_caller]
    pub fn folded(&self) -> Result<ExportedModel> {
        self.predictor.folded()
    }

    /// Returns the model with large layers that multiply 8-bit integers: see
    /// [`OfflinePredictor::int8`].
    #[track_caller]
    pub fn int8(&self) -> Result<ExportedModel> {
        self.predictor.int8()
    }

    /// Writes the model to a file: see [`OfflinePredictor::export`].
    pub fn export(&self, path: impl AsRef<Path>) -> Result<()> {
        self.predictor.export(path)
    }

    /// Writes the model to a file with weights of 8 bits: see [`OfflinePredictor::export_int8`].
    pub fn export_int8(&self, path: impl AsRef<Path>) -> Result<()> {
        self.predictor.export_int8(path)
    }

    /// Writes the model as an ONNX file: see [`OfflinePredictor::export_onnx`].
    pub fn export_onnx(&self, path: impl AsRef<Path>, options: &OnnxOptions) -> Result<()> {
        self.predictor.export_onnx(path, options)
    }

    /// Returns the outputs for these inputs. An error about an input that does not match the model has
    /// the line of the caller.
    #[track_caller]
    pub fn predict(&self, inputs: &[&HostTensor]) -> Result<Vec<HostTensor>> {
        self.predictor.predict(inputs)
    }
}

/// Replaces the sizes of the input `name` by those that `given` has for it.
fn fix_sizes(name: &str, sizes: &mut [Option<usize>], given: &[(&str, &[usize])]) -> Result<()> {
    let Some((_, fixed)) = given.iter().find(|(other, _)| *other == name) else { return Ok(()) };
    let fits = |(own, fixed): (&Option<usize>, &usize)| own.is_none_or(|n| n == *fixed);
    if sizes.len() != fixed.len() || !sizes.iter().zip(*fixed).all(fits) {
        let own: Vec<String> = sizes.iter().map(|n| n.map_or("?".into(), |n| n.to_string())).collect();
        let why = format!("input {name} is [{}] and cannot have the sizes {fixed:?}", own.join(", "));
        return Err(Error::shape(why));
    }
    sizes.iter_mut().zip(*fixed).for_each(|(size, &n)| *size = Some(n));
    Ok(())
}

/// Builds the graph of an ONNX model.
fn load_onnx(
    path: &Path,
    sizes: &[(&str, &[usize])],
    caller: &'static Location<'static>,
) -> Result<LoadedGraph> {
    let graph = Graph::new();
    graph.called_from(caller, || {
        let file = OnnxFile::read(path)?;
        let mut inputs = file.inputs().to_vec();
        for input in &mut inputs {
            fix_sizes(&input.name, &mut input.sizes, sizes)?;
        }
        let t = TowerContext::inference(&graph);
        let fed: Vec<Tensor> = inputs.iter().map(|spec| graph.placeholder(spec)).collect();
        graph.first_error()?;
        let variable = |name: &str, value: HostTensor, is_trainable: bool| {
            let spec = VariableSpec::new(name, value.sizes()).dtype(value.dtype());
            let spec = if is_trainable { spec } else { spec.model() };
            t.variable(spec.init(Init::Value(value))).value().clone()
        };
        let outputs = file.build(&t, &fed.iter().collect::<Vec<_>>(), &variable)?;
        let outputs = file.outputs().iter().zip(&outputs).map(|(name, y)| (name.clone(), Fetch::from(y)));
        let (outputs, metadata) = (outputs.collect(), file.metadata().clone());
        Ok(LoadedGraph { graph: graph.clone(), inputs, outputs, variables: Vec::new(), metadata })
    })
}

impl Predictor for ExportedModel {
    fn predict(&self, inputs: &[&HostTensor]) -> Result<Vec<HostTensor>> {
        ExportedModel::predict(self, inputs)
    }
}
