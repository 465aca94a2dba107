//! Handles to what is in a graph.

use super::{Graph, NodeId, OpDef, Role, Spec, TensorId};
use std::fmt;
use std::sync::Arc;
use tensorpack_tensor::{DType, Dim, Error, Result, Shape};

/// A value in a graph: a cheap handle to one output of a node. Operations on tensors add nodes and return tensors;
/// what goes wrong is kept by the graph and returned by [`Graph::freeze`], and the tensor that could not be made
/// flows on silently.
#[derive(Clone)]
pub struct Tensor {
    pub(super) graph: Graph,
    /// `None` for a tensor that could not be made.
    pub(super) id: Option<TensorId>,
    pub(super) spec: Spec,
}

impl Tensor {
    /// Adds an operation to the graph of its first input. This is how every operation is added, a user's own too.
    #[track_caller]
    pub fn apply(op: impl OpDef, inputs: &[&Tensor]) -> Vec<Tensor> {
        inputs[0].graph.add_op(Arc::new(op), inputs)
    }

    /// [`Tensor::apply`] for operations with one output.
    #[track_caller]
    pub fn apply_one(op: impl OpDef, inputs: &[&Tensor]) -> Tensor {
        let graph = &inputs[0].graph;
        graph.add_op(Arc::new(op), inputs).pop().unwrap_or_else(|| Tensor::poison(graph))
    }

    /// A tensor that stands for one that could not be made.
    pub(crate) fn poison(graph: &Graph) -> Tensor {
        Tensor { graph: graph.clone(), id: None, spec: Spec::new(DType::F32, Shape::scalar()) }
    }

    /// Whether this stands for a tensor that could not be made.
    pub(crate) fn is_poison(&self) -> bool {
        self.id.is_none()
    }

    /// The graph it belongs to.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Its place in the graph, if it could be made.
    pub fn id(&self) -> Option<TensorId> {
        self.id
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.spec.dtype
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        &self.spec.shape
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.spec.shape.rank()
    }

    /// Type and shape.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The full name.
    pub fn name(&self) -> String {
        self.id.map_or_else(|| "?".into(), |id| self.graph.node_name(id.node))
    }

    /// The same tensor, found from now on under `name` in the current scope.
    #[track_caller]
    pub fn named(&self, name: &str) -> Tensor {
        self.graph.name_tensor(self, name);
        self.clone()
    }

    /// Marks a cost: a run that changes variables checks that it is finite before it changes any.
    pub fn mark_cost(&self) {
        self.graph.set_role(self, Role::Cost);
    }

    /// Marks the gradient of `cost` with respect to a variable.
    pub(crate) fn mark_gradient_of(&self, cost: &Tensor) {
        self.graph.set_gradient(self, cost);
    }

    /// Puts `message` on record as this graph's error, at the caller's line, and returns a poison tensor.
    #[track_caller]
    pub(crate) fn fail(&self, op: &str, error: Error) -> Tensor {
        self.graph.record(op, &[self], error);
        Tensor::poison(&self.graph)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {}{})", self.name(), self.dtype(), self.shape())
    }
}

/// Something to run for what it does: an update of a variable, or a group of operations.
#[derive(Clone)]
pub struct Op {
    pub(super) graph: Graph,
    pub(super) node: Option<NodeId>,
}

impl Op {
    pub(super) fn poison(graph: &Graph) -> Op {
        Op { graph: graph.clone(), node: None }
    }

    /// The graph it belongs to.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Its node, if it could be made.
    pub fn id(&self) -> Option<NodeId> {
        self.node
    }

    /// The full name.
    pub fn name(&self) -> String {
        self.node.map_or_else(|| "?".into(), |id| self.graph.node_name(id))
    }
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Op({})", self.name())
    }
}

/// What an input is called, and what it may be: the signature of a tower function is a list of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// The name it is fed under.
    pub name: String,
    /// The element type.
    pub dtype: DType,
    /// The sizes; `None` is known only when something is fed.
    pub sizes: Vec<Option<usize>>,
    /// Whether infinities may be fed. A NaN never may.
    pub infinite: bool,
}

impl TensorSpec {
    /// An input of any element type.
    pub fn new(name: impl Into<String>, dtype: DType, sizes: impl Into<Vec<Option<usize>>>) -> TensorSpec {
        TensorSpec { name: name.into(), dtype, sizes: sizes.into(), infinite: false }
    }

    /// An f32 input.
    pub fn f32(name: impl Into<String>, sizes: impl Into<Vec<Option<usize>>>) -> TensorSpec {
        TensorSpec::new(name, DType::F32, sizes)
    }

    /// An i32 input.
    pub fn i32(name: impl Into<String>, sizes: impl Into<Vec<Option<usize>>>) -> TensorSpec {
        TensorSpec::new(name, DType::I32, sizes)
    }

    /// Allows infinities in what is fed, for example in a mask that is added to scores. By default
    /// they are refused; NaN always is.
    #[must_use]
    pub fn allow_infinite(self) -> TensorSpec {
        TensorSpec { infinite: true, ..self }
    }

    /// The same under `scope/NAME`; itself if the scope is empty.
    pub(crate) fn within(&self, scope: &str) -> TensorSpec {
        let name = if scope.is_empty() { self.name.clone() } else { format!("{scope}/{}", self.name) };
        TensorSpec { name, ..self.clone() }
    }
}

/// An axis as users write it: negative ones count from the end.
pub(crate) fn axis_in(axis: isize, rank: usize) -> Result<usize> {
    let at = if axis < 0 { axis + rank as isize } else { axis };
    if (0..rank as isize).contains(&at) {
        Ok(at as usize)
    } else {
        Err(Error::shape(format!("axis {axis} is outside a tensor of rank {rank}")))
    }
}

/// The product of a shape's known dims and a fresh symbol for each unknown: helper for specs of inputs.
pub(super) fn dims_of(sizes: &[Option<usize>], mut fresh: impl FnMut() -> Dim) -> Shape {
    sizes.iter().map(|s| s.map_or_else(&mut fresh, Dim::Known)).collect::<Vec<_>>().into()
}
