//! Input that is made inside the graph.

use super::{InputSource, Start};
use crate::graph::{Tensor, TensorSpec};
use crate::tower::TowerContext;
use serde_json::Value;
use tensorpack_tensor::{Error, HostTensor, Result};

type Function = Box<dyn Fn(&TowerContext) -> Vec<Tensor>>;

/// Tensors that a function builds in each tower: a data set held by the graph and a position in it, random numbers, and
/// the like. What moves a position goes to `UPDATE_OPS`; being variables, positions are in checkpoints.
pub struct TensorInput {
    function: Function,
    size: Option<u64>,
}

impl TensorInput {
    /// What this function builds.
    pub fn new(function: impl Fn(&TowerContext) -> Vec<Tensor> + 'static) -> TensorInput {
        TensorInput { function: Box::new(function), size: None }
    }

    /// Which has this many batches a pass.
    #[must_use]
    pub fn with_size(self, batches: u64) -> TensorInput {
        TensorInput { size: Some(batches), ..self }
    }
}

impl InputSource for TensorInput {
    fn size(&self) -> Option<u64> {
        self.size
    }

    fn tensors(&mut self, t: &TowerContext, signature: &[TensorSpec]) -> Result<Vec<Tensor>> {
        let tensors = t.build(|t| (self.function)(t));
        t.graph().first_error()?;
        if tensors.len() != signature.len() {
            return Err(Error::argument(format!(
                "the function of TensorInput made {} tensors, but the model takes {} inputs",
                tensors.len(),
                signature.len()
            )));
        }
        for (spec, tensor) in signature.iter().zip(&tensors) {
            let shape = tensor.shape();
            let fits = spec.sizes.len() == shape.rank()
                && spec.sizes.iter().zip(shape.iter()).all(|(s, d)| match (s, d.known()) {
                    (Some(s), Some(d)) => *s == d,
                    _ => true,
                });
            if spec.dtype != tensor.dtype() || !fits {
                return Err(Error::shape(format!(
                    "the input {} takes {}{:?}, but TensorInput made {}{shape}",
                    spec.name,
                    spec.dtype,
                    spec.sizes,
                    tensor.dtype()
                )));
            }
        }
        Ok(tensors)
    }

    fn start(&mut self, _: Start<'_>) -> Result<()> {
        Ok(())
    }

    fn next(&mut self) -> Result<&[(String, HostTensor)]> {
        Ok(&[])
    }

    fn state(&self) -> Value {
        Value::Null
    }

    fn in_graph(&self) -> bool {
        true
    }
}
