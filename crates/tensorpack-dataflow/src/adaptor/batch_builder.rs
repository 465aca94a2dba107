//! The samples of one batch.

use tensorpack_tensor::{Error, ErrorKind, Result};

/// Collects consecutive samples, as many as a batch has. A batch has its place whether its samples could be read or not:
/// if one fails, the rest is read as well, and the error is the batch.
pub(crate) struct BatchBuilder<T> {
    batch_size: usize,
    keep_remainder: bool,
    items: Vec<T>,
    first_error: Option<Error>,
    read_count: usize,
    /// The input's pass ended inside a batch that was kept: what comes next is the end of ours.
    at_end: bool,
}

impl<T> BatchBuilder<T> {
    /// Batches of `batch_size`; at the end of a pass one of fewer, if that is kept. `at_end` where the input's pass is over
    /// and ours has yet to say so.
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

    /// The next batch, or `None` at the end of a pass; `read` gets the place in the batch. After a wait that took too long it may be called again, and goes on
    /// with what it has.
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

    /// Whether a batch has been begun and not been given.
    pub(crate) fn is_partial(&self) -> bool {
        self.read_count > 0
    }

    fn take(&mut self) -> (Vec<T>, Option<Error>) {
        self.read_count = 0;
        (std::mem::take(&mut self.items), self.first_error.take())
    }
}

/// How many batches of `batch_size` there are in `size` samples.
pub(crate) fn num_batches(size: u64, batch_size: usize, keep_remainder: bool) -> u64 {
    let whole = size.checked_div(batch_size as u64).unwrap_or(0);
    let rest = size.checked_rem(batch_size as u64).unwrap_or(0);
    whole + u64::from(keep_remainder && rest > 0)
}

/// An error for batches that cannot be made.
pub(crate) fn check_batch_size(
    stage: &str,
    size: Option<u64>,
    batch_size: usize,
    keep_remainder: bool,
) -> Result<()> {
    match size {
        _ if batch_size == 0 => Err(Error::argument(format!("{stage}: a batch has at least one sample"))),
        Some(size) if size > 0 && !keep_remainder && size < batch_size as u64 => {
            let why = format!(
                "{stage}: {size} samples do not fill a batch of {batch_size}, so that no pass has one"
            );
            Err(Error::argument(why).note("take smaller batches, or call keep_remainder()"))
        }
        _ => Ok(()),
    }
}
