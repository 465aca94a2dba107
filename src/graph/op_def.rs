//! The trait that every operation implements.

use super::{Autocast, Tensor};
use crate::kir::{LowerCx, View};
use crate::onnx::{ExportCx, Value};
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
    /// The shape; some dims may be unknown.
    pub shape: Shape,
}

impl Spec {
    /// Creates a spec.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> Spec {
        Spec { dtype, shape: shape.into() }
    }
}

/// Properties that graph passes may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpTraits {
    /// Whether equal operations on equal inputs may be merged, and operations on constants folded.
    pub mergeable: bool,
    /// Whether the operation stops gradients on purpose.
    pub stops_gradient: bool,
}

impl OpTraits {
    /// The result depends only on attributes and inputs.
    pub const PURE: OpTraits = OpTraits { mergeable: true, stops_gradient: false };
    /// Every occurrence is distinct: random and collective operations.
    pub const UNIQUE: OpTraits = OpTraits { mergeable: false, stops_gradient: false };
}

/// Equality and hash of an operation's attributes, for common subexpression elimination. Every `Eq
/// + Hash` type implements it: derive both on the op's struct.
pub trait OpIdentity: Any {
    /// Returns whether `other` is the same operation with the same attributes.
    fn same(&self, other: &dyn OpDef) -> bool;
    /// Returns a hash of type and attributes.
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

/// An operation: its shape rule, gradient, lowering and reference implementation.
///
/// Users implement this trait for their own operations and add them to a graph with
/// [`Tensor::apply`]; no registration is needed. `docs/extend/op.md` walks through an example.
pub trait OpDef: OpIdentity + Debug + Send + Sync {
    /// Returns the op's name in errors and dumps.
    fn name(&self) -> &str;

    /// Returns the type and shape of the outputs, or an error if the inputs do not fit. Runs once
    /// while the graph is built, when dims may be unknown, and again when all dims are known, to
    /// check what could not be checked the first time.
    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>>;

    /// Returns the number of outputs, which is the length of what `infer` returns. A failed
    /// operation has this many poison tensors as its outputs.
    fn output_count(&self) -> usize {
        1
    }

    /// Returns whether only the shape of input `i` is used, so that its value need not be computed
    /// or kept.
    fn shape_only(&self, _i: usize) -> bool {
        false
    }

    /// Returns in which type the operation takes float input `i` where a graph computes in mixed
    /// precision. Defaults to [`Autocast::Widest`].
    fn autocast(&self, _i: usize) -> Autocast {
        Autocast::Widest
    }

    /// Builds the gradients with respect to the inputs from ordinary tensors, so that they can be
    /// differentiated again. An input without a gradient gets `None`.
    fn grad(&self, _cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Err(Error::new(ErrorKind::Gradient, format!("{} has no gradient", self.name())))
    }

    /// Emits kernels that compute the outputs; all shapes are known.
    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>>;

    /// Computes the outputs by definition, in f64, for the device `reference`: plain loops over
    /// indices that share no code with `lower`. An op whose lowering is a
    /// [`CustomKernel`](crate::kir::CustomKernel) can run that kernel with [`EvaluateCx::custom`].
    /// The default is an error.
    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let _ = cx;
        let why = format!("{} has no reference implementation", self.name());
        Err(Error::new(ErrorKind::Unsupported, why)
            .note("implement OpDef::evaluate for it, or run it on another device"))
    }

    /// Writes the operation as ONNX nodes, and returns the values of its outputs, for
    /// `OfflinePredictor::export_onnx`. An output
    /// that is not [used](ExportCx::is_used) may be any value. The default is an error.
    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let _ = cx;
        Err(Error::new(ErrorKind::Unsupported, format!("{} has no ONNX form", self.name())))
    }

    /// Returns the properties that graph passes may rely on.
    fn traits(&self) -> OpTraits {
        OpTraits::PURE
    }

    /// Returns the key of a collective operation, which is the same in all towers; `None`
    /// otherwise.
    fn collective(&self) -> Option<&str> {
        None
    }

    /// Returns the most likely cause of a NaN in the result, for the error that reports one.
    fn nan_hint(&self) -> Option<String> {
        None
    }
}

/// The context of [`OpDef::grad`]: inputs, outputs and the gradients of the outputs.
#[derive(Debug)]
pub struct GradCx<'a> {
    pub(crate) inputs: &'a [Tensor],
    pub(crate) outputs: &'a [Tensor],
    pub(crate) grads: &'a [Option<Tensor>],
    pub(crate) needed: &'a [bool],
}

impl GradCx<'_> {
    /// Returns input `i` of the operation.
    pub fn input(&self, i: usize) -> &Tensor {
        &self.inputs[i]
    }

    /// Returns the number of inputs.
    pub fn input_count(&self) -> usize {
        self.inputs.len()
    }

    /// Returns output `i` of the operation.
    pub fn output(&self, i: usize) -> &Tensor {
        &self.outputs[i]
    }

    /// Returns the gradient of the cost with respect to output `i`, if the cost depends on it.
    pub fn output_grad(&self, i: usize) -> Option<&Tensor> {
        self.grads[i].as_ref()
    }

    /// Returns the gradient with respect to output 0, for operations with one output.
    pub fn dy(&self) -> &Tensor {
        self.grads[0]
            .as_ref()
            .expect("an op with one output is differentiated only where the cost depends on it")
    }

    /// Returns whether the gradient of input `i` is needed.
    pub fn needs(&self, i: usize) -> bool {
        self.needed[i]
    }
}
