//! A collective that is in flight.

use crate::buffer::Buffer;
use crate::calls::{Layout, RawRequest};
use crate::connection::Connection;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::mem;
use std::thread;
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// For this long a wait polls without sleeping: most collectives of small messages end by then.
const SPIN: Duration = Duration::from_micros(50);
/// Then it sleeps between polls, so that compute threads get the core.
const PAUSE: Duration = Duration::from_micros(50);

/// What MPI uses until a request is complete.
pub(crate) struct Held {
    pub(crate) send: Buffer,
    pub(crate) receive: Buffer,
    pub(crate) send_layout: Option<Layout>,
    pub(crate) receive_layout: Option<Layout>,
}

impl Held {
    pub(crate) fn new(send: Buffer, receive: Buffer) -> Held {
        Held { send, receive, send_layout: None, receive_layout: None }
    }

    pub(crate) fn send_pointer(&self) -> *const c_void {
        self.send.as_ptr().cast()
    }

    pub(crate) fn receive_pointer(&mut self) -> *mut c_void {
        self.receive.as_mut_ptr().cast()
    }
}

/// The buffers of a collective that is complete.
#[derive(Debug)]
pub struct Completed {
    /// The buffer that was sent; empty for a barrier and a broadcast.
    pub send: Buffer,
    /// The buffer with what was received; empty for a barrier.
    pub receive: Buffer,
}

/// A nonblocking collective. It makes progress only while it, or another request, is polled.
///
/// The request owns its buffers. If it is dropped before it is complete they are leaked, since MPI
/// may still read and write them, and the [`World`](crate::World) is given up.
#[must_use = "a collective makes progress only while it is polled"]
pub struct Request<'w> {
    connection: &'w Connection,
    raw: RawRequest,
    /// On the heap in parts that do not move with the request: the memory of vectors.
    held: Option<Held>,
    what: &'static str,
    started: Instant,
    done: bool,
}

impl<'w> Request<'w> {
    /// Calls MPI's function with the buffers, which stay where they are.
    pub(crate) fn start(
        connection: &'w Connection,
        what: &'static str,
        mut held: Held,
        call: impl FnOnce(&mut Held, &mut RawRequest) -> c_int,
    ) -> (Request<'w>, c_int) {
        let mut raw = RawRequest::default();
        let code = call(&mut held, &mut raw);
        connection.count_request(1);
        (Request { connection, raw, held: Some(held), what, started: Instant::now(), done: false }, code)
    }

    /// Lets MPI make progress. Returns whether the collective is complete.
    ///
    /// After an error the buffers are lost and the [`World`](crate::World) is given up.
    #[doc(alias = "MPI_Test")]
    pub fn poll(&mut self) -> Result<bool> {
        if self.done {
            return Ok(true);
        }
        self.connection.check_healthy()?;
        let mut done = 0;
        // SAFETY: the request was started by this library and is not complete; MPI is initialized
        // as long as the world is borrowed, and has one thread, because neither is `Sync`.
        let code = unsafe { self.connection.calls().test(&mut self.raw, &mut done) };
        self.connection.check(code, self.what)?;
        if done != 0 {
            self.done = true;
            self.connection.count_request(-1);
        }
        Ok(self.done)
    }

    /// Polls until the collective is complete, and returns its buffers. Calls `progress` between
    /// polls, and ends with its error: that is how a failure that is known otherwise ends the wait.
    ///
    /// Returns [`ErrorKind::Deadline`] if it is not complete by `deadline`. After an error the
    /// buffers are lost and the [`World`](crate::World) is given up: a collective cannot be cancelled.
    pub fn wait(self, deadline: Instant, progress: &dyn Fn() -> Result<()>) -> Result<Completed> {
        self.wait_until(deadline, progress, &|| false)
    }

    /// [`wait`](Request::wait), except that it does not sleep between polls while `is_urgent`: MPI
    /// makes progress only when it is polled, and then someone waits for it.
    pub fn wait_until(
        mut self,
        deadline: Instant,
        progress: &dyn Fn() -> Result<()>,
        is_urgent: &dyn Fn() -> bool,
    ) -> Result<Completed> {
        loop {
            if self.poll()? {
                let what = self.what;
                let taken = || Error::argument(format!("the buffers of this {what} were taken before"));
                return self.take().ok_or_else(taken);
            }
            progress()?;
            let now = Instant::now();
            if now >= deadline {
                return Err(self.late());
            }
            match now.duration_since(self.started) < SPIN || is_urgent() {
                true => thread::yield_now(),
                false => thread::sleep(PAUSE),
            }
        }
    }

    /// Returns the buffers once [`poll`](Request::poll) has returned `true`; `None` before, and after
    /// they were taken.
    pub fn take(&mut self) -> Option<Completed> {
        let held = if self.done { self.held.take() } else { None };
        held.map(|Held { send, receive, .. }| Completed { send, receive })
    }

    fn late(&self) -> Error {
        let bytes = self.held.as_ref().map_or(0, |held| held.send.len().max(held.receive.len()));
        let (rank, size) = (self.connection.rank, self.connection.size);
        let seconds = self.started.elapsed().as_secs_f64();
        let why = format!(
            "{} of {bytes} bytes over MPI, rank {rank} of {size}: not complete after {seconds:.1} s",
            self.what
        );
        Error::new(ErrorKind::Deadline, why)
            .note("another rank has died, hangs, or is not taking part in this collective")
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        if !self.done {
            // MPI may still use the memory, and there is no way to make it stop.
            mem::forget(self.held.take());
            self.connection.abandon();
        }
    }
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.what, if self.done { "complete" } else { "in flight" })
    }
}
