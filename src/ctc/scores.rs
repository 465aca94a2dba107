//! The input of decoders: scores on the host.

use tensorpack_tensor::{Error, HostTensor, Result};

/// The log probabilities of each step of each example.
pub(super) struct Scores {
    values: Vec<f64>,
    time: usize,
    classes: usize,
    lengths: Vec<usize>,
}

impl Scores {
    /// Reads logits `[batch, time, classes]` and the number of steps of each example, integers
    /// `[batch]`.
    pub(super) fn new(logits: &HostTensor, lengths: &HostTensor, blank: usize) -> Result<Scores> {
        let &[batch, time, classes] = logits.sizes() else {
            return Err(Error::shape(format!(
                "expected logits [batch, time, classes], got {:?}",
                logits.sizes()
            )));
        };
        if !logits.dtype().is_float() || lengths.dtype().is_float() || lengths.sizes() != [batch] {
            let (l, n) = (logits.dtype(), lengths.dtype());
            return Err(Error::shape(format!(
                "expected float logits and {batch} integer lengths, got {l} and {n}{:?}",
                lengths.sizes()
            )));
        }
        if blank >= classes {
            return Err(Error::argument(format!(
                "the blank is class {blank}, but there are {classes} classes"
            )));
        }
        let mut values = logits.to_f64_vec();
        for (i, row) in values.chunks_exact_mut(classes).enumerate() {
            let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            if row.iter().any(|v| v.is_nan()) || !top.is_finite() {
                let (example, step) = (i / time, i % time);
                return Err(Error::argument(format!(
                    "the logits of step {step} of example {example} are not finite"
                )));
            }
            let sum = row.iter().map(|v| (v - top).exp()).sum::<f64>().ln() + top;
            row.iter_mut().for_each(|v| *v -= sum);
        }
        let lengths = lengths.to_f64_vec();
        match lengths.iter().find(|&&n| n < 0.0 || n > time as f64) {
            Some(n) => Err(Error::argument(format!("a length is {n}, but there are {time} steps"))),
            None => {
                let lengths = lengths.into_iter().map(|n| n as usize).collect();
                Ok(Scores { values, time, classes, lengths })
            }
        }
    }

    /// Returns, for each example, the log probabilities of its steps.
    pub(super) fn examples(&self) -> impl Iterator<Item = impl Iterator<Item = &[f64]>> {
        self.lengths.iter().enumerate().map(|(i, &n)| {
            let begin = i * self.time * self.classes;
            self.values[begin..begin + n * self.classes].chunks_exact(self.classes)
        })
    }
}
