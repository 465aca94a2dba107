//! Printing samples.

use crate::{DataFlow, Flow, IndexedReader, Reader, Resume, Sample, Seed, State};
use std::fmt::Write;
use std::io::Write as _;
use std::sync::Arc;
use tensorpack_tensor::Result;

/// Prints the first samples each reader reads: [`DataFlow::print`].
#[derive(Clone)]
#[doc(alias = "PrintData")]
pub struct Print {
    inner: Flow,
    samples: u64,
}

impl Print {
    pub(crate) fn new(inner: impl DataFlow + 'static, samples: u64) -> Print {
        Print { inner: Arc::new(inner), samples }
    }
}

impl DataFlow for Print {
    fn size(&self) -> Option<u64> {
        self.inner.size()
    }

    fn resume(&self) -> Resume {
        self.inner.resume()
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        Ok(Box::new(PrintReader { inner: self.inner.open(seed, at)?, left: self.samples }))
    }

    fn open_indexed(&self, seed: Seed) -> Result<Option<Arc<dyn IndexedReader>>> {
        self.inner.open_indexed(seed)
    }
}

struct PrintReader {
    inner: Box<dyn Reader>,
    left: u64,
}

impl Reader for PrintReader {
    fn read(&mut self) -> Result<Option<Sample>> {
        if self.left == 0 {
            return self.inner.read();
        }
        let State { epoch, index, .. } = self.inner.state();
        let read = self.inner.read();
        if let Ok(Some(sample)) = &read {
            self.left -= 1;
            // The reader may have closed the pipe.
            let _ = write!(std::io::stdout(), "sample {index} of epoch {epoch}:\n{}", describe(sample));
        }
        read
    }

    fn state(&self) -> State {
        self.inner.state()
    }
}

/// Describes a sample, one line per component: dtype, shape, and the range of values or the single
/// value.
pub fn describe(sample: &[tensorpack_tensor::HostTensor]) -> String {
    let mut text = String::new();
    for (i, tensor) in sample.iter().enumerate() {
        let _ = write!(text, "  {i}: {}{:?}", tensor.dtype(), tensor.sizes());
        let values = tensor.to_f64_vec();
        let _ = match values[..] {
            [] => writeln!(text),
            [one] => writeln!(text, " = {one}"),
            _ => {
                let low = values.iter().copied().fold(f64::INFINITY, f64::min);
                let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                writeln!(text, " in {low} ..= {high}")
            }
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorpack_tensor::HostTensor;

    #[test]
    fn a_line_for_each_component() {
        let sample = [HostTensor::new([3], vec![2i32, -1, 5]).unwrap(), HostTensor::scalar(0.5f32)];
        assert_eq!(describe(&sample), "  0: i32[3] in -1 ..= 5\n  1: f32[] = 0.5\n");
        assert_eq!(describe(&[HostTensor::new([0], Vec::<u8>::new()).unwrap()]), "  0: u8[0]\n");
    }
}
