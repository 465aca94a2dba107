//! Writes tensors to files.

use super::{Callback, GraphCx, ProcessTensors, ProxyCallback};
use crate::io::safetensors;
use tensorpack_tensor::Result;

/// Writes the values of tensors at every step to `DumpTensor-STEP.safetensors` in the log
/// directory. Wrap it in a [`PeriodicCallback`](super::PeriodicCallback) to write fewer files.
#[derive(Debug)]
#[doc(alias = "DumpTensor")]
pub struct DumpTensors(ProcessTensors);

impl DumpTensors {
    /// Writes the tensors with these names, in the graph or in the first training tower. The files
    /// use the same names.
    pub fn new<S: Into<String>>(names: impl IntoIterator<Item = S>) -> DumpTensors {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        let keys = names.clone();
        DumpTensors(ProcessTensors::new(names, move |cx, values| {
            let Some(dir) = cx.logdir() else { return Ok(()) };
            let named: Vec<_> = keys.iter().cloned().zip(values.iter().cloned()).collect();
            safetensors::write(dir.join(format!("DumpTensor-{}.safetensors", cx.global_step + 1)), &named)
        }))
    }
}

impl ProxyCallback for DumpTensors {
    type Inner = ProcessTensors;

    fn inner(&self) -> &ProcessTensors {
        &self.0
    }

    fn inner_mut(&mut self) -> &mut ProcessTensors {
        &mut self.0
    }

    fn name(&self) -> String {
        "DumpTensors".into()
    }

    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        g.need_logdir("DumpTensors")?;
        self.0.setup_graph(g)
    }
}
