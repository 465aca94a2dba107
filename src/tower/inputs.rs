//! Inputs by name: a struct with one tensor per input.

use crate::graph::{Tensor, TensorSpec};
use tensorpack_tensor::Result;

/// The inputs of a model as a struct with a tensor per input, usually derived:
///
/// ```
/// use tensorpack::prelude::*;
///
/// #[derive(Inputs)]
/// struct Batch {
///     #[input(f32, [None, 28, 28])]
///     image: Tensor,
///     #[input(i32, [None])]
///     label: Tensor,
/// }
///
/// let expected = [TensorSpec::f32("image", [None, Some(28), Some(28)]), TensorSpec::i32("label", [None])];
/// assert_eq!(Batch::signature(), expected);
/// ```
///
/// An attribute that is missing or wrong does not compile:
///
/// ```compile_fail
/// use tensorpack::prelude::*;
///
/// #[derive(Inputs)]
/// struct Batch {
///     #[input(f23, [None, 28, 28])]
///     image: Tensor,
/// }
/// ```
///
/// Implement [`Model`](super::Model) to get this struct in `build_graph`. Elsewhere,
/// [`Inputs::signature`] is the input signature and [`Inputs::from_tensors`] names the tensors of a
/// tower function.
pub trait Inputs: Sized {
    /// Returns the input signature, in the order of the fields.
    fn signature() -> Vec<TensorSpec>;

    /// Creates the struct from tensors in the order of [`Inputs::signature`]. Returns an error if
    /// there are more or fewer.
    fn from_tensors(tensors: &[Tensor]) -> Result<Self>;
}
