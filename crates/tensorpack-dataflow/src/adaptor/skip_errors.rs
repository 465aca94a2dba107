//! Skipping samples that fail.

use crate::cancellation;
use crate::{DataFlow, Flow, Reader, Resume, Sample, Seed, State, replay};
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tensorpack_tensor::{ErrorKind, Result};

/// Number of errors per pass that are logged in full.
const LOGGED_PER_PASS: u64 = 3;

/// Skips samples that fail, up to a limit per pass: [`DataFlow::skip_errors`].
///
/// The first few errors of each pass are printed to standard error, and their total at the end of
/// the pass.
#[derive(Clone)]
#[doc(alias = "catch_exceptions")]
pub struct SkipErrors {
    inner: Flow,
    limit: u64,
    skipped: Arc<AtomicU64>,
}

impl SkipErrors {
    pub(crate) fn new(inner: impl DataFlow + 'static, limit: u64) -> SkipErrors {
        SkipErrors { inner: Arc::new(inner), limit, skipped: Arc::default() }
    }

    /// Returns the number of samples skipped so far by all readers.
    pub fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }
}

impl DataFlow for SkipErrors {
    fn size(&self) -> Option<u64> {
        None
    }

    fn resume(&self) -> Resume {
        self.inner.resume()
    }

    fn open(&self, seed: Seed, at: &State) -> Result<Box<dyn Reader>> {
        let begin = if at.inputs.is_empty() { 0 } else { at.index };
        let inner = self.inner.open(seed, &at.input_or(at.epoch, 0))?;
        let reader = SkipReader { inner, flow: self.clone(), at: State::at(at.epoch, begin) };
        replay::replay_to(Box::new(reader), at)
    }
}

struct SkipReader {
    inner: Box<dyn Reader>,
    flow: SkipErrors,
    at: State,
}

impl SkipReader {
    fn next(&mut self) -> Result<Option<Sample>> {
        let SkipErrors { limit, ref skipped, .. } = self.flow;
        loop {
            cancellation::check_cancelled()?;
            // Every earlier sample of the input's pass was either returned or skipped.
            let State { epoch, index, .. } = self.inner.state();
            let skipped_so_far = index.saturating_sub(self.at.index);
            match self.inner.read() {
                Err(e) if e.kind() == ErrorKind::Deadline => return Err(e),
                Err(e) if skipped_so_far >= limit => {
                    return Err(e.note(format!("more than {limit} samples of epoch {epoch} failed")));
                }
                Err(e) => {
                    skipped.fetch_add(1, Ordering::Relaxed);
                    if skipped_so_far < LOGGED_PER_PASS {
                        // The reader may have closed the pipe.
                        let _ = writeln!(std::io::stderr(), "skipped: {e}");
                    }
                }
                Ok(None) => {
                    if skipped_so_far > 0 {
                        // The reader may have closed the pipe.
                        let _ = writeln!(
                            std::io::stderr(),
                            "skipped {skipped_so_far} failed samples in epoch {epoch}"
                        );
                    }
                    return Ok(None);
                }
                sample => return sample,
            }
        }
    }
}

impl Reader for SkipReader {
    fn read(&mut self) -> Result<Option<Sample>> {
        let read = self.next();
        self.at.advance(&read);
        read
    }

    fn state(&self) -> State {
        self.at.with_inputs(vec![self.inner.state()])
    }
}
