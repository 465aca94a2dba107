//! The dtype and shape of a sample's component.

use tensorpack_tensor::{DType, HostTensor, Result};

/// The dtype and shape that a component has in every sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComponentSpec {
    pub(crate) dtype: DType,
    pub(crate) sizes: Vec<usize>,
}

impl ComponentSpec {
    /// Creates a spec. Empty `sizes` is a scalar.
    pub fn new(dtype: DType, sizes: impl Into<Vec<usize>>) -> ComponentSpec {
        ComponentSpec { dtype, sizes: sizes.into() }
    }

    /// Returns the number of elements per sample.
    pub(crate) fn elements(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Allocates a batch of `rows` samples of this component.
    pub(crate) fn batch(&self, rows: usize) -> Result<HostTensor> {
        HostTensor::zeros(self.dtype, [&[rows], &self.sizes[..]].concat())
    }
}
