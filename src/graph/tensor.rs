//! Handles to tensors and operations of a graph.

use super::{Graph, NodeId, OpDef, Role, Spec, TensorId};
use std::fmt;
use std::sync::Arc;
use tensorpack_tensor::{DType, Dim, Error, ErrorKind, Result, Shape, Site};

/// A value in a graph: a cheap handle to one output of a node. Operations on tensors add nodes and
/// return tensors. The graph keeps the first error for [`Graph::freeze`] to return; an operation
/// that fails returns a poison tensor, and operations on poison tensors return poison without
/// another error.
#[derive(Clone)]
pub struct Tensor {
    pub(super) graph: Graph,
    /// `None` for a poison tensor.
    pub(super) id: Option<TensorId>,
    pub(super) spec: Spec,
}

impl Tensor {
    /// Adds an operation to the graph of its first input. All operations, including a user's own,
    /// are added this way.
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

    /// Returns a poison tensor, which takes the place of a tensor that could not be built.
    pub(crate) fn poison(graph: &Graph) -> Tensor {
        Tensor { graph: graph.clone(), id: None, spec: Spec::new(DType::F32, Shape::scalar()) }
    }

    /// Returns whether this is a poison tensor.
    pub(crate) fn is_poison(&self) -> bool {
        self.id.is_none()
    }

    /// Returns the graph it belongs to.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns the error that this tensor is used in another graph than its own.
    pub(crate) fn belongs_elsewhere(&self) -> Error {
        let what = match self.is_poison() {
            true => "a tensor that could not be built".to_string(),
            false => format!("{self:?}"),
        };
        Error::new(ErrorKind::Graph, format!("{what} belongs to another graph")).note(
            "the body of a loop and a branch have graphs of their own: pass tensors from outside with \
             `captured`, to a branch as `inputs`, and return what is used outside",
        )
    }

    /// Returns its identifier in the graph, or `None` for a poison tensor.
    pub fn id(&self) -> Option<TensorId> {
        self.id
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.spec.dtype
    }

    /// Returns the shape.
    pub fn shape(&self) -> &Shape {
        &self.spec.shape
    }

    /// Returns the number of dimensions.
    pub fn rank(&self) -> usize {
        self.spec.shape.rank()
    }

    /// Returns the type and shape.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Returns the full name.
    pub fn name(&self) -> String {
        self.id.map_or_else(|| "?".into(), |id| self.graph.tensor_name(id))
    }

    /// Returns the line that made this tensor, if it is known.
    pub(crate) fn site(&self) -> Option<Site> {
        self.graph.node_site(self.id?.node)
    }

    /// Names this tensor `name` in the current scope, and returns it.
    #[track_caller]
    pub fn named(&self, name: &str) -> Tensor {
        self.graph.name_tensor(self, name);
        self.clone()
    }

    /// Marks this tensor as a cost: a run that changes variables first checks that the cost is
    /// finite.
    pub fn mark_cost(&self) {
        self.graph.set_role(self, Role::Cost);
    }

    /// Returns whether this tensor is marked as a cost.
    pub(crate) fn is_cost(&self) -> bool {
        self.graph.role(self) == Some(Role::Cost)
    }

    /// Marks this tensor as the gradient of `cost` with respect to a variable.
    pub(crate) fn mark_gradient_of(&self, cost: &Tensor) {
        self.graph.set_gradient(self, cost);
    }

    /// Records `error` as this graph's error, at the caller's line, and returns a poison tensor.
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

/// An operation to run for its effect: an update of a variable, or a group of operations.
#[derive(Clone)]
pub struct Op {
    pub(super) graph: Graph,
    pub(super) node: Option<NodeId>,
}

impl Op {
    pub(super) fn poison(graph: &Graph) -> Op {
        Op { graph: graph.clone(), node: None }
    }

    /// Returns the graph it belongs to.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns its node, or `None` if it could not be built.
    pub fn id(&self) -> Option<NodeId> {
        self.node
    }

    /// Returns the full name.
    pub fn name(&self) -> String {
        self.node.map_or_else(|| "?".into(), |id| self.graph.node_name(id))
    }
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Op({})", self.name())
    }
}

/// Name, type and shape of an input. The signature of a tower function is a list of these.
///
/// Two specs are equal if all but their lines are.
#[derive(Clone, Debug)]
#[doc(alias = "InputDesc")]
pub struct TensorSpec {
    /// The name it is fed under.
    pub name: String,
    /// The element type.
    pub dtype: DType,
    /// The sizes; `None` for a size that is known only when the input is fed.
    pub sizes: Vec<Option<usize>>,
    /// Whether infinities may be fed. NaN is always rejected.
    pub infinite: bool,
    /// The line that created the spec. Errors about the input point there.
    pub site: Site,
}

impl PartialEq for TensorSpec {
    fn eq(&self, other: &TensorSpec) -> bool {
        let TensorSpec { name, dtype, sizes, infinite, site: _ } = self;
        (name, dtype, sizes, infinite) == (&other.name, &other.dtype, &other.sizes, &other.infinite)
    }
}

impl Eq for TensorSpec {}

impl TensorSpec {
    /// Creates the spec of an input of any element type.
    #[track_caller]
    pub fn new(name: impl Into<String>, dtype: DType, sizes: impl Into<Vec<Option<usize>>>) -> TensorSpec {
        TensorSpec { name: name.into(), dtype, sizes: sizes.into(), infinite: false, site: Site::caller() }
    }

    /// Creates the spec of an f32 input.
    #[track_caller]
    pub fn f32(name: impl Into<String>, sizes: impl Into<Vec<Option<usize>>>) -> TensorSpec {
        TensorSpec::new(name, DType::F32, sizes)
    }

    /// Creates the spec of an i32 input.
    #[track_caller]
    pub fn i32(name: impl Into<String>, sizes: impl Into<Vec<Option<usize>>>) -> TensorSpec {
        TensorSpec::new(name, DType::I32, sizes)
    }

    /// Allows infinities in the fed values, for example in an additive attention mask. By default
    /// they are rejected; NaN always is.
    #[must_use]
    pub fn allow_infinite(self) -> TensorSpec {
        TensorSpec { infinite: true, ..self }
    }

    /// Returns this spec with the name `scope/NAME`, or unchanged if the scope is empty.
    pub(crate) fn within(&self, scope: &str) -> TensorSpec {
        let name = if scope.is_empty() { self.name.clone() } else { format!("{scope}/{}", self.name) };
        TensorSpec { name, ..self.clone() }
    }
}

/// Returns whether a value of these sizes would match an input of the sizes `expected` if it had
/// one more dimension, the first one.
pub(crate) fn lacks_batch(expected: &[Option<usize>], sizes: &[usize]) -> bool {
    let Some((_, rest)) = expected.split_first() else { return false };
    rest.len() == sizes.len() && rest.iter().zip(sizes).all(|(e, n)| e.is_none_or(|e| e == *n))
}

/// Resolves an axis as users write it: negative axes count from the end.
pub(crate) fn axis_in(axis: isize, rank: usize) -> Result<usize> {
    let at = if axis < 0 { axis + rank as isize } else { axis };
    if (0..rank as isize).contains(&at) {
        Ok(at as usize)
    } else {
        Err(Error::shape(format!("axis {axis} is out of range for a tensor of rank {rank}")))
    }
}

/// Builds a shape from known sizes, with a fresh symbol for each unknown one.
pub(super) fn dims_of(sizes: &[Option<usize>], mut fresh: impl FnMut() -> Dim) -> Shape {
    sizes.iter().map(|s| s.map_or_else(&mut fresh, Dim::Known)).collect::<Vec<_>>().into()
}
