//! An initialized library: who this rank is, and whether MPI can still be used.

use crate::calls::Calls;
use crate::library::{Library, text};
use std::cell::Cell;
use std::ffi::c_int;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// What a world and its requests share. Not `Sync`, because of its cells.
pub(crate) struct Connection {
    pub(crate) library: Library,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// Cleared by the first error.
    healthy: Cell<bool>,
    /// Requests that are not complete.
    in_flight: Cell<usize>,
}

impl Connection {
    /// A library that was initialized. Rank and size are yet unknown.
    pub(crate) fn new(library: Library) -> Connection {
        Connection { library, rank: 0, size: 0, healthy: Cell::new(true), in_flight: Cell::new(0) }
    }

    pub(crate) fn calls(&self) -> &dyn Calls {
        &*self.library.calls
    }

    pub(crate) fn is_healthy(&self) -> bool {
        self.healthy.get()
    }

    pub(crate) fn check_healthy(&self) -> Result<()> {
        match self.healthy.get() {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Engine, "MPI was given up after an earlier error")),
        }
    }

    /// Returns an error if a request failed or is incomplete: `MPI_Finalize` would wait for it.
    pub(crate) fn check_idle(&self) -> Result<()> {
        match self.healthy.get() && self.in_flight.get() == 0 {
            true => Ok(()),
            false => {
                let why = "MPI is not finalized, because a request failed or is incomplete";
                Err(Error::new(ErrorKind::Engine, why))
            }
        }
    }

    /// Gives MPI up: its state is unknown.
    pub(crate) fn abandon(&self) {
        self.healthy.set(false);
    }

    /// Counts a request that was started (1) or completed (-1).
    pub(crate) fn count_request(&self, change: isize) {
        self.in_flight.set(self.in_flight.get().saturating_add_signed(change));
    }

    /// Converts MPI's code to an error with MPI's own text.
    pub(crate) fn check(&self, code: c_int, what: &str) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        self.abandon();
        // SAFETY: MPI is initialized, or failed to be, when MPI allows this call, too; `text` gives
        // memory as long as the standard asks.
        let (failed, text) = text(|text, length| unsafe { self.calls().error_string(code, text, length) });
        let text = if failed == 0 && !text.is_empty() { text } else { format!("error code {code}") };
        let (rank, size) = (self.rank, self.size);
        Err(Error::new(ErrorKind::Engine, format!("{what}, rank {rank} of {size}: MPI says: {text}")))
    }
}
