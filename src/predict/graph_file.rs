//! The JSON graph in the metadata of an exported model file.

use super::quantize::dequantize;
use crate::graph::{Exported, Fetch, Graph, Init, Sharing, Tensor, TensorSpec, VariableSpec};
use crate::io::safetensors::{self, Metadata, Named};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::panic::Location;
use std::path::Path;
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result};

/// The metadata key of the graph.
pub(super) const KEY: &str = "tensorpack.model";
/// The only supported format version.
pub(super) const FORMAT: u32 = 1;

/// A reference to a tensor: an index into the list of all inputs, variables and operations, in this
/// order, and the number of the output.
pub(super) type TensorRef = (usize, usize);

/// The graph of an exported model.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GraphFile {
    pub(super) format: u32,
    pub(super) inputs: Vec<InputEntry>,
    pub(super) outputs: Vec<OutputEntry>,
    /// The names of their tensors in the file.
    pub(super) variables: Vec<String>,
    /// The names of the trainable variables.
    #[serde(default)]
    pub(super) trainable: Vec<String>,
    /// The names of the variables that are stored as 8-bit integers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) quantized: Vec<String>,
    /// The operations in topological order.
    pub(super) operations: Vec<OperationEntry>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InputEntry {
    pub(super) name: String,
    pub(super) dtype: DType,
    /// The size of each dimension; `null` if it is known only at run time.
    pub(super) sizes: Vec<Option<usize>>,
    /// Whether infinities are accepted; omitted if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) infinite: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OutputEntry {
    pub(super) name: String,
    pub(super) tensor: TensorRef,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OperationEntry {
    pub(super) name: String,
    pub(super) op: String,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(super) attributes: Value,
    /// The names of the tensors in the file that are part of the attributes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) tensors: Vec<String>,
    pub(super) inputs: Vec<TensorRef>,
}

/// The contents of a file.
pub(super) struct ModelFile {
    pub(super) graph: GraphFile,
    /// The tensors of its variables and operations.
    pub(super) tensors: Named,
    /// The metadata without the graph.
    pub(super) metadata: Metadata,
}

/// Reads a file.
pub(super) fn read(path: &Path) -> Result<ModelFile> {
    let (tensors, mut metadata) = safetensors::read_with_metadata(path)?;
    let Some(text) = metadata.remove(KEY) else {
        return Err(Error::new(ErrorKind::Io, "the file contains tensors, but no model")
            .note("export a model with OfflinePredictor::export"));
    };
    let graph = GraphFile::parse(&text)?;
    let tensors = dequantize(&graph, tensors)?;
    Ok(ModelFile { graph, tensors, metadata })
}

/// A graph built from a file, with its inputs, outputs and variables.
pub(super) struct LoadedGraph {
    pub(super) graph: Graph,
    pub(super) inputs: Vec<TensorSpec>,
    pub(super) outputs: Vec<(String, Fetch)>,
    /// The values of its variables.
    pub(super) variables: Named,
    /// The metadata of the model.
    pub(super) metadata: Metadata,
}

impl GraphFile {
    /// Parses the JSON text.
    fn parse(text: &str) -> Result<GraphFile> {
        let damaged = |e: serde_json::Error| {
            Error::new(ErrorKind::Io, format!("the model's graph cannot be read: {e}"))
        };
        let value: Value = serde_json::from_str(text).map_err(damaged)?;
        // Check the version first: another format may differ in everything else.
        if value["format"] != FORMAT {
            let why = format!("unsupported format version {} (supported: {FORMAT})", value["format"]);
            return Err(Error::new(ErrorKind::Io, why).note("export the model again"));
        }
        serde_json::from_value(value).map_err(damaged)
    }

    /// Builds the graph. All shape inference runs again, so that a damaged file is an error.
    pub(super) fn rebuild(&self, tensors: Named, caller: &'static Location<'static>) -> Result<LoadedGraph> {
        let graph = Graph::new();
        graph.called_from(caller, || self.rebuild_in(&graph, tensors))
    }

    fn rebuild_in(&self, graph: &Graph, tensors: Named) -> Result<LoadedGraph> {
        let mut tensors: HashMap<String, HostTensor> = tensors.into_iter().collect();
        let mut nodes = Vec::new();
        let inputs: Vec<TensorSpec> = self.inputs.iter().map(InputEntry::spec).collect();
        for spec in &inputs {
            nodes.push(vec![graph.placeholder(spec)]);
            graph.first_error()?;
        }
        let mut variables = Vec::new();
        let trainable: HashSet<&str> = self.trainable.iter().map(String::as_str).collect();
        for name in &self.variables {
            let value = take(&mut tensors, name)?;
            let spec = VariableSpec::new(name, value.sizes()).dtype(value.dtype());
            // Kept for the file that this model may be exported to.
            let spec = if trainable.contains(name.as_str()) { spec } else { spec.model() };
            let variable = graph.variable(spec.init(Init::zeros()), Sharing::Make);
            graph.first_error()?;
            nodes.push(vec![variable.value().clone()]);
            variables.push((name.clone(), value));
        }
        let outputs = self.add_to(graph, nodes, tensors, |tensor, name| graph.restore_name(tensor, name))?;
        let outputs = outputs.into_iter().map(|(name, tensor)| (name, Fetch::from(&tensor))).collect();
        Ok(LoadedGraph { graph: graph.clone(), inputs, outputs, variables, metadata: Metadata::new() })
    }

    /// Adds the operations to a graph that already has the inputs and variables (`nodes`), and
    /// returns the outputs. `tensors` are the constants of the operations; `restore_name` may
    /// rename an operation to its exported name.
    pub(super) fn add_to(
        &self,
        graph: &Graph,
        mut nodes: Vec<Vec<Tensor>>,
        mut tensors: HashMap<String, HostTensor>,
        restore_name: impl Fn(&Tensor, &str) -> Result<()>,
    ) -> Result<Vec<(String, Tensor)>> {
        for operation in &self.operations {
            let added = operation.add_to(graph, &nodes, &mut tensors).and_then(|outputs| {
                outputs.first().map_or(Ok(()), |first| restore_name(first, &operation.name))?;
                graph.first_error().map(|()| outputs)
            });
            nodes.push(added.map_err(|e| e.within(&operation.name))?);
        }
        let output = |o: &OutputEntry| match tensor_at(&nodes, o.tensor) {
            Ok(tensor) => Ok((o.name.clone(), tensor.clone())),
            Err(e) => Err(e.within(&o.name)),
        };
        self.outputs.iter().map(output).collect()
    }
}

impl InputEntry {
    /// Returns the spec of the input.
    pub(super) fn spec(&self) -> TensorSpec {
        let spec = TensorSpec::new(&self.name, self.dtype, self.sizes.clone());
        if self.infinite { spec.allow_infinite() } else { spec }
    }
}

impl OperationEntry {
    fn add_to(
        &self,
        graph: &Graph,
        nodes: &[Vec<Tensor>],
        tensors: &mut HashMap<String, HostTensor>,
    ) -> Result<Vec<Tensor>> {
        let inputs =
            self.inputs.iter().map(|&input| tensor_at(nodes, input)).collect::<Result<Vec<&Tensor>>>()?;
        let own = self.tensors.iter().map(|name| take(tensors, name)).collect::<Result<_>>()?;
        let op = Exported::named(&self.op)?.load(self.attributes.clone(), own, inputs.len())?;
        Ok(graph.add_op(op, &inputs))
    }
}

/// Removes and returns the tensor of this name. Each tensor may be used only once.
pub(super) fn take(tensors: &mut HashMap<String, HostTensor>, name: &str) -> Result<HostTensor> {
    let missing =
        || Error::new(ErrorKind::Name, format!("the file has no tensor {name:?}, or uses it twice"));
    tensors.remove(name).ok_or_else(missing)
}

/// Returns the tensor that a reference denotes among the nodes built so far.
fn tensor_at(nodes: &[Vec<Tensor>], (node, output): TensorRef) -> Result<&Tensor> {
    let missing = || format!("no output {output} of node {node} among the {} nodes before it", nodes.len());
    let found = nodes.get(node).and_then(|outputs| outputs.get(output));
    found.ok_or_else(|| Error::new(ErrorKind::Graph, missing()))
}
