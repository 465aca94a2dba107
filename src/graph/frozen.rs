//! A frozen graph: immutable, shareable between threads, and the only form engines see.

use super::collection::Collections;
use super::graph::{Building, IN_LOOP};
use super::{Collection, Node, NodeId, Op, Tensor, TensorId, Variable, VariableInfo, nearest_names};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// A graph that is ready to run.
#[derive(Debug)]
pub struct Frozen {
    uid: u64,
    nodes: Vec<Node>,
    variables: Vec<VariableInfo>,
    collections: Collections,
    layers: Vec<(String, TensorId)>,
    names: HashMap<String, TensorId>,
    given_names: Vec<(String, TensorId)>,
    names_in_loops: BTreeSet<String>,
    first_tower: usize,
    late: Arc<LateError>,
}

/// Holds the error of a handle used after freezing, which the session's next call returns.
#[derive(Debug, Default)]
pub(crate) struct LateError(Mutex<Option<Error>>);

impl LateError {
    pub(super) fn set(&self, error: Error) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    fn take(&self) -> Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }
}

impl Frozen {
    pub(super) fn new(uid: u64, b: Building, late: Arc<LateError>) -> Frozen {
        Frozen {
            uid,
            nodes: b.nodes,
            variables: b.variables,
            collections: b.collections,
            layers: b.layers,
            names: b.names,
            given_names: b.given_names,
            names_in_loops: b.names_in_loops,
            first_tower: b.first_tower,
            late,
        }
    }

    /// Returns the identifier of the [`Graph`](super::Graph) this was frozen from.
    pub fn uid(&self) -> u64 {
        self.uid
    }

    /// Returns the outermost layers in the order they were built: their names, without that of a
    /// tower, and their outputs.
    pub fn layers(&self) -> &[(String, TensorId)] {
        &self.layers
    }

    /// Returns the index of the first tower of this graph among those of all processes.
    pub fn first_tower(&self) -> usize {
        self.first_tower
    }

    /// Returns the number of towers in this graph, at least 1. Other processes may have more.
    pub fn towers(&self) -> usize {
        self.nodes.iter().map(|node| node.tower + 1).max().unwrap_or(1)
    }

    /// Returns all nodes; each reads only earlier ones.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns a node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// Returns whether the input of this name accepts infinities.
    pub fn takes_infinities(&self, input: &str) -> bool {
        self.names.get(input).is_some_and(|id| self.node(id.node).infinite)
    }

    /// Returns all variables.
    pub fn variables(&self) -> &[VariableInfo] {
        &self.variables
    }

    /// Returns a collection; empty if nothing was added to it.
    pub fn collection(&self, key: &str) -> Collection {
        self.collections.get(key).cloned().unwrap_or_default()
    }

    /// Returns the fetch for the tensor with this name.
    pub fn fetch(&self, name: &str) -> Result<Fetch> {
        self.names
            .get(name)
            .map(|&id| Fetch { graph: self.uid, node: id.node, output: Some(id.output), name: name.into() })
            .ok_or_else(|| {
                let note = match self.names_in_loops.contains(name) {
                    true => IN_LOOP.into(),
                    false => nearest_names("tensors", name, self.names.keys().map(String::as_str)),
                };
                Error::new(ErrorKind::Name, format!("the graph has no tensor named {name:?}")).note(note)
            })
    }

    /// Returns the names that users gave to tensors, in order.
    pub(crate) fn given_names(&self) -> impl Iterator<Item = (&str, TensorId)> {
        self.given_names.iter().map(|(name, id)| (name.as_str(), *id))
    }

    /// Returns the names that users gave to tensors in the bodies of loops.
    pub(crate) fn names_in_loops(&self) -> impl Iterator<Item = &str> {
        self.names_in_loops.iter().map(String::as_str)
    }

    /// Returns the error of a handle that was used after freezing, and clears it.
    pub(crate) fn take_late_error(&self) -> Result<()> {
        self.late.take()
    }
}

/// Something to run or fetch: the value of a tensor, or the effect of an operation. Unlike the
/// handles it is made from, it is `Send`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fetch {
    pub(crate) graph: u64,
    pub(crate) node: NodeId,
    /// `None` for an operation.
    pub(crate) output: Option<u32>,
    pub(crate) name: String,
}

impl Fetch {
    /// Returns the name of the tensor or operation.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The node of a poison handle: no graph has a node with this index.
const POISON: NodeId = NodeId(u32::MAX);

impl From<&Tensor> for Fetch {
    fn from(t: &Tensor) -> Fetch {
        let id = t.id.unwrap_or(TensorId { node: POISON, output: 0 });
        Fetch { graph: t.graph.uid(), node: id.node, output: Some(id.output), name: t.name() }
    }
}

impl From<&Op> for Fetch {
    fn from(op: &Op) -> Fetch {
        Fetch { graph: op.graph.uid(), node: op.node.unwrap_or(POISON), output: None, name: op.name() }
    }
}

impl From<&Variable> for Fetch {
    fn from(v: &Variable) -> Fetch {
        Fetch::from(&v.value)
    }
}

impl From<&Fetch> for Fetch {
    fn from(f: &Fetch) -> Fetch {
        f.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frozen_and_fetch_are_send_and_sync() {
        fn shareable<T: Send + Sync>() {}
        shareable::<Frozen>();
        shareable::<Fetch>();
    }
}
