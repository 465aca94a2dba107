//! Logs tensors.

use super::{ProcessTensors, ProxyCallback};

/// Logs the values of tensors at every step. Large tensors are abbreviated to their first elements.
#[derive(Debug)]
pub struct TensorPrinter(ProcessTensors);

impl TensorPrinter {
    /// Logs the tensors with these names, in the graph or in the first training tower.
    pub fn new<S: Into<String>>(names: impl IntoIterator<Item = S>) -> TensorPrinter {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        let labels = names.clone();
        TensorPrinter(ProcessTensors::new(names, move |cx, values| {
            for (label, value) in labels.iter().zip(values) {
                log::info!("step {}: {label} = {value:?}", cx.global_step + 1);
            }
            Ok(())
        }))
    }
}

impl ProxyCallback for TensorPrinter {
    type Inner = ProcessTensors;

    fn inner(&self) -> &ProcessTensors {
        &self.0
    }

    fn inner_mut(&mut self) -> &mut ProcessTensors {
        &mut self.0
    }

    fn name(&self) -> String {
        "TensorPrinter".into()
    }
}
