//! An input source for a subset of a model's inputs.

use super::input_source::scope;
use super::{InputSource, Start};
use crate::graph::{Tensor, TensorSpec, nearest_names};
use crate::tower::TowerContext;
use serde_json::Value;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// An input source that supplies a subset of the model's inputs, in any order. The other inputs
/// become placeholders; feed them if the run depends on them.
#[doc(alias = "remap_input_source")]
pub struct RemapInput {
    inner: Box<dyn InputSource>,
    names: Vec<String>,
}

impl RemapInput {
    /// Creates an input source whose components are the inputs of these names, in this order.
    pub fn new<S: Into<String>>(
        inner: impl InputSource + 'static,
        names: impl IntoIterator<Item = S>,
    ) -> RemapInput {
        RemapInput { inner: Box::new(inner), names: names.into_iter().map(Into::into).collect() }
    }
}

impl InputSource for RemapInput {
    fn size(&self) -> Option<u64> {
        self.inner.size()
    }

    fn tensors(&mut self, t: &TowerContext, signature: &[TensorSpec]) -> Result<Vec<Tensor>> {
        let find = |name: &String| {
            signature.iter().find(|s| s.name == *name).cloned().ok_or_else(|| {
                Error::new(ErrorKind::Name, format!("the model has no input named {name:?}"))
                    .note(nearest_names("inputs", name, signature.iter().map(|s| s.name.as_str())))
            })
        };
        let own: Vec<TensorSpec> = self.names.iter().map(find).collect::<Result<_>>()?;
        let tensors = self.inner.tensors(t, &own)?;
        let scope = scope(t);
        let pick = |spec: &TensorSpec| match self.names.iter().position(|n| *n == spec.name) {
            Some(i) => tensors[i].clone(),
            None => t.graph().input(&spec.within(&scope)),
        };
        Ok(signature.iter().map(pick).collect())
    }

    fn start(&mut self, start: Start<'_>) -> Result<()> {
        self.inner.start(start)
    }

    fn next(&mut self) -> Result<&[(String, HostTensor)]> {
        self.inner.next()
    }

    fn state(&self) -> Value {
        self.inner.state()
    }

    fn state_tensors(&self) -> Result<Vec<(String, HostTensor)>> {
        self.inner.state_tensors()
    }

    fn cannot_resume(&self) -> Option<String> {
        self.inner.cannot_resume()
    }

    fn in_graph(&self) -> bool {
        self.inner.in_graph()
    }

    fn report(&self) -> Vec<(String, f64)> {
        self.inner.report()
    }

    fn stop(&mut self) {
        self.inner.stop();
    }
}
