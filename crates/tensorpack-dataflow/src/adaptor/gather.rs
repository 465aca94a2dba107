//! The samples of one batch.

use tensorpack_tensor::{Error, ErrorKind, Result};

/// Collects consecutive samples, as many as a batch has. A batch has its place whether its samples could be read or not:
/// if one fails, the rest is read as well, and the error is the batch.
pub(crate) struct Gather<T> {
    wanted: usize,
    keep_remainder: bool,
    parts: Vec<T>,
    failed: Option<Error>,
    seen: usize,
    /// The input's pass ended inside a batch that was kept: what comes next is the end of ours.
    ended: bool,
}

impl<T> Gather<T> {
    /// Batches of `wanted`; at the end of a pass one of fewer, if that is kept. `ended` where the input's pass is over
    /// and ours has yet to say so.
    pub(crate) fn new(wanted: usize, keep_remainder: bool, ended: bool) -> Gather<T> {
        Gather { wanted, keep_remainder, parts: Vec::new(), failed: None, seen: 0, ended }
    }

    /// The next batch, or `None` at the end of a pass; `read` gets the place in the batch. After a wait that took too long it may be called again, and goes on
    /// with what it has.
    pub(crate) fn next(
        &mut self,
        mut read: impl FnMut(usize) -> Result<Option<T>>,
    ) -> Result<Option<Vec<T>>> {
        if std::mem::take(&mut self.ended) {
            return Ok(None);
        }
        while self.seen < self.wanted {
            match read(self.seen) {
                Ok(Some(part)) => self.parts.push(part),
                Err(e) if e.kind() == ErrorKind::Deadline => return Err(e),
                Err(e) => self.failed = self.failed.take().or(Some(e)),
                Ok(None) => {
                    self.ended = self.seen > 0 && self.keep_remainder;
                    if !self.ended {
                        self.take();
                        return Ok(None);
                    }
                    break;
                }
            }
            self.seen += 1;
        }
        match self.take() {
            (_, Some(e)) => Err(e),
            (parts, None) => Ok(Some(parts)),
        }
    }

    /// Whether a batch has been begun and not been given.
    pub(crate) fn is_open(&self) -> bool {
        self.seen > 0
    }

    fn take(&mut self) -> (Vec<T>, Option<Error>) {
        self.seen = 0;
        (std::mem::take(&mut self.parts), self.failed.take())
    }
}

/// How many batches of `batch` there are in `size` samples.
pub(crate) fn batches(size: u64, batch: usize, keep_remainder: bool) -> u64 {
    let whole = size.checked_div(batch as u64).unwrap_or(0);
    let rest = size.checked_rem(batch as u64).unwrap_or(0);
    whole + u64::from(keep_remainder && rest > 0)
}

/// An error for batches that cannot be made.
pub(crate) fn check(stage: &str, size: Option<u64>, batch: usize, keep_remainder: bool) -> Result<()> {
    match size {
        _ if batch == 0 => Err(Error::argument(format!("{stage}: a batch has at least one sample"))),
        Some(size) if size > 0 && !keep_remainder && size < batch as u64 => {
            let why =
                format!("{stage}: {size} samples do not fill a batch of {batch}, so that no pass has one");
            Err(Error::argument(why).note("take smaller batches, or call keep_remainder()"))
        }
        _ => Ok(()),
    }
}
