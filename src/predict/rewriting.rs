//! The rewriting of a model for inference: what `folded` and `int8` have in common.

use super::graph_file::{GraphFile, OperationEntry, TensorRef};
use crate::graph::{Fetch, Frozen, NodeId, Spec};
use crate::io::safetensors::Named;
use crate::runtime::{IntoFetch, Session};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use tensorpack_tensor::{HostTensor, Result};

/// A variable of the rewritten model that replaces others.
pub(super) struct NewVariable {
    /// The name it gets unless another variable has it.
    pub(super) name: String,
    pub(super) trainable: bool,
    pub(super) value: HostTensor,
}

/// The rewriting of a model.
pub(super) struct Rewriting<'a> {
    pub(super) frozen: &'a Frozen,
    pub(super) file: GraphFile,
    /// The node of every index of the file.
    pub(super) nodes: Vec<NodeId>,
    /// The operations that read each tensor, once for every time they do.
    pub(super) readers: HashMap<TensorRef, Vec<usize>>,
    /// Whether each index depends on variables and constants alone.
    pub(super) constant: Vec<bool>,
}

impl<'a> Rewriting<'a> {
    pub(super) fn new(
        frozen: &'a Frozen,
        file: GraphFile,
        indices: &HashMap<NodeId, usize>,
    ) -> Rewriting<'a> {
        let before = file.inputs.len() + file.variables.len();
        let mut nodes = vec![NodeId(0); before + file.operations.len()];
        indices.iter().for_each(|(&id, &index)| nodes[index] = id);
        let mut constant: Vec<bool> = (0..before).map(|i| i >= file.inputs.len()).collect();
        let mut readers: HashMap<TensorRef, Vec<usize>> = HashMap::new();
        for (i, operation) in file.operations.iter().enumerate() {
            operation.inputs.iter().for_each(|&input| readers.entry(input).or_default().push(before + i));
            // Operations of other crates may have effects, or give something else each time.
            let is_pure =
                !operation.op.contains("::") && !["RandomUniform", "Print"].contains(&operation.op.as_str());
            constant.push(is_pure && operation.inputs.iter().all(|&(node, _)| constant[node]));
        }
        Rewriting { frozen, file, nodes, readers, constant }
    }

    pub(super) fn before(&self) -> usize {
        self.file.inputs.len() + self.file.variables.len()
    }

    pub(super) fn operation(&self, index: usize) -> Option<&OperationEntry> {
        self.file.operations.get(index.checked_sub(self.before())?)
    }

    pub(super) fn spec(&self, (node, output): TensorRef) -> &Spec {
        &self.frozen.node(self.nodes[node]).outputs[output]
    }

    /// Returns the values of constant tensors, computed in one run.
    pub(super) fn values(
        &self,
        session: &Session,
        wanted: BTreeSet<TensorRef>,
    ) -> Result<HashMap<TensorRef, HostTensor>> {
        if wanted.is_empty() {
            return Ok(HashMap::new());
        }
        let fetch = |&(node, output): &TensorRef| Fetch {
            graph: self.frozen.uid(),
            node: self.nodes[node],
            output: Some(output as u32),
            name: self.frozen.node(self.nodes[node]).name.clone(),
        };
        let fetches: Vec<Fetch> = wanted.iter().map(fetch).collect();
        let values = session.run(&fetches.iter().map(|f| f as &dyn IntoFetch).collect::<Vec<_>>(), &[])?;
        Ok(wanted.into_iter().zip(values).collect())
    }

    /// Removes what the outputs no longer depend on, and gives everything else its final index.
    pub(super) fn without_unused(self, new: Vec<NewVariable>, tensors: Named) -> (GraphFile, Named) {
        let (inputs, before, all) = (self.file.inputs.len(), self.before(), self.nodes.len());
        let mut used: BTreeSet<usize> = self.file.outputs.iter().map(|output| output.tensor.0).collect();
        for (i, operation) in self.file.operations.iter().enumerate().rev() {
            if used.contains(&(before + i)) {
                used.extend(operation.inputs.iter().map(|input| input.0));
            }
        }
        let GraphFile {
            format,
            inputs: input_entries,
            mut outputs,
            variables,
            trainable,
            quantized,
            operations,
        } = self.file;
        let mut tensors: BTreeMap<String, HostTensor> = tensors.into_iter().collect();
        let mut index: HashMap<usize, usize> = (0..inputs).map(|i| (i, i)).collect();
        let (mut names, mut kept) = (Vec::new(), Vec::new());
        for (i, name) in variables.into_iter().enumerate().filter(|(i, _)| used.contains(&(inputs + i))) {
            index.insert(inputs + i, inputs + names.len());
            kept.extend(tensors.remove(&name).map(|value| (name.clone(), value)));
            names.push(name);
        }
        let mut taken: HashSet<String> = names.iter().cloned().collect();
        let mut trainable: Vec<String> = trainable.into_iter().filter(|name| taken.contains(name)).collect();
        for (i, variable) in new.into_iter().enumerate() {
            let mut name = variable.name;
            while !taken.insert(name.clone()) {
                name += "_";
            }
            index.insert(all + i, inputs + names.len());
            if variable.trainable {
                trainable.push(name.clone());
            }
            kept.push((name.clone(), variable.value));
            names.push(name);
        }
        let first = inputs + names.len();
        let mut kept_operations = Vec::new();
        for (i, mut operation) in
            operations.into_iter().enumerate().filter(|(i, _)| used.contains(&(before + i)))
        {
            index.insert(before + i, first + kept_operations.len());
            operation.inputs.iter_mut().for_each(|input| input.0 = index[&input.0]);
            kept.extend(operation.tensors.iter().filter_map(|name| tensors.remove_entry(name)));
            kept_operations.push(operation);
        }
        outputs.iter_mut().for_each(|output| output.tensor.0 = index[&output.tensor.0]);
        let file = GraphFile {
            format,
            inputs: input_entries,
            outputs,
            variables: names,
            trainable,
            quantized,
            operations: kept_operations,
        };
        (file, kept)
    }
}
