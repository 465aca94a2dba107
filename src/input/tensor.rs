//! Input that is built inside the graph.

use super::batch::shape_text;
use super::{InputSource, Start};
use crate::graph::{Tensor, TensorSpec};
use crate::tower::TowerContext;
use serde_json::Value;
use tensorpack_tensor::{Error, HostTensor, Result};

type Function = Box<dyn Fn(&TowerContext) -> Vec<Tensor>>;

/// An input source whose tensors are built by a function in each tower: for example a data set held
/// in the graph with a position in it, or random numbers. Operations that advance a position belong
/// in `UPDATE_OPS`. Positions are variables, so checkpoints contain them.
pub struct TensorInput {
    function: Function,
    size: Option<u64>,
}

impl TensorInput {
    /// Creates an input source from this function.
    pub fn new(function: impl Fn(&TowerContext) -> Vec<Tensor> + 'static) -> TensorInput {
        TensorInput { function: Box::new(function), size: None }
    }

    /// Sets the number of batches per epoch.
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
                "the TensorInput function returned {} tensors, but the model has {} inputs",
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
                    "input {} expects {}{}, but the TensorInput function returned {}{shape}",
                    spec.name,
                    spec.dtype,
                    shape_text(&spec.sizes),
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
