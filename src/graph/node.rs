//! Nodes and their identifiers.

use super::{OpDef, Spec};
use std::sync::Arc;
use tensorpack_tensor::Site;

/// The index of a node. Nodes read only nodes with smaller indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// One output of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId {
    /// The node that computes it.
    pub node: NodeId,
    /// The index of the output.
    pub output: u32,
}

/// The index of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VariableId(pub u32);

/// The kind of a node. All arithmetic is [`NodeKind::Op`]; the other kinds connect the graph to
/// inputs and variables.
#[derive(Clone, Debug)]
pub enum NodeKind {
    /// An operation.
    Op(Arc<dyn OpDef>),
    /// A value that the caller feeds.
    Placeholder,
    /// A variable's value at the start of the run.
    Read(VariableId),
    /// A variable's value after the updates in the same run that were built before this node.
    Current(VariableId),
    /// Assigns input 0 to a variable.
    Assign {
        /// The variable.
        variable: VariableId,
        /// Whether this replaces the value without reading it, which is allowed once per run.
        plain: bool,
    },
    /// A group of nodes that run together.
    Group,
}

impl NodeKind {
    /// Returns the kind's name in dumps and errors.
    pub fn name(&self) -> &str {
        match self {
            NodeKind::Op(op) => op.name(),
            NodeKind::Placeholder => "Placeholder",
            NodeKind::Read(_) => "Read",
            NodeKind::Current(_) => "Current",
            NodeKind::Assign { plain: true, .. } => "Assign",
            NodeKind::Assign { .. } => "Update",
            NodeKind::Group => "Group",
        }
    }
}

/// The role of a node in training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Role {
    /// No special role.
    #[default]
    Plain,
    /// A cost, which must be finite before any variable changes.
    Cost,
    /// The gradient of a variable. Optimization passes keep it as a value of its own, so that
    /// optimizers process all gradients alike and in one pass.
    Gradient,
}

/// A node of the graph.
#[derive(Clone, Debug)]
pub struct Node {
    /// The kind.
    pub kind: NodeKind,
    /// Its full name, unique in the graph.
    pub name: String,
    /// The tensors it reads.
    pub inputs: Vec<TensorId>,
    /// Nodes that run whenever this one does: the members of a group.
    pub runs: Vec<NodeId>,
    /// Type and shape of each output.
    pub outputs: Vec<Spec>,
    /// The user's line that created it.
    pub site: Site,
    /// Its role in training.
    pub role: Role,
    /// The costs it is a gradient of. A run that changes variables computes them too, to check that
    /// they are finite.
    pub costs: Vec<NodeId>,
    /// The tower it was built in; 0 outside towers.
    pub tower: usize,
    /// The recompute blocks that it was built in, outermost first.
    pub blocks: Vec<u32>,
    /// The order of the derivative that it is part of: 0 for what users build, and for the gradient
    /// of a node one more than that node's.
    pub order: u32,
    /// Whether this is an input that accepts infinities.
    pub infinite: bool,
}
