//! Indices that are there.

use tensorpack_tensor::{Error, Result};

/// `index`, if it is one of `len` samples.
pub(crate) fn check_index(index: u64, len: usize) -> Result<usize> {
    usize::try_from(index)
        .ok()
        .filter(|&i| i < len)
        .ok_or_else(|| Error::argument(format!("there is no sample {index}, of {len}")))
}
