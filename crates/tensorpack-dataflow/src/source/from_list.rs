//! Samples in memory.

use crate::{RandomAccess, Sample};
use std::sync::Arc;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// A list of samples in memory.
#[derive(Clone, Debug)]
#[doc(alias = "DataFromList")]
pub struct FromList {
    samples: Arc<[Sample]>,
}

impl FromList {
    /// Creates a source from `samples`.
    pub fn new(samples: Vec<Sample>) -> FromList {
        FromList { samples: samples.into() }
    }
}

impl RandomAccess for FromList {
    fn len(&self) -> u64 {
        self.samples.len() as u64
    }

    fn get(&self, index: u64) -> Result<Sample> {
        self.samples.get(index as usize).cloned().ok_or_else(|| {
            let n = self.samples.len();
            Error::new(ErrorKind::Data, format!("sample {index} is out of range for a list of {n}"))
        })
    }
}
