//! `MPI_COMM_WORLD`: initialization, collectives, the end.

use crate::buffer::Buffer;
use crate::calls::{Calls, Layout, RawRequest};
use crate::connection::Connection;
use crate::library::Library;
use crate::request::{Held, Request};
use std::env;
use std::ffi::c_int;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The time that dropping a [`World`] may take.
const DROP_TIMEOUT: Duration = Duration::from_secs(10);

/// Longer timeouts count as this one: a year.
const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// MPI can be initialized once in a process, whatever the library.
static INITIALIZED: AtomicBool = AtomicBool::new(false);

/// All ranks of a run, connected by MPI: an initialized library.
///
/// It belongs to one thread at a time, and so do its requests: `World` is `Send`, but not `Sync`,
/// which is what MPI's thread level `SERIALIZED` asks for. Every collective is nonblocking and
/// returns a [`Request`]. All ranks must start the same collectives with matching sizes in the same
/// order.
///
/// ```compile_fail,E0277
/// fn share_between_threads<T: Sync>() {}
/// share_between_threads::<tensorpack_mpi::World>();
/// ```
///
/// Dropping it finalizes MPI, within 10 seconds; [`finalize`](World::finalize) does so with another
/// timeout and an error. After a failed or unfinished request MPI is left alone instead, because
/// `MPI_Finalize` would wait for it; then the process should exit.
pub struct World {
    /// `None` once finalized.
    connection: Option<Connection>,
}

impl World {
    /// Initializes MPI, which waits until all ranks do so, at most for `timeout`.
    ///
    /// Returns [`ErrorKind::Deadline`] after that, [`ErrorKind::Argument`] if MPI was initialized
    /// before in this process, and [`ErrorKind::Unsupported`] if the library was started by another
    /// MPI's launcher or cannot be called from a thread of its own.
    #[doc(alias = "MPI_Init_thread")]
    pub fn init(library: Library, timeout: Duration) -> Result<World> {
        let mut flag = 0;
        // SAFETY: may be called at any time.
        let code = unsafe { library.calls.initialized(&mut flag) };
        if INITIALIZED.swap(true, Ordering::SeqCst) || code != 0 || flag != 0 {
            return Err(Error::argument("MPI was initialized already in this process; it can be only once"));
        }
        let (send, receive) = channel();
        let run = move || {
            let (required, mut provided) = (library.abi().thread_serialized(), 0);
            // SAFETY: `INITIALIZED` makes this the only call, and the library is moved to the caller
            // only after it.
            let code = unsafe { library.calls.init_thread(required, &mut provided) };
            // The receiver may be gone, after its timeout.
            let _ = send.send((library, code, provided));
        };
        // On a thread of its own, since it cannot be cancelled.
        thread::Builder::new().name("mpi-init".into()).spawn(run)?;
        let (library, code, provided) = receive.recv_timeout(timeout).map_err(|_| {
            let why = format!("MPI_Init_thread did not return within {:.1} s", timeout.as_secs_f64());
            Error::new(ErrorKind::Deadline, why).note("did all ranks start?")
        })?;
        let mut connection = Connection::new(library);
        connection.check(code, "MPI_Init_thread")?;
        if provided < connection.library.abi().thread_serialized() {
            let why = format!("{} supports no thread level SERIALIZED", connection.library.version());
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        let (mut rank, mut size) = (0, 0);
        // SAFETY: MPI is initialized, and this is the only thread that has it.
        connection.check(unsafe { connection.calls().return_errors() }, "MPI_Comm_set_errhandler")?;
        // SAFETY: as above.
        connection.check(unsafe { connection.calls().rank(&mut rank) }, "MPI_Comm_rank")?;
        // SAFETY: as above.
        connection.check(unsafe { connection.calls().size(&mut size) }, "MPI_Comm_size")?;
        (connection.rank, connection.size) = (rank as usize, size as usize);
        check_launcher(connection.library.version(), connection.size, |name| env::var(name).ok())?;
        Ok(World { connection: Some(connection) })
    }

    /// The rank of this process.
    pub fn rank(&self) -> usize {
        self.connection().rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.connection().size
    }

    /// The library that was initialized.
    pub fn library(&self) -> &Library {
        &self.connection().library
    }

    /// Whether no request has failed so far.
    pub fn is_healthy(&self) -> bool {
        self.connection().is_healthy()
    }

    fn connection(&self) -> &Connection {
        self.connection.as_ref().expect("taken only by `end`, which is called last")
    }

    /// Starts a barrier.
    #[doc(alias = "MPI_Ibarrier")]
    pub fn barrier(&self) -> Result<Request<'_>> {
        let held = Held::new(Buffer::zeroed(0), Buffer::zeroed(0));
        // SAFETY: the library is initialized (`World`), and no buffers are used.
        self.start("barrier", held, |calls, _, request| unsafe { calls.ibarrier(request) })
    }

    /// Starts to copy `buffer` of rank `root` to all ranks. Its length must be the same everywhere.
    #[doc(alias = "MPI_Ibcast")]
    pub fn broadcast(&self, root: usize, buffer: Buffer) -> Result<Request<'_>> {
        if root >= self.size() {
            return Err(Error::argument(format!("broadcast from rank {root} of {}", self.size())));
        }
        let (root, len) = (count(root)?, count(buffer.len())?);
        let held = Held::new(Buffer::zeroed(0), buffer);
        self.start("broadcast", held, |calls, held, request| {
            // SAFETY: the buffer has `len` bytes, and `held` keeps it until the request is complete.
            unsafe { calls.ibcast(held.receive_pointer(), len, root, request) }
        })
    }

    /// Starts to gather `send` of all ranks, in order of ranks, into `receive` of all. All `send`
    /// have the same length.
    #[doc(alias = "MPI_Iallgather")]
    pub fn all_gather(&self, send: Buffer, receive: Buffer) -> Result<Request<'_>> {
        let len = count(send.len())?;
        if send.len().checked_mul(self.size()) != Some(receive.len()) {
            let (send, receive, size) = (send.len(), receive.len(), self.size());
            return Err(Error::argument(format!(
                "all-gather of {send} bytes from {size} ranks into {receive}"
            )));
        }
        count(receive.len())?;
        self.start("all-gather", Held::new(send, receive), |calls, held, request| {
            // SAFETY: checked above: `len` bytes are sent, `len` for every rank received; `held`
            // keeps both buffers until the request is complete.
            unsafe { calls.iallgather(held.send_pointer(), len, held.receive_pointer(), request) }
        })
    }

    /// Starts to gather `send` of all ranks, in order of ranks, into `receive` of all. Rank `i`
    /// sends `counts[i]` bytes.
    #[doc(alias = "MPI_Iallgatherv")]
    pub fn all_gather_v(&self, send: Buffer, receive: Buffer, counts: &[usize]) -> Result<Request<'_>> {
        let layout = self.layout(counts, receive.len())?;
        if counts[self.rank()] != send.len() {
            let (rank, counted, len) = (self.rank(), counts[self.rank()], send.len());
            let why = format!("rank {rank} sends {len} bytes to an all-gather that expects {counted} of it");
            return Err(Error::argument(why));
        }
        let len = count(send.len())?;
        let held = Held { receive_layout: Some(layout), ..Held::new(send, receive) };
        self.start("all-gather", held, |calls, held, request| {
            let (send, receive) = (held.send_pointer(), held.receive_pointer());
            let layout = held.receive_layout.as_ref().expect("set above");
            // SAFETY: checked above: `len` bytes are sent, and the layout lies within `receive`;
            // `held` keeps buffers and layout until the request is complete.
            unsafe { calls.iallgatherv(send, len, receive, layout, request) }
        })
    }

    /// Starts to exchange blocks of equal length: block `i` of `send` becomes block `rank` of
    /// `receive` on rank `i`.
    #[doc(alias = "MPI_Ialltoall")]
    pub fn all_to_all(&self, send: Buffer, receive: Buffer) -> Result<Request<'_>> {
        let (total, size) = (send.len(), self.size());
        if total != receive.len() || !total.is_multiple_of(size) {
            let receive = receive.len();
            let why = format!("all-to-all of {total} bytes into {receive}, in {size} blocks of equal length");
            return Err(Error::argument(why));
        }
        count(total)?;
        let len = count(total / size)?;
        self.start("all-to-all", Held::new(send, receive), |calls, held, request| {
            // SAFETY: checked above: both buffers have a block of `len` bytes for every rank, and
            // `held` keeps them until the request is complete.
            unsafe { calls.ialltoall(held.send_pointer(), len, held.receive_pointer(), request) }
        })
    }

    /// Starts to exchange blocks: rank `i` gets `send_counts[i]` bytes of `send`, and
    /// `receive_counts[i]` bytes of `receive` come from it. Blocks lie one after the other.
    #[doc(alias = "MPI_Ialltoallv")]
    pub fn all_to_all_v(
        &self,
        send: Buffer,
        send_counts: &[usize],
        receive: Buffer,
        receive_counts: &[usize],
    ) -> Result<Request<'_>> {
        let send_layout = self.layout(send_counts, send.len())?;
        let receive_layout = self.layout(receive_counts, receive.len())?;
        if send_counts[self.rank()] != receive_counts[self.rank()] {
            return Err(Error::argument(
                "all-to-all in which a rank sends itself another size than it expects",
            ));
        }
        let held = Held {
            send_layout: Some(send_layout),
            receive_layout: Some(receive_layout),
            ..Held::new(send, receive)
        };
        self.start("all-to-all", held, |calls, held, request| {
            let (send, receive) = (held.send_pointer(), held.receive_pointer());
            let send_layout = held.send_layout.as_ref().expect("set above");
            let receive_layout = held.receive_layout.as_ref().expect("set above");
            // SAFETY: `layout` checked that both layouts lie within their buffers; `held` keeps
            // buffers and layouts until the request is complete.
            unsafe { calls.ialltoallv(send, send_layout, receive, receive_layout, request) }
        })
    }

    /// Finalizes MPI: waits until all ranks are there, at most for `timeout`. Returns an error if
    /// that fails, or if a request has failed before; MPI is then left as it is.
    #[doc(alias = "MPI_Finalize")]
    pub fn finalize(mut self, timeout: Duration) -> Result<()> {
        self.end(timeout)
    }

    /// [`finalize`](World::finalize), once.
    fn end(&mut self, timeout: Duration) -> Result<()> {
        if self.connection.is_none() {
            return Ok(());
        }
        // A longer one is as good as none.
        let deadline = Instant::now() + timeout.min(MAX_TIMEOUT);
        let met = self.meet(deadline);
        let Some(Connection { library, .. }) = self.connection.take() else { return Ok(()) };
        met?;
        let (send, receive) = channel();
        let run = move || {
            // SAFETY: MPI is initialized, no request is in flight (`meet`), and this thread has the
            // library for itself.
            let code = unsafe { library.calls.finalize() };
            // The receiver may be gone, after its timeout.
            let _ = send.send(code);
        };
        // On a thread of its own, since it cannot be cancelled.
        thread::Builder::new().name("mpi-finalize".into()).spawn(run)?;
        match receive.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(0) => Ok(()),
            Ok(code) => Err(Error::new(ErrorKind::Engine, format!("MPI_Finalize fails with code {code}"))),
            Err(_) => {
                let why = format!("MPI_Finalize did not return within {:.1} s", timeout.as_secs_f64());
                Err(Error::new(ErrorKind::Deadline, why))
            }
        }
    }

    /// Waits until all ranks are ready to finalize: `MPI_Finalize` itself has no deadline.
    fn meet(&self, deadline: Instant) -> Result<()> {
        self.connection().check_idle()?;
        self.barrier()?.wait(deadline, &|| Ok(())).map(drop).map_err(|e| e.within("before MPI_Finalize"))
    }

    /// Starts a collective. `call` gets the buffers where they stay.
    fn start(
        &self,
        what: &'static str,
        held: Held,
        call: impl FnOnce(&dyn Calls, &mut Held, &mut RawRequest) -> c_int,
    ) -> Result<Request<'_>> {
        let connection = self.connection();
        connection.check_healthy()?;
        let start = |held: &mut Held, raw: &mut RawRequest| call(connection.calls(), held, raw);
        let (request, code) = Request::start(connection, what, held, start);
        connection.check(code, what)?;
        Ok(request)
    }

    /// Places blocks one after the other. Their lengths must add up to `total`.
    fn layout(&self, counts: &[usize], total: usize) -> Result<Layout> {
        if counts.len() != self.size() {
            let why = format!("{} counts for {} ranks", counts.len(), self.size());
            return Err(Error::argument(why));
        }
        layout(counts, total)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // During a panic the other ranks are not about to finalize.
        if !thread::panicking() {
            // Nobody to report it to; `finalize` returns it.
            let _ = self.end(DROP_TIMEOUT);
        }
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}, {:?}", self.rank(), self.size(), self.library())
    }
}

/// A number of bytes as MPI's type.
fn count(len: usize) -> Result<c_int> {
    len.try_into()
        .map_err(|_| Error::argument(format!("{len} bytes; a collective takes at most {}", c_int::MAX)))
}

fn layout(counts: &[usize], total: usize) -> Result<Layout> {
    let (mut layout, mut end) = (Layout { counts: Vec::new(), displacements: Vec::new() }, 0usize);
    for len in counts {
        layout.counts.push(count(*len)?);
        layout.displacements.push(count(end)?);
        end = end.saturating_add(*len);
    }
    if end != total {
        return Err(Error::argument(format!("counts add up to {end} bytes; the buffer has {total}")));
    }
    Ok(layout)
}

/// Checks that the number of ranks is the launcher's. Under another MPI's launcher, every process
/// is alone.
fn check_launcher(version: &str, size: usize, variable: impl Fn(&str) -> Option<String>) -> Result<()> {
    for name in ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"] {
        let launched: Option<usize> = variable(name).and_then(|text| text.trim().parse().ok());
        if let Some(launched) = launched.filter(|launched| *launched != size) {
            let why = format!("{version} sees {size} ranks, but its launcher started {launched} ({name})");
            return Err(Error::new(ErrorKind::Unsupported, why)
                .note("the launcher belongs to another MPI: use the mpiexec of this library")
                .note("or set TENSORPACK_MPI to the library of the launcher"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorpack_testing::assert_mentions;

    #[test]
    fn layouts_place_blocks_one_after_the_other() {
        let placed = layout(&[3, 0, 5], 8).unwrap();
        assert_eq!((placed.counts, placed.displacements), (vec![3, 0, 5], vec![0, 3, 3]));
        for (counts, total) in [(&[3, 4][..], 8), (&[8, 1], 8), (&[usize::MAX, 1], 0), (&[1 << 31], 1 << 31)]
        {
            assert_eq!(layout(counts, total).err().unwrap().kind(), ErrorKind::Argument);
        }
    }

    #[test]
    fn another_launcher_is_an_error() {
        let started = |name: &'static str, size: &'static str| {
            move |asked: &str| (asked == name).then(|| size.to_owned())
        };
        check_launcher("MPICH", 4, started("PMI_SIZE", "4")).unwrap();
        check_launcher("MPICH", 1, |_| None).unwrap();
        let error = check_launcher("MPICH 5.0.2", 1, started("OMPI_COMM_WORLD_SIZE", "4")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_mentions(error, &["MPICH 5.0.2", "1 ranks", "4", "OMPI_COMM_WORLD_SIZE", "TENSORPACK_MPI"]);
    }

    /// Checked by the compiler.
    #[test]
    fn a_world_may_move_to_a_thread() {
        fn is_send<T: Send>() {}
        is_send::<World>();
    }
}
