//! Constant input, to benchmark the rest of a step.

use super::{InputSource, Start};
use crate::graph::{Tensor, TensorSpec};
use crate::tower::TowerContext;
use serde_json::Value;
use tensorpack_tensor::{Error, HostTensor, Result};

/// An input source of constant zeros for benchmarks: it reads and copies nothing.
#[derive(Clone, Debug)]
pub struct DummyConstantInput {
    sizes: Vec<Vec<usize>>,
}

impl DummyConstantInput {
    /// Creates an input source with these sizes, one list per input.
    pub fn new(sizes: impl Into<Vec<Vec<usize>>>) -> DummyConstantInput {
        DummyConstantInput { sizes: sizes.into() }
    }
}

impl InputSource for DummyConstantInput {
    fn size(&self) -> Option<u64> {
        None
    }

    fn tensors(&mut self, t: &TowerContext, signature: &[TensorSpec]) -> Result<Vec<Tensor>> {
        if self.sizes.len() != signature.len() {
            return Err(Error::argument(format!(
                "DummyConstantInput has sizes for {} inputs, but the model has {}",
                self.sizes.len(),
                signature.len()
            )));
        }
        let constant = |(spec, sizes): (&TensorSpec, &Vec<usize>)| {
            Ok(t.graph().constant(HostTensor::zeros(spec.dtype, sizes.clone())?))
        };
        signature.iter().zip(&self.sizes).map(constant).collect()
    }

    fn start(&mut self, _: Start<'_>) -> Result<()> {
        log::warn!("training on constant zeros (DummyConstantInput): use it for benchmarks only");
        Ok(())
    }

    fn next(&mut self) -> Result<&[(String, HostTensor)]> {
        Ok(&[])
    }

    fn state(&self) -> Value {
        Value::Null
    }
}
