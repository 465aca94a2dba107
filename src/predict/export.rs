//! Export of a model to one file: its graph and the values of its variables, without its code.

use super::OfflinePredictor;
use super::graph_file::{FORMAT, GraphFile, InputEntry, KEY, OperationEntry, OutputEntry, TensorRef};
use crate::graph::{Exported, Frozen, NodeId, NodeKind, TensorId, VariableId};
use crate::io::safetensors::{self, Named};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use tensorpack_tensor::{Error, ErrorKind, Result};

impl OfflinePredictor {
    /// Exports the model to one file, which [`ExportedModel`](super::ExportedModel) runs without
    /// the model's code. It is a safetensors file that contains the variables under their names and
    /// the graph in its metadata, beside the [metadata](OfflinePredictor::with_metadata) of the
    /// model. Inputs that no output depends on are omitted.
    #[doc(alias = "ModelExporter")]
    #[doc(alias = "export_compact")]
    pub fn export(&self, path: impl AsRef<Path>) -> Result<()> {
        let (graph, tensors, _) = self.graph_file(false)?;
        self.write(path.as_ref(), &graph, &tensors)
    }

    /// Writes a file with this graph and these tensors, and the metadata of the model.
    pub(super) fn write(&self, path: &Path, graph: &GraphFile, tensors: &Named) -> Result<()> {
        let text = serde_json::to_string(graph)
            .map_err(|e| Error::argument(format!("cannot serialize the graph: {e}")))?;
        let mut metadata = self.metadata.clone();
        metadata.insert(KEY.to_string(), text);
        safetensors::write_with_metadata(path, tensors, &metadata)
    }

    /// Returns the contents of the file, the graph and the tensors, and the index of every node in
    /// it. Has inputs that no output depends on only if `all_inputs` is set.
    pub(super) fn graph_file(&self, all_inputs: bool) -> Result<(GraphFile, Named, HashMap<NodeId, usize>)> {
        let frozen = self.session.graph();
        let needed = Needed::new(frozen, self.outputs.iter().map(|(_, f)| f.node));
        let mut indices = HashMap::new();
        let mut inputs = Vec::new();
        for name in &self.inputs {
            let id = frozen.fetch(name)?.node;
            if all_inputs || needed.inputs.contains(&id) {
                let node = frozen.node(id);
                let spec = &node.outputs[0];
                let sizes = spec.shape.iter().map(|d| d.known()).collect();
                let (name, infinite) = (name.clone(), node.infinite);
                inputs.push(InputEntry { name, dtype: spec.dtype, sizes, infinite });
                indices.insert(id, indices.len());
            }
        }
        if let Some(id) = needed.inputs.iter().find(|id| !indices.contains_key(id)) {
            return Err(not_fed(&frozen.node(*id).name));
        }
        let (mut variables, mut trainable, mut tensors) = (Vec::new(), Vec::new(), Vec::new());
        for (variable, readers) in &needed.variables {
            let info = &frozen.variables()[variable.0 as usize];
            let name = &info.name;
            if info.trainable {
                trainable.push(name.clone());
            }
            let index = inputs.len() + variables.len();
            indices.extend(readers.iter().map(|&id| (id, index)));
            tensors.push((name.clone(), self.session.read(name)?));
            variables.push(name.clone());
        }
        let before = inputs.len() + variables.len();
        let mut operations = Vec::new();
        for &id in &needed.operations {
            operations.push(operation_entry(frozen, id, &indices, &mut tensors)?);
            indices.insert(id, before + operations.len() - 1);
        }
        let outputs = self.outputs.iter().map(|(name, f)| OutputEntry {
            name: name.clone(),
            tensor: (indices[&f.node], f.output.unwrap_or(0) as usize),
        });
        let outputs = outputs.collect();
        let quantized = Vec::new();
        let file = GraphFile { format: FORMAT, inputs, outputs, variables, trainable, quantized, operations };
        Ok((file, tensors, indices))
    }
}

/// Returns the error of an input that the outputs need and the predictor does not feed.
pub(super) fn not_fed(name: &str) -> Error {
    let why = format!("the outputs depend on input {name:?}, which the predictor does not feed");
    Error::new(ErrorKind::Name, why).note("add it to PredictConfig::inputs")
}

/// Returns the entry of an operation, and adds its constant tensors to `tensors`.
fn operation_entry(
    frozen: &Frozen,
    id: NodeId,
    indices: &HashMap<NodeId, usize>,
    tensors: &mut Named,
) -> Result<OperationEntry> {
    let node = frozen.node(id);
    let fail = |e: Error| e.within(&node.name).at(node.site);
    let NodeKind::Op(op) = &node.kind else {
        let why = format!("{} has side effects outside the graph and cannot be exported", node.kind.name());
        return Err(fail(Error::new(ErrorKind::Graph, why)));
    };
    let exported = Exported::find(op.as_ref()).map_err(fail)?;
    let (attributes, own) = exported.save(op.as_ref()).map_err(fail)?;
    let mut names = Vec::new();
    for tensor in own {
        // Variable names contain no colon, so this name is unique.
        let name = format!("{}:{}", node.name, names.len());
        tensors.push((name.clone(), tensor));
        names.push(name);
    }
    let tensor_ref = |t: &TensorId| -> TensorRef { (indices[&t.node], t.output as usize) };
    let inputs = node.inputs.iter().map(tensor_ref).collect();
    Ok(OperationEntry { name: node.name.clone(), op: exported.name(), attributes, tensors: names, inputs })
}

/// The nodes that outputs depend on, for their values or their shapes.
pub(super) struct Needed {
    pub(super) inputs: BTreeSet<NodeId>,
    /// The nodes that read each variable.
    pub(super) variables: BTreeMap<VariableId, Vec<NodeId>>,
    /// All other nodes, in order.
    pub(super) operations: BTreeSet<NodeId>,
}

impl Needed {
    pub(super) fn new(frozen: &Frozen, outputs: impl Iterator<Item = NodeId>) -> Needed {
        let mut needed =
            Needed { inputs: BTreeSet::new(), variables: BTreeMap::new(), operations: BTreeSet::new() };
        let (mut stack, mut seen): (Vec<NodeId>, BTreeSet<NodeId>) = (outputs.collect(), BTreeSet::new());
        while let Some(id) = stack.pop() {
            if !seen.insert(id) {
                continue;
            }
            let node = frozen.node(id);
            match node.kind {
                NodeKind::Placeholder => drop(needed.inputs.insert(id)),
                // A prediction changes no variable, so the current value is the initial one.
                NodeKind::Read(v) | NodeKind::Current(v) => needed.variables.entry(v).or_default().push(id),
                _ => drop(needed.operations.insert(id)),
            }
            stack.extend(node.inputs.iter().map(|t| t.node));
        }
        needed
    }
}
