//! Logs tensors.

use super::proxy::forward;
use super::{Callback, ProcessTensors};

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

impl Callback for TensorPrinter {
    forward!(0: setup_graph before_run after_run);
}
