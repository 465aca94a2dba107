//! What an exported model's file says beside its tensors: the graph, as JSON.

use crate::graph::{Exported, Fetch, Graph, Init, Sharing, Tensor, TensorSpec, VariableSpec};
use crate::io::safetensors::{self, Named};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashMap;
use std::panic::Location;
use std::path::Path;
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result};

/// The key of the file's metadata that the graph stands under.
pub(super) const KEY: &str = "tensorpack.model";
/// The only format there is.
pub(super) const FORMAT: u32 = 1;

/// A tensor: a place in the list of all inputs, variables and operations, in this order, and which output of it.
pub(super) type Place = (usize, usize);

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenGraph {
    pub(super) format: u32,
    pub(super) inputs: Vec<WrittenInput>,
    pub(super) outputs: Vec<WrittenOutput>,
    /// The names of their tensors in the file.
    pub(super) variables: Vec<String>,
    /// Those of them that gradients train.
    #[serde(default)]
    pub(super) trainable: Vec<String>,
    /// Each reads only what comes before it.
    pub(super) operations: Vec<WrittenOperation>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenInput {
    pub(super) name: String,
    pub(super) dtype: DType,
    /// `null` for what is known only when something is fed.
    pub(super) sizes: Vec<Option<usize>>,
    /// Whether infinities are accepted; omitted if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) infinite: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenOutput {
    pub(super) name: String,
    pub(super) tensor: Place,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenOperation {
    pub(super) name: String,
    pub(super) op: String,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(super) attributes: Value,
    /// The names of tensors in the file that belong to the attributes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) tensors: Vec<String>,
    pub(super) inputs: Vec<Place>,
}

/// What a file holds: the graph, and the tensors of its variables and operations.
pub(super) fn read(path: &Path) -> Result<(WrittenGraph, Named)> {
    let (tensors, said) = safetensors::read_with_metadata(path)?;
    let Some(text) = said.get(KEY) else {
        return Err(Error::new(ErrorKind::Io, "it holds tensors, but no model")
            .note("export a model with OfflinePredictor::export"));
    };
    Ok((WrittenGraph::parse(text)?, tensors))
}

/// A graph that was read, and what is to be known to run it.
pub(super) struct Rebuilt {
    pub(super) graph: Graph,
    pub(super) inputs: Vec<TensorSpec>,
    pub(super) outputs: Vec<(String, Fetch)>,
    /// The values of its variables.
    pub(super) variables: Named,
}

impl WrittenGraph {
    /// The graph that the text says.
    fn parse(text: &str) -> Result<WrittenGraph> {
        let damaged = |e: serde_json::Error| {
            Error::new(ErrorKind::Io, format!("what it says of the model cannot be read: {e}"))
        };
        let value: Value = serde_json::from_str(text).map_err(damaged)?;
        // First of all: another format may differ in everything else.
        if value["format"] != FORMAT {
            let why = format!("its format is {}, and only {FORMAT} can be read", value["format"]);
            return Err(Error::new(ErrorKind::Io, why).note("export the model again"));
        }
        serde_json::from_value(value).map_err(damaged)
    }

    /// Builds the graph anew. All shape rules run again: what a damaged file makes of them is an error.
    pub(super) fn rebuild(&self, tensors: Named, caller: &'static Location<'static>) -> Result<Rebuilt> {
        let graph = Graph::new();
        graph.called_from(caller, || self.rebuild_in(&graph, tensors))
    }

    fn rebuild_in(&self, graph: &Graph, tensors: Named) -> Result<Rebuilt> {
        let mut tensors: HashMap<String, HostTensor> = tensors.into_iter().collect();
        let mut made = Vec::new();
        let inputs: Vec<TensorSpec> = self.inputs.iter().map(WrittenInput::spec).collect();
        for spec in &inputs {
            made.push(vec![graph.placeholder(spec)]);
            graph.first_error()?;
        }
        let mut variables = Vec::new();
        for name in &self.variables {
            let value = take(&mut tensors, name)?;
            let spec = VariableSpec::new(name, value.sizes()).dtype(value.dtype()).model();
            let variable = graph.variable(spec.init(Init::zeros()), Sharing::Make);
            graph.first_error()?;
            made.push(vec![variable.value().clone()]);
            variables.push((name.clone(), value));
        }
        let outputs = self.add_to(graph, made, tensors, |tensor, name| graph.restore_name(tensor, name))?;
        let outputs = outputs.into_iter().map(|(name, tensor)| (name, Fetch::from(&tensor))).collect();
        Ok(Rebuilt { graph: graph.clone(), inputs, outputs, variables })
    }

    /// Adds the operations to a graph that has the inputs and variables already, and gives the outputs. `tensors` are
    /// those of the operations; `named` may give an operation the name it had.
    pub(super) fn add_to(
        &self,
        graph: &Graph,
        mut made: Vec<Vec<Tensor>>,
        mut tensors: HashMap<String, HostTensor>,
        named: impl Fn(&Tensor, &str) -> Result<()>,
    ) -> Result<Vec<(String, Tensor)>> {
        for operation in &self.operations {
            let added = operation.add_to(graph, &made, &mut tensors).and_then(|outputs| {
                outputs.first().map_or(Ok(()), |first| named(first, &operation.name))?;
                graph.first_error().map(|()| outputs)
            });
            made.push(added.map_err(|e| e.within(&operation.name))?);
        }
        let output = |o: &WrittenOutput| match at(&made, o.tensor) {
            Ok(tensor) => Ok((o.name.clone(), tensor.clone())),
            Err(e) => Err(e.within(&o.name)),
        };
        self.outputs.iter().map(output).collect()
    }
}

impl WrittenInput {
    /// The input as a model would ask for it.
    pub(super) fn spec(&self) -> TensorSpec {
        let spec = TensorSpec::new(&self.name, self.dtype, self.sizes.clone());
        if self.infinite { spec.allow_infinite() } else { spec }
    }
}

impl WrittenOperation {
    fn add_to(
        &self,
        graph: &Graph,
        made: &[Vec<Tensor>],
        tensors: &mut HashMap<String, HostTensor>,
    ) -> Result<Vec<Tensor>> {
        let inputs = self.inputs.iter().map(|&place| at(made, place)).collect::<Result<Vec<&Tensor>>>()?;
        let own = self.tensors.iter().map(|name| take(tensors, name)).collect::<Result<_>>()?;
        let op = Exported::named(&self.op)?.load(self.attributes.clone(), own, inputs.len())?;
        Ok(graph.add_op(op, &inputs))
    }
}

/// The tensor of a name, which belongs to one place of the graph alone.
pub(super) fn take(tensors: &mut HashMap<String, HostTensor>, name: &str) -> Result<HostTensor> {
    let missing = || Error::new(ErrorKind::Name, format!("the file has no tensor {name:?}, or two want it"));
    tensors.remove(name).ok_or_else(missing)
}

/// What was made so far, at a place.
fn at(made: &[Vec<Tensor>], (node, output): Place) -> Result<&Tensor> {
    let missing = || format!("there is no output {output} of node {node} before it, of {} nodes", made.len());
    let found = made.get(node).and_then(|outputs| outputs.get(output));
    found.ok_or_else(|| Error::new(ErrorKind::Graph, missing()))
}
