//! The worker threads of one reader.

use super::reorder_buffer::{Item, ReorderBuffer};
use crate::cancellation;
use crate::sync::{Arc, Builder, Condvar, JoinHandle, Mutex};
use crate::{Sample, State};
use std::any::Any;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, ErrorKind, Result};
use tensorpack_timeline as timeline;

/// The settings of a stage.
#[derive(Clone, Debug)]
pub(super) struct PoolOptions {
    /// The name used in errors.
    pub(super) stage: &'static str,
    pub(super) workers: usize,
    /// Maximum number of results computed ahead.
    pub(super) buffer_size: usize,
    pub(super) keep_order: bool,
    pub(super) timeout: Duration,
}

/// A unit of work from the input.
///
/// `work` is also an error or the end of a pass, which need no worker. `state` is the state of the
/// input afterwards; `epoch` and `index` name the sample in errors.
pub(super) struct Task<T> {
    pub(super) work: Result<Option<T>>,
    pub(super) state: State,
    pub(super) epoch: u64,
    pub(super) index: u64,
}

/// Threads that work ahead of a reader. Dropping the pool stops and joins them.
pub(super) struct WorkerPool {
    options: PoolOptions,
    buffer: Arc<ReorderBuffer>,
    threads: Vec<JoinHandle<()>>,
    live: Arc<LiveThreads>,
    /// State of the input after the last result the consumer took.
    state: State,
    /// Whether the last read timed out: a thread hangs or is very slow.
    timed_out: bool,
}

impl WorkerPool {
    /// Starts the threads at `state`. `next` is called by one thread at a time, `work` by all.
    pub(super) fn start<T: Send + 'static>(
        options: &PoolOptions,
        state: State,
        next: impl FnMut() -> Task<T> + Send + 'static,
        work: impl Fn(T) -> Result<Sample> + Send + Sync + 'static,
    ) -> Result<WorkerPool> {
        if options.workers == 0 {
            return Err(Error::argument(format!(
                "{}: the number of workers must be at least 1",
                options.stage
            )));
        }
        let buffer = Arc::new(ReorderBuffer::new(options.buffer_size, options.keep_order));
        let live = Arc::new(LiveThreads::default());
        let mut pool = WorkerPool {
            options: options.clone(),
            buffer,
            threads: Vec::new(),
            live,
            state,
            timed_out: false,
        };
        let next = Arc::new(Mutex::new(next));
        let work = Arc::new(work);
        for _ in 0..options.workers {
            let (buffer, next, work) = (pool.buffer.clone(), next.clone(), work.clone());
            let (keep_order, stage) = (options.keep_order, options.stage);
            let live_thread = LiveThread::new(&pool.live);
            let body = move || {
                cancellation::set_cancel_flag(buffer.cancelled());
                worker_loop(&buffer, next, work, keep_order, stage);
                // `worker_loop` has dropped the input and its threads by now, so a finished pool
                // leaves nothing running.
                drop(live_thread);
            };
            let thread = Builder::new().name(options.stage.to_string()).spawn(body);
            pool.threads
                .push(thread.map_err(|e| Error::from(e).within(format!("{}: a new thread", options.stage)))?);
        }
        Ok(pool)
    }

    /// Returns the next result, or an error after the timeout.
    pub(super) fn read(&mut self) -> Result<Option<Sample>> {
        let item = self.buffer.pop_front_within(self.options.timeout)?;
        self.timed_out = item.is_none();
        let Some(item) = item else {
            let State { epoch, index, .. } = self.state;
            return Err(cancellation::timeout_error(self.options.stage, self.options.timeout, epoch, index));
        };
        self.state = item.state;
        item.read
    }

    pub(super) fn state(&self) -> State {
        self.state.clone()
    }
}

/// The body of a worker thread, until the buffer is closed.
fn worker_loop<T>(
    buffer: &ReorderBuffer,
    next: Arc<Mutex<impl FnMut() -> Task<T>>>,
    work: Arc<impl Fn(T) -> Result<Sample>>,
    keep_order: bool,
    stage: &'static str,
) {
    loop {
        let waiting = timeline::static_span("dataflow", "wait for a turn to read");
        let mut source = next.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(position) = buffer.reserve() else { return };
        drop(waiting);
        let reading = timeline::static_span("dataflow", "read the input of the stage");
        let Task { work: task, state, epoch, index } = source();
        drop(reading);
        let read = match task {
            Ok(Some(task)) => {
                drop(source);
                let _working = timeline::static_span("dataflow", stage);
                catch_panic(stage, epoch, index, || work(task).map(Some))
            }
            // In unordered mode the end of a pass must still come after all its samples.
            Ok(None) if !keep_order => {
                buffer.wait_filled_before(position);
                buffer.fill(position, Item { read: Ok(None), state });
                continue;
            }
            Ok(None) => Ok(None),
            Err(e) => Err(e),
        };
        buffer.fill(position, Item { read, state });
    }
}

/// Turns a panic into an error that names the sample and the stage.
pub(super) fn catch_panic<T>(
    stage: &str,
    epoch: u64,
    index: u64,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let why = format!("sample {index} of epoch {epoch}: panic in {stage}: {}", panic_message(&*panic));
        Err(Error::new(ErrorKind::Data, why))
    })
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.buffer.close();
        // A busy thread finishes its sample first. A thread that already timed out is not waited
        // for.
        let timeout = if self.timed_out { Duration::ZERO } else { self.options.timeout };
        if self.live.wait_for_exit(timeout) {
            self.threads.drain(..).for_each(|thread| drop(thread.join()));
        } else {
            let stage = self.options.stage;
            // `eprintln` would panic, in a destructor, if standard error is closed or full.
            let _ = writeln!(
                std::io::stderr(),
                "warning: a {stage} worker did not return in time and was detached"
            );
        }
    }
}

/// The number of running threads.
#[derive(Default)]
struct LiveThreads {
    count: Mutex<usize>,
    none: Condvar,
}

impl LiveThreads {
    fn wait_for_exit(&self, timeout: Duration) -> bool {
        let begun = Instant::now();
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = timeout.saturating_sub(begun.elapsed());
            if *count == 0 || left.is_zero() {
                return *count == 0;
            }
            count = self.none.wait_timeout(count, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Counts one running thread while it is alive.
struct LiveThread(Arc<LiveThreads>);

impl LiveThread {
    fn new(live: &Arc<LiveThreads>) -> LiveThread {
        *live.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        LiveThread(live.clone())
    }
}

impl Drop for LiveThread {
    fn drop(&mut self) {
        *self.0.count.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.none.notify_all();
    }
}
