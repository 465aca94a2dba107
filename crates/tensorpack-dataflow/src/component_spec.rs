//! What a component of samples looks like.

use tensorpack_tensor::{DType, HostTensor, Result};

/// The element type and the sizes that a component has in every sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComponentSpec {
    pub(crate) dtype: DType,
    pub(crate) sizes: Vec<usize>,
}

impl ComponentSpec {
    /// Elements of `dtype` in tensors of `sizes`; no sizes is a scalar.
    pub fn new(dtype: DType, sizes: impl Into<Vec<usize>>) -> ComponentSpec {
        ComponentSpec { dtype, sizes: sizes.into() }
    }

    /// How many elements one sample has of it.
    pub(crate) fn elements(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Room for `rows` of it.
    pub(crate) fn batch(&self, rows: usize) -> Result<HostTensor> {
        HostTensor::zeros(self.dtype, [&[rows], &self.sizes[..]].concat())
    }
}
