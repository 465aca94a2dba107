//! A model in one file: its graph, its variables' values, and nothing of its code.

use super::OfflinePredictor;
use super::written::{FORMAT, KEY, Place, WrittenGraph, WrittenInput, WrittenOperation, WrittenOutput};
use crate::graph::{Exported, Frozen, NodeId, NodeKind, TensorId, VariableId};
use crate::io::safetensors::{self, Metadata, Named};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use tensorpack_tensor::{Error, ErrorKind, Result};

impl OfflinePredictor {
    /// Writes the model to one file, which [`ExportedModel`](super::ExportedModel) runs without the model's code. It is
    /// a safetensors file: the variables under their names, and the graph in its metadata. Of the inputs it has those
    /// that the outputs need.
    #[doc(alias = "ModelExporter")]
    #[doc(alias = "export_compact")]
    pub fn export(&self, path: impl AsRef<Path>) -> Result<()> {
        let (graph, tensors) = self.written()?;
        let text = serde_json::to_string(&graph)
            .map_err(|e| Error::argument(format!("the graph cannot be written: {e}")))?;
        safetensors::write_with_metadata(path, &tensors, &Metadata::from([(KEY.to_string(), text)]))
    }

    /// What the file says, and its tensors.
    fn written(&self) -> Result<(WrittenGraph, Named)> {
        let frozen = self.session.graph();
        let needed = Needed::of(frozen, self.outputs.iter().map(|(_, f)| f.node));
        let mut places = HashMap::new();
        let mut inputs = Vec::new();
        for name in &self.inputs {
            let id = frozen.fetch(name)?.node;
            if needed.inputs.contains(&id) {
                let node = frozen.node(id);
                let spec = &node.outputs[0];
                let sizes = spec.shape.iter().map(|d| d.known()).collect();
                let (name, infinite) = (name.clone(), node.infinite);
                inputs.push(WrittenInput { name, dtype: spec.dtype, sizes, infinite });
                places.insert(id, places.len());
            }
        }
        if let Some(id) = needed.inputs.iter().find(|id| !places.contains_key(id)) {
            let why = format!("the outputs need the input {:?}, which is not given", frozen.node(*id).name);
            return Err(Error::new(ErrorKind::Name, why));
        }
        let (mut variables, mut trainable, mut tensors) = (Vec::new(), Vec::new(), Vec::new());
        for (variable, readers) in &needed.variables {
            let info = &frozen.variables()[variable.0 as usize];
            let name = &info.name;
            if info.trainable {
                trainable.push(name.clone());
            }
            let place = inputs.len() + variables.len();
            places.extend(readers.iter().map(|&id| (id, place)));
            tensors.push((name.clone(), self.session.read(name)?));
            variables.push(name.clone());
        }
        let before = inputs.len() + variables.len();
        let mut operations = Vec::new();
        for &id in &needed.operations {
            operations.push(written_operation(frozen, id, &places, &mut tensors)?);
            places.insert(id, before + operations.len() - 1);
        }
        let outputs = self.outputs.iter().map(|(name, f)| WrittenOutput {
            name: name.clone(),
            tensor: (places[&f.node], f.output.unwrap_or(0) as usize),
        });
        let outputs = outputs.collect();
        Ok((WrittenGraph { format: FORMAT, inputs, outputs, variables, trainable, operations }, tensors))
    }
}

fn written_operation(
    frozen: &Frozen,
    id: NodeId,
    places: &HashMap<NodeId, usize>,
    tensors: &mut Named,
) -> Result<WrittenOperation> {
    let node = frozen.node(id);
    let fail = |e: Error| e.within(&node.name).at(node.site);
    let NodeKind::Op(op) = &node.kind else {
        let why = format!("{} changes what is outside the graph: it cannot be exported", node.kind.name());
        return Err(fail(Error::new(ErrorKind::Graph, why)));
    };
    let exported = Exported::of(op.as_ref()).map_err(fail)?;
    let (attributes, own) = exported.save(op.as_ref()).map_err(fail)?;
    let mut names = Vec::new();
    for tensor in own {
        // No variable can have a colon in its name.
        let name = format!("{}:{}", node.name, names.len());
        tensors.push((name.clone(), tensor));
        names.push(name);
    }
    let place = |t: &TensorId| -> Place { (places[&t.node], t.output as usize) };
    let inputs = node.inputs.iter().map(place).collect();
    Ok(WrittenOperation { name: node.name.clone(), op: exported.name(), attributes, tensors: names, inputs })
}

/// The nodes that some outputs need, for their values or their shapes.
struct Needed {
    inputs: BTreeSet<NodeId>,
    /// What reads each variable.
    variables: BTreeMap<VariableId, Vec<NodeId>>,
    /// All others, in order.
    operations: BTreeSet<NodeId>,
}

impl Needed {
    fn of(frozen: &Frozen, outputs: impl Iterator<Item = NodeId>) -> Needed {
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
                // A prediction changes no variable: what is current is what was there at its start.
                NodeKind::Read(v) | NodeKind::Current(v) => needed.variables.entry(v).or_default().push(id),
                _ => drop(needed.operations.insert(id)),
            }
            stack.extend(node.inputs.iter().map(|t| t.node));
        }
        needed
    }
}
