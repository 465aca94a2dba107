//! What a graph is made of.

use super::{OpDef, Spec};
use std::sync::Arc;
use tensorpack_tensor::Site;

/// A node, by number. Nodes only read nodes with smaller numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// One output of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId {
    /// The node.
    pub node: NodeId,
    /// Which of its outputs.
    pub output: u32,
}

/// A variable, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VariableId(pub u32);

/// What a node is. All arithmetic is [`NodeKind::Op`]; the others tie the graph to what is outside it.
#[derive(Clone, Debug)]
pub enum NodeKind {
    /// An operation.
    Op(Arc<dyn OpDef>),
    /// A value the caller feeds.
    Placeholder,
    /// A variable's value at the start of the run.
    Read(VariableId),
    /// A variable's value after the updates that were built before this one and are part of the same run.
    Current(VariableId),
    /// Gives a variable its next value: input 0.
    Assign {
        /// The variable.
        variable: VariableId,
        /// Whether this replaces the value without reading it, which may happen once in a run.
        plain: bool,
    },
    /// Several nodes to run together.
    Group,
}

impl NodeKind {
    /// The kind's name in dumps and errors.
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

/// What a node is to training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Role {
    /// Nothing in particular.
    #[default]
    Plain,
    /// A cost: it must be finite before any variable changes.
    Cost,
    /// The gradient of a variable: kept as it is, so that what optimizers do to gradients is the same for all of them
    /// and can be done to all at once.
    Gradient,
}

/// A node of the graph.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it is.
    pub kind: NodeKind,
    /// Its full name, unique in the graph.
    pub name: String,
    /// What it reads.
    pub inputs: Vec<TensorId>,
    /// Nodes that run whenever this one does: the members of a group.
    pub runs: Vec<NodeId>,
    /// Type and shape of each output.
    pub outputs: Vec<Spec>,
    /// The user's line that made it.
    pub site: Site,
    /// What it is to training.
    pub role: Role,
    /// The costs it is a gradient of: a run that changes variables computes them too, since they
    /// must be finite.
    pub costs: Vec<NodeId>,
    /// The tower it was built in; 0 outside of towers.
    pub tower: usize,
    /// Whether this is an input that accepts infinities.
    pub infinite: bool,
}
