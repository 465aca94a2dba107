//! Bodies of loops in exported models.

use super::body::Body;
use crate::graph::{Exported, Graph, NodeId, NodeKind, Tensor, TensorId, TensorSpec};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashMap;
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result};

/// A body as JSON. Tensors are numbered over inputs first and then operations, each with the number
/// of its output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BodyFile {
    inputs: Vec<(DType, Vec<Option<usize>>)>,
    /// The index of the first input that is the same in every step.
    captured: usize,
    operations: Vec<Operation>,
    outputs: Vec<(usize, usize)>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Operation {
    op: String,
    attributes: Value,
    /// The number of its tensors.
    tensors: usize,
    inputs: Vec<(usize, usize)>,
}

impl BodyFile {
    /// Describes a body, and appends the tensors of its operations to `tensors`.
    pub(super) fn new(body: &Body, captured: usize, tensors: &mut Vec<HostTensor>) -> Result<BodyFile> {
        let graph = body.graph();
        let mut numbers: HashMap<NodeId, usize> =
            body.inputs().iter().enumerate().map(|(i, t)| (t.node, i)).collect();
        let spec = |t: &TensorId| &graph.node(t.node).outputs[t.output as usize];
        let sizes = |t: &TensorId| spec(t).shape.iter().map(|d| d.known()).collect();
        let inputs = body.inputs().iter().map(|t| (spec(t).dtype, sizes(t))).collect();
        let mut operations = Vec::new();
        for (i, node) in graph.nodes().iter().enumerate() {
            let NodeKind::Op(op) = &node.kind else { continue };
            let read = node.inputs.iter().map(|t| Some((*numbers.get(&t.node)?, t.output as usize)));
            let Some(read) = read.collect::<Option<Vec<_>>>() else { continue };
            let registration = Exported::find(op.as_ref())?;
            let (attributes, own) = registration.save(op.as_ref())?;
            numbers.insert(NodeId(i as u32), body.inputs().len() + operations.len());
            let (op, tensors_of) = (registration.name(), own.len());
            operations.push(Operation { op, attributes, tensors: tensors_of, inputs: read });
            tensors.extend(own);
        }
        let outputs = body.outputs().iter().map(|t| (numbers[&t.node], t.output as usize)).collect();
        Ok(BodyFile { inputs, captured, operations, outputs })
    }

    /// Builds the body. All shape rules run again, so that a damaged file is an error.
    pub(super) fn load(self, tensors: Vec<HostTensor>) -> Result<Body> {
        let graph = Graph::new();
        let mut tensors = tensors.into_iter();
        let mut nodes: Vec<Vec<Tensor>> = Vec::new();
        for (i, (dtype, sizes)) in self.inputs.into_iter().enumerate() {
            nodes.push(vec![graph.placeholder(&TensorSpec::new(format!("input{i}"), dtype, sizes))]);
            graph.first_error()?;
        }
        let inputs: Vec<Tensor> = nodes.iter().flatten().cloned().collect();
        let damaged = |what: String| Error::new(ErrorKind::Graph, format!("the body of a loop has {what}"));
        let at = |nodes: &[Vec<Tensor>], (node, output): (usize, usize)| {
            let found = nodes.get(node).and_then(|outputs| outputs.get(output)).cloned();
            found.ok_or_else(|| damaged(format!("no output {output} of node {node}")))
        };
        for operation in self.operations {
            let read = operation.inputs.iter().map(|&t| at(&nodes, t)).collect::<Result<Vec<Tensor>>>()?;
            let own: Vec<HostTensor> = tensors.by_ref().take(operation.tensors).collect();
            let op = Exported::named(&operation.op)?.load(operation.attributes, own, read.len())?;
            nodes.push(graph.add_op(op, &read.iter().collect::<Vec<_>>()));
            graph.first_error()?;
        }
        let outputs = self.outputs.iter().map(|&t| at(&nodes, t)).collect::<Result<Vec<Tensor>>>()?;
        if self.captured > inputs.len() {
            return Err(damaged(format!("{} inputs, but {} that change", inputs.len(), self.captured)));
        }
        Body::new(graph, &inputs, self.captured, &outputs)
    }
}
