//! Samples computed by a function.

use crate::{RandomAccess, Sample};
use std::sync::Arc;
use tensorpack_tensor::Result;

/// A fixed number of samples, each computed from its index.
#[derive(Clone)]
pub struct FromFn {
    size: u64,
    function: Arc<dyn Fn(u64) -> Result<Sample> + Send + Sync>,
}

impl FromFn {
    /// Creates `size` samples computed by `function`.
    pub fn new(size: u64, function: impl Fn(u64) -> Result<Sample> + Send + Sync + 'static) -> FromFn {
        FromFn { size, function: Arc::new(function) }
    }
}

impl RandomAccess for FromFn {
    fn len(&self) -> u64 {
        self.size
    }

    fn get(&self, index: u64) -> Result<Sample> {
        (self.function)(index)
    }
}
