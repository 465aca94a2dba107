//! What an operation is: the trait that one op's file implements.

use super::Tensor;
use crate::kir::{LowerCx, View};
use crate::reference::{Array, EvaluateCx};
use std::any::Any;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use tensorpack_tensor::{DType, Error, ErrorKind, Result, Shape};

/// Type and shape of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    /// The element type.
    pub dtype: DType,
    /// The shape, some dims perhaps unknown.
    pub shape: Shape,
}

impl Spec {
    /// A spec of these.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> Spec {
        Spec { dtype, shape: shape.into() }
    }
}

/// What may be done with an operation beside running it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpTraits {
    /// Equal operations on equal inputs may be one, and operations on constants may run once.
    pub mergeable: bool,
    /// Gradients end here on purpose.
    pub stops_gradient: bool,
}

impl OpTraits {
    /// The result depends on attributes and inputs alone.
    pub const PURE: OpTraits = OpTraits { mergeable: true, stops_gradient: false };
    /// Every occurrence is its own: random and collective operations.
    pub const UNIQUE: OpTraits = OpTraits { mergeable: false, stops_gradient: false };
}

/// Equality and hash of an operation's attributes, for finding operations that are computed twice. Every type that
/// is `Eq + Hash` has it: derive those two on the op's struct.
pub trait OpIdentity: Any {
    /// Whether `other` is the same operation with the same attributes.
    fn same(&self, other: &dyn OpDef) -> bool;
    /// A hash of type and attributes.
    fn identity_hash(&self) -> u64;
}

impl<T: Any + Eq + Hash> OpIdentity for T {
    fn same(&self, other: &dyn OpDef) -> bool {
        let other: &dyn Any = other;
        other.downcast_ref::<T>() == Some(self)
    }

    fn identity_hash(&self) -> u64 {
        let mut h = DefaultHasher::new();
        self.type_id().hash(&mut h);
        self.hash(&mut h);
        h.finish()
    }
}

/// An operation: its shape rule, its gradient, its lowering and its reference implementation, in one place.
///
/// A user's own operation implements this in their own crate and is added to a graph with [`Tensor::apply`]; nothing
/// registers it. `docs/extend/op.md` walks through one.
pub trait OpDef: OpIdentity + Debug + Send + Sync {
    /// The op's name in errors and dumps.
    fn name(&self) -> &str;

    /// Type and shape of the outputs, or why the inputs do not fit. Runs once while the graph is built, when dims may
    /// be unknown, and again when all are known: what could not be judged the first time is judged the second.
    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>>;

    /// Whether input `i` is taken for its shape alone, so that its value need not be computed or kept.
    fn shape_only(&self, _i: usize) -> bool {
        false
    }

    /// The gradients with respect to the inputs, written as ordinary tensors so that they can be differentiated
    /// again. `None` where there is none.
    fn grad(&self, _cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Err(Error::new(ErrorKind::Gradient, format!("{} has no gradient", self.name())))
    }

    /// Emits kernels that compute the outputs; all shapes are known.
    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>>;

    /// Computes the outputs from their definition, in f64, for the device `reference`: plain loops over indices that
    /// share nothing with `lower`. An op whose lowering is a [`CustomKernel`](crate::kir::CustomKernel) can run that
    /// with [`EvaluateCx::custom`]. The default is an error.
    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let _ = cx;
        let why = format!("{} has no reference implementation", self.name());
        Err(Error::new(ErrorKind::Unsupported, why)
            .note("implement OpDef::evaluate for it, or run it on another device"))
    }

    /// What may be done with it.
    fn traits(&self) -> OpTraits {
        OpTraits::PURE
    }

    /// For an operation in which all towers take part: what it is called in each of them.
    fn collective(&self) -> Option<&str> {
        None
    }

    /// What a NaN in the result most likely means, for the error that reports one.
    fn nan_hint(&self) -> Option<String> {
        None
    }
}

/// What an operation's `grad` works with.
#[derive(Debug)]
pub struct GradCx<'a> {
    pub(crate) inputs: &'a [Tensor],
    pub(crate) outputs: &'a [Tensor],
    pub(crate) grads: &'a [Option<Tensor>],
    pub(crate) needed: &'a [bool],
}

impl GradCx<'_> {
    /// Input `i` of the operation.
    pub fn input(&self, i: usize) -> &Tensor {
        &self.inputs[i]
    }

    /// How many inputs there are.
    pub fn input_count(&self) -> usize {
        self.inputs.len()
    }

    /// Output `i` of the operation.
    pub fn output(&self, i: usize) -> &Tensor {
        &self.outputs[i]
    }

    /// The gradient of the cost with respect to output `i`, if the cost depends on it.
    pub fn output_grad(&self, i: usize) -> Option<&Tensor> {
        self.grads[i].as_ref()
    }

    /// The gradient with respect to output 0, for operations with one output.
    pub fn dy(&self) -> &Tensor {
        self.grads[0]
            .as_ref()
            .expect("an op with one output is differentiated only where the cost depends on it")
    }

    /// Whether anybody needs the gradient of input `i`.
    pub fn needs(&self, i: usize) -> bool {
        self.needed[i]
    }
}
