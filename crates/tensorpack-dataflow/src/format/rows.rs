//! Arrays in memory, read row by row.

use super::RandomAccess;
use super::check_index::check_index;
use super::endian::byte_count;
use crate::Sample;
use std::sync::Arc;
use tensorpack_tensor::{Error, HostTensor, Result};

/// Arrays in memory with the same number of rows. Sample `i` is row `i` of each.
#[derive(Clone, Debug)]
pub struct Rows {
    arrays: Arc<[HostTensor]>,
    len: usize,
}

impl Rows {
    /// Creates a source from `arrays`.
    pub fn new(arrays: Vec<HostTensor>) -> Result<Rows> {
        let sizes: Vec<_> = arrays.iter().map(|a| a.sizes()).collect();
        let len = match sizes.first().and_then(|s| s.first()) {
            Some(&len) if sizes.iter().all(|s| s.first() == Some(&len)) => len,
            _ => {
                let why = format!("arrays of shapes {sizes:?} have different numbers of rows");
                return Err(Error::shape(why));
            }
        };
        Ok(Rows { arrays: arrays.into(), len })
    }

    /// Returns the arrays.
    pub fn arrays(&self) -> &[HostTensor] {
        &self.arrays
    }
}

impl RandomAccess for Rows {
    fn len(&self) -> u64 {
        self.len as u64
    }

    fn get(&self, index: u64) -> Result<Sample> {
        let index = check_index(index, self.len)?;
        let row = |array: &HostTensor| {
            let sizes = &array.sizes()[1..];
            let bytes = byte_count(array.dtype(), sizes)?;
            let mut row = HostTensor::zeros(array.dtype(), sizes)?;
            row.copy_from_bytes(&array.as_bytes()[index * bytes..][..bytes])?;
            Ok(row)
        };
        self.arrays.iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_is_one_row_of_each_array() {
        let x = HostTensor::new([2, 3], vec![1i64, 2, 3, 4, 5, 6]).unwrap();
        let y = HostTensor::new([2], vec![true, false]).unwrap();
        let rows = Rows::new(vec![x, y]).unwrap();
        assert_eq!(rows.len(), 2);
        let expected = vec![HostTensor::new([3], vec![4i64, 5, 6]).unwrap(), HostTensor::scalar(false)];
        assert_eq!(rows.get(1).unwrap(), expected);
    }

    #[test]
    fn arrays_with_different_row_counts_are_rejected() {
        let x = HostTensor::new([2], vec![1, 2]).unwrap();
        assert!(Rows::new(vec![x.clone(), HostTensor::scalar(1)]).is_err());
        assert!(Rows::new(vec![x, HostTensor::new([1], vec![1]).unwrap()]).is_err());
        assert!(Rows::new(vec![]).is_err());
    }
}
