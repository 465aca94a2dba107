//! Reaching a position by rereading everything before it.

use crate::{Reader, State};
use tensorpack_tensor::{ErrorKind, Result};

/// Reads `reader` up to position `to` of its pass.
///
/// Samples that fail on the way count as read, as they did originally. A timeout is an error. A
/// position past the end of the pass means its end.
pub(crate) fn replay_to(mut reader: Box<dyn Reader>, to: &State) -> Result<Box<dyn Reader>> {
    while reader.state().index < to.index {
        match reader.read() {
            Err(e) if e.kind() == ErrorKind::Deadline => return Err(e),
            Ok(None) => return Ok(Box::new(EndOfPass { reader, at: Some(State::at(to.epoch, to.index)) })),
            Ok(Some(_)) | Err(_) => {}
        }
    }
    Ok(reader)
}

/// A reader at the end of its pass that has not returned `None` yet.
struct EndOfPass {
    reader: Box<dyn Reader>,
    at: Option<State>,
}

impl Reader for EndOfPass {
    fn read(&mut self) -> Result<Option<crate::Sample>> {
        match self.at.take() {
            Some(_) => Ok(None),
            None => self.reader.read(),
        }
    }

    fn state(&self) -> State {
        self.at.clone().unwrap_or_else(|| self.reader.state())
    }
}
