//! The communication thread: the only one that calls MPI, since MPI is initialized for one thread.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::time::{Duration, Instant};
use tensorpack_mpi::{Library, World};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// How long MPI may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a process that ends waits for the others, which may still evaluate the model, say: a
/// launcher kills them if a process ends before all do. If one of them dies, it kills this one.
const END_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// When a process that ends says what it waits for.
const LOG_AFTER: Duration = Duration::from_secs(5);

/// A job of the thread. It gets an error in place of the world if an earlier one has failed: then no
/// collective can be started any more.
type Job = Box<dyn FnOnce(Result<&World>) -> Result<()> + Send>;

enum Message {
    Run(Job),
    /// Finalize MPI, then answer.
    End(std::sync::mpsc::SyncSender<()>),
}

/// The communication thread of this process.
pub(super) struct MpiThread {
    messages: Sender<Message>,
    pub(super) rank: usize,
    pub(super) size: usize,
    /// What the library calls itself.
    pub(super) version: String,
    healthy: AtomicBool,
    /// Whether a group uses MPI. If the process ends then, by a panic or otherwise, MPI must not be
    /// finalized: that is a collective operation, which other ranks would take for one of theirs.
    in_use: AtomicBool,
}

static THREAD: OnceLock<Result<MpiThread>> = OnceLock::new();

impl MpiThread {
    /// Returns the thread, and starts it and MPI on the first call. MPI ends with the process.
    pub(super) fn get() -> Result<&'static MpiThread> {
        THREAD.get_or_init(MpiThread::start).as_ref().map_err(Error::clone)
    }

    fn start() -> Result<MpiThread> {
        let world = World::init(Library::find()?, START_TIMEOUT)?;
        let (rank, size, version) = (world.rank(), world.size(), world.library().version().to_owned());
        let (messages, received) = channel();
        let work = move || run(world, &received);
        std::thread::Builder::new().name("mpi".into()).spawn(work)?;
        at_exit();
        let (healthy, in_use) = (AtomicBool::new(true), AtomicBool::new(false));
        Ok(MpiThread { messages, rank, size, version, healthy, in_use })
    }

    /// Says whether a group uses MPI from here on.
    pub(super) fn set_in_use(&self, in_use: bool) {
        self.in_use.store(in_use, Ordering::Release);
    }

    /// Leaves MPI as it is when the process ends, because another process will not take part.
    pub(super) fn give_up(&self) {
        self.healthy.store(false, Ordering::Release);
    }

    /// Hands a job to the thread, which runs jobs in order.
    pub(super) fn submit(
        &self,
        job: impl FnOnce(Result<&World>) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        self.messages.send(Message::Run(Box::new(job))).map_err(|_| gone())
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Engine, "the communication thread is gone")
}

fn run(world: World, messages: &Receiver<Message>) {
    let mut failed: Option<Error> = None;
    for message in messages {
        match message {
            Message::Run(job) => {
                let world = failed.clone().map_or(Ok(&world), Err);
                if let Err(e) = job(world)
                    && failed.is_none()
                {
                    failed = Some(e);
                    if let Some(Ok(thread)) = THREAD.get() {
                        thread.give_up();
                    }
                }
            }
            Message::End(done) => {
                if failed.is_none() {
                    end(world);
                }
                // Nobody waits any more after a timeout.
                let _ = done.send(());
                return;
            }
        }
    }
}

/// Finalizes MPI.
fn end(world: World) {
    let (ended, wait) = sync_channel::<()>(1);
    let log_wait = move || {
        if wait.recv_timeout(LOG_AFTER) == Err(RecvTimeoutError::Timeout) {
            log::warn!("this process is done and waits for the other ranks to end");
        }
    };
    // Without the thread nothing is logged.
    let _ = std::thread::Builder::new().name("mpi-end".into()).spawn(log_wait);
    if let Err(e) = world.finalize(END_TIMEOUT) {
        log::debug!("MPI: {e}");
    }
    drop(ended);
}

/// Finalizes MPI when the process exits: launchers take an exit without it for a failure.
fn at_exit() {
    extern "C" fn at_end() {
        let Some(Ok(thread)) = THREAD.get() else { return };
        if !thread.healthy.load(Ordering::Acquire) || thread.in_use.load(Ordering::Acquire) {
            return;
        }
        let (done, wait) = sync_channel(1);
        if thread.messages.send(Message::End(done)).is_ok() {
            // It has a timeout itself.
            let _ = wait.recv();
        }
    }
    // SAFETY: `at_end` does not unwind, and all it uses lives as long as the process. If there is no
    // room for another function, MPI is not finalized, which is no error of ours.
    #[cfg(unix)]
    unsafe {
        libc::atexit(at_end);
    }
    #[cfg(not(unix))]
    let _ = at_end;
}

/// The instant `timeout` from now, or a year if that is beyond the clock.
pub(super) fn deadline(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(Duration::from_secs(365 * 24 * 3600))
}
