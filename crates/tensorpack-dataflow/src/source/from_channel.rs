//! Samples received from a channel.

use crate::cancellation::{self, DEFAULT_TIMEOUT};
use crate::{DataFlow, Reader, Resume, Sample, Seed, State};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The samples received from a channel. There is a single pass, which ends when all senders are
/// dropped.
#[derive(Clone)]
#[doc(alias = "DataFromQueue")]
pub struct FromChannel {
    receiver: Arc<Mutex<Option<Receiver<Sample>>>>,
    timeout: Duration,
}

impl FromChannel {
    /// Reads samples from `receiver`.
    pub fn new(receiver: Receiver<Sample>) -> FromChannel {
        FromChannel { receiver: Arc::new(Mutex::new(Some(receiver))), timeout: DEFAULT_TIMEOUT }
    }

    /// Sets how long to wait for a sample before returning an error. Defaults to 300 seconds.
    #[doc(alias = "deadline")]
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> FromChannel {
        FromChannel { timeout, ..self }
    }
}

impl DataFlow for FromChannel {
    fn size(&self) -> Option<u64> {
        None
    }

    fn resume(&self) -> Resume {
        Resume::Never
    }

    fn open(&self, _: Seed, at: &State) -> Result<Box<dyn Reader>> {
        let State { epoch, index, .. } = *at;
        if (epoch, index) != (0, 0) {
            let why = format!(
                "a channel cannot resume at sample {index} of epoch {epoch}: samples already received are gone"
            );
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        let taken = self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(receiver) = taken else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "a channel can be opened only once, and it already has a reader",
            ));
        };
        Ok(Box::new(ChannelReader { receiver: Some(receiver), timeout: self.timeout, at: State::start() }))
    }
}

struct ChannelReader {
    /// `None` once all senders are dropped.
    receiver: Option<Receiver<Sample>>,
    timeout: Duration,
    at: State,
}

impl ChannelReader {
    fn next(&mut self) -> Result<Option<Sample>> {
        let Some(receiver) = &self.receiver else {
            return Err(Error::new(ErrorKind::Data, "the channel is closed: it has only one pass"));
        };
        let begun = Instant::now();
        loop {
            cancellation::check_cancelled()?;
            let left = self.timeout.saturating_sub(begun.elapsed());
            match receiver.recv_timeout(left.min(cancellation::POLL_INTERVAL)) {
                Ok(sample) => return Ok(Some(sample)),
                Err(RecvTimeoutError::Disconnected) => {
                    self.receiver = None;
                    return Ok(None);
                }
                Err(RecvTimeoutError::Timeout) if left.is_zero() => {
                    let State { epoch, index, .. } = self.at;
                    return Err(cancellation::timeout_error("the channel", self.timeout, epoch, index));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl Reader for ChannelReader {
    fn read(&mut self) -> Result<Option<Sample>> {
        let read = self.next();
        self.at.advance(&read);
        read
    }

    fn state(&self) -> State {
        self.at.clone()
    }
}
