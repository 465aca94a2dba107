//! A finished graph: immutable, shareable between threads, and all that engines see.

use super::collection::Collections;
use super::graph::Building;
use super::{Collection, Node, NodeId, Op, Tensor, TensorId, Variable, VariableInfo};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// A graph that can be run.
#[derive(Debug)]
pub struct Frozen {
    uid: u64,
    nodes: Vec<Node>,
    variables: Vec<VariableInfo>,
    collections: Collections,
    names: HashMap<String, TensorId>,
    late: Arc<LateError>,
}

/// Where the misuse of a handle after freezing is put, for the session's next call to return.
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
            names: b.names,
            late,
        }
    }

    /// The number of the graph this was.
    pub fn uid(&self) -> u64 {
        self.uid
    }

    /// All nodes; each reads only earlier ones.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// Returns whether the input of this name accepts infinities.
    pub fn takes_infinities(&self, input: &str) -> bool {
        self.names.get(input).is_some_and(|id| self.node(id.node).infinite)
    }

    /// All variables.
    pub fn variables(&self) -> &[VariableInfo] {
        &self.variables
    }

    /// A collection; empty if nothing was added to it.
    pub fn collection(&self, key: &str) -> Collection {
        self.collections.get(key).cloned().unwrap_or_default()
    }

    /// What can be fetched under a name.
    pub fn fetch(&self, name: &str) -> Result<Fetch> {
        self.names
            .get(name)
            .map(|&id| Fetch { graph: self.uid, node: id.node, output: Some(id.output), name: name.into() })
            .ok_or_else(|| Error::new(ErrorKind::Name, format!("the graph has no tensor named {name:?}")))
    }

    /// The error of a handle that was used after freezing, once.
    pub(crate) fn take_late_error(&self) -> Result<()> {
        self.late.take()
    }
}

/// Something to run or fetch: of a tensor its value, of an operation what it does. Unlike the handles it is made
/// from, it can go to other threads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fetch {
    pub(crate) graph: u64,
    pub(crate) node: NodeId,
    /// `None` for an operation.
    pub(crate) output: Option<u32>,
    pub(crate) name: String,
}

impl Fetch {
    /// What is fetched, in words.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A handle of something that could not be made: no graph has this node.
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
    fn a_frozen_graph_can_be_shared_between_threads() {
        fn shareable<T: Send + Sync>() {}
        shareable::<Frozen>();
        shareable::<Fetch>();
    }
}
