//! Bounds checks for sample indices.

use tensorpack_tensor::{Error, Result};

/// Converts `index` to `usize`, or returns an error if it is not below `len`.
pub(crate) fn check_index(index: u64, len: usize) -> Result<usize> {
    usize::try_from(index)
        .ok()
        .filter(|&i| i < len)
        .ok_or_else(|| Error::argument(format!("sample {index} is out of range for {len} samples")))
}
