//! Inference with an exported model.

use super::graph_file::{LoadedGraph, read};
use super::{OfflinePredictor, OnnxOptions, Predictor};
use crate::graph::{Fetch, Graph, Init, Tensor, TensorSpec, VariableSpec, nearest_names};
use crate::io::onnx::{OnnxFile, is_onnx};
use crate::runtime::{Session, SessionOptions};
use crate::tower::TowerContext;
use std::panic::Location;
use std::path::Path;
use tensorpack_tensor::{Error, HostTensor, Result};

/// A model loaded from a file that [`OfflinePredictor::export`] wrote, or from an ONNX file, whose
/// name ends with `.onnx`. It needs none of the code that built it. Dimensions of unknown size, such as the batch, stay dynamic.
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
            false => read(path).and_then(|(mut graph, tensors)| {
                for input in &mut graph.inputs {
                    fix_sizes(&input.name, &mut input.sizes, sizes)?;
                }
                graph.rebuild(tensors, caller)
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
        Ok(LoadedGraph { graph: graph.clone(), inputs, outputs: outputs.collect(), variables: Vec::new() })
    })
}

impl Predictor for ExportedModel {
    fn predict(&self, inputs: &[&HostTensor]) -> Result<Vec<HostTensor>> {
        ExportedModel::predict(self, inputs)
    }
}
