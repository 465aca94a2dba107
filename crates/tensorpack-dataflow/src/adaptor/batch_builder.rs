//! Collecting the samples of one batch.

use tensorpack_tensor::{Error, ErrorKind, Result};

/// Collects the samples of one batch.
///
/// If a sample fails, the rest of the batch is still read and the batch as a whole fails. Batch
/// boundaries therefore do not depend on errors.
pub(crate) struct BatchBuilder<T> {
    batch_size: usize,
    keep_remainder: bool,
    items: Vec<T>,
    first_error: Option<Error>,
    read_count: usize,
    /// The input's pass ended inside a batch that was kept; the next call returns the end of ours.
    at_end: bool,
}

impl<T> BatchBuilder<T> {
    /// Creates a builder. `at_end` means that the input's pass has ended and ours has not reported
    /// it yet.
    pub(crate) fn new(batch_size: usize, keep_remainder: bool, at_end: bool) -> BatchBuilder<T> {
        BatchBuilder {
            batch_size,
            keep_remainder,
            items: Vec::new(),
            first_error: None,
            read_count: 0,
            at_end,
        }
    }

    /// Returns the next batch, or `None` at the end of a pass. `read` receives the position within
    /// the batch. After a timeout, the next call continues with the samples read so far.
    pub(crate) fn next(
        &mut self,
        mut read: impl FnMut(usize) -> Result<Option<T>>,
    ) -> Result<Option<Vec<T>>> {
        if std::mem::take(&mut self.at_end) {
            return Ok(None);
        }
        while self.read_count < self.batch_size {
            match read(self.read_count) {
                Ok(Some(item)) => self.items.push(item),
                Err(e) if e.kind() == ErrorKind::Deadline => return Err(e),
                Err(e) => self.first_error = self.first_error.take().or(Some(e)),
                Ok(None) => {
                    self.at_end = self.read_count > 0 && self.keep_remainder;
                    if !self.at_end {
                        self.take();
                        return Ok(None);
                    }
                    break;
                }
            }
            self.read_count += 1;
        }
        match self.take() {
            (_, Some(e)) => Err(e),
            (items, None) => Ok(Some(items)),
        }
    }

    /// Returns whether a batch has been started but not returned.
    pub(crate) fn is_partial(&self) -> bool {
        self.read_count > 0
    }

    fn take(&mut self) -> (Vec<T>, Option<Error>) {
        self.read_count = 0;
        (std::mem::take(&mut self.items), self.first_error.take())
    }
}

/// Returns the number of batches in `size` samples.
pub(crate) fn num_batches(size: u64, batch_size: usize, keep_remainder: bool) -> u64 {
    let whole = size.checked_div(batch_size as u64).unwrap_or(0);
    let rest = size.checked_rem(batch_size as u64).unwrap_or(0);
    whole + u64::from(keep_remainder && rest > 0)
}

/// Returns an error if no batch can be formed.
pub(crate) fn check_batch_size(
    stage: &str,
    size: Option<u64>,
    batch_size: usize,
    keep_remainder: bool,
) -> Result<()> {
    match size {
        _ if batch_size == 0 => Err(Error::argument(format!("{stage}: the batch size must be at least 1"))),
        Some(size) if size > 0 && !keep_remainder && size < batch_size as u64 => {
            let why =
                format!("{stage}: a pass of {size} samples is smaller than the batch size {batch_size}");
            Err(Error::argument(why).note("reduce the batch size, or call keep_remainder()"))
        }
        _ => Ok(()),
    }
}
