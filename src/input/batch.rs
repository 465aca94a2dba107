//! Conversion of samples to feeds.

use super::input_source::scope;
use crate::graph::{Tensor, TensorSpec, lacks_batch};
use crate::predict::{MISSING_BATCH, wrong_component_count};
use crate::tower::TowerContext;
use tensorpack_dataflow::Sample;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// The inputs of all towers, in tower order, with their values.
#[derive(Debug, Default)]
pub(super) struct Feeds {
    specs: Vec<TensorSpec>,
    /// The number of inputs of one tower.
    inputs: usize,
    feeds: Vec<(String, HostTensor)>,
}

impl Feeds {
    /// Adds the inputs of another tower.
    pub(super) fn tower(&mut self, t: &TowerContext, signature: &[TensorSpec]) -> Vec<Tensor> {
        let scope = scope(t);
        let specs: Vec<TensorSpec> = signature.iter().map(|s| s.within(&scope)).collect();
        let tensors = specs.iter().map(|s| t.graph().input(s)).collect();
        self.inputs = signature.len();
        self.feeds.extend(specs.iter().map(|s| (s.name.clone(), HostTensor::scalar(0u8))));
        self.specs.extend(specs);
        tensors
    }

    /// Returns the number of towers.
    pub(super) fn towers(&self) -> usize {
        self.specs.len() / self.inputs.max(1)
    }

    /// Sets the next values of tower `tower`.
    pub(super) fn fill(&mut self, tower: usize, sample: Sample) -> Result<()> {
        if sample.len() != self.inputs {
            let inputs: Vec<&str> = self.specs.iter().take(self.inputs).map(|s| s.name.as_str()).collect();
            return Err(wrong_component_count("it", sample.len(), &inputs));
        }
        let from = tower * self.inputs;
        for (i, value) in sample.into_iter().enumerate() {
            let spec = &self.specs[from + i];
            let fits = spec.sizes.len() == value.sizes().len()
                && spec.sizes.iter().zip(value.sizes()).all(|(s, &n)| s.is_none_or(|s| s == n));
            if spec.dtype != value.dtype() || !fits {
                let e = Error::new(
                    ErrorKind::Data,
                    format!(
                        "component {i} is {}{:?}, but input {} expects {}{}",
                        value.dtype(),
                        value.sizes(),
                        spec.name,
                        spec.dtype,
                        shape_text(&spec.sizes)
                    ),
                );
                let lacks_batch = lacks_batch(&spec.sizes, value.sizes());
                return Err(if lacks_batch { e.note(MISSING_BATCH) } else { e });
            }
            self.feeds[from + i].1 = value;
        }
        Ok(())
    }

    /// Returns the values of the last tower.
    pub(super) fn last_tower(&self) -> impl Iterator<Item = &HostTensor> {
        self.feeds[self.feeds.len() - self.inputs..].iter().map(|(_, value)| value)
    }

    /// Returns the feeds, by name.
    pub(super) fn feeds(&self) -> &[(String, HostTensor)] {
        &self.feeds
    }
}

/// Returns the error for data without a single batch.
pub(crate) fn no_batch() -> Error {
    Error::new(ErrorKind::Data, "the dataflow is empty: it gave no batch").note(
        "there may be fewer samples than the batch size: reduce the batch size, or call keep_remainder()",
    )
}

/// Formats sizes as in `[?, 28, 28]`.
pub(super) fn shape_text(sizes: &[Option<usize>]) -> String {
    let part = |s: &Option<usize>| s.map_or_else(|| "?".into(), |n| n.to_string());
    format!("[{}]", sizes.iter().map(part).collect::<Vec<_>>().join(", "))
}
