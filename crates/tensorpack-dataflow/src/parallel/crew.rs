//! The threads of one reader.

use super::line::{Item, Line};
use crate::stop;
use crate::{Sample, State};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// How a stage works.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// What errors call it.
    pub(super) stage: &'static str,
    pub(super) workers: usize,
    /// How many results may be made ahead.
    pub(super) ahead: usize,
    pub(super) keep_order: bool,
    pub(super) deadline: Duration,
}

/// What a thread takes from the feed: work, or what needs none (the end of a pass, an error); where the input stands
/// behind it; and which sample it is, for errors.
pub(super) struct Task<T> {
    pub(super) work: Result<Option<T>>,
    pub(super) state: State,
    pub(super) epoch: u64,
    pub(super) index: u64,
}

/// Threads that work ahead of a reader. Dropping it stops and joins them.
pub(super) struct Crew {
    plan: Plan,
    line: Arc<Line>,
    threads: Vec<JoinHandle<()>>,
    present: Arc<Present>,
    /// Where the input stands behind what the consumer has taken.
    state: State,
    /// The last wait took too long: a thread hangs, or is very slow.
    late: bool,
}

impl Crew {
    /// Begins at `state`. `next` is called by one thread at a time, `work` by all.
    pub(super) fn start<T: Send + 'static>(
        plan: &Plan,
        state: State,
        next: impl FnMut() -> Task<T> + Send + 'static,
        work: impl Fn(T) -> Result<Sample> + Send + Sync + 'static,
    ) -> Result<Crew> {
        if plan.workers == 0 {
            return Err(Error::argument(format!("{}: there must be at least one worker", plan.stage)));
        }
        let line = Arc::new(Line::new(plan.ahead, plan.keep_order));
        let present = Arc::new(Present::default());
        let mut crew = Crew { plan: plan.clone(), line, threads: Vec::new(), present, state, late: false };
        let next = Arc::new(Mutex::new(next));
        let work = Arc::new(work);
        for _ in 0..plan.workers {
            let (line, next, work) = (crew.line.clone(), next.clone(), work.clone());
            let (keep_order, stage) = (plan.keep_order, plan.stage);
            let here = Here::new(&crew.present);
            let body = move || {
                stop::obey(line.stopped());
                work_along(&line, next, work, keep_order, stage);
                // What the input holds, its threads too, is gone before this thread counts as gone.
                drop(here);
            };
            let thread = thread::Builder::new().name(plan.stage.to_string()).spawn(body);
            crew.threads
                .push(thread.map_err(|e| Error::from(e).within(format!("{}: a new thread", plan.stage)))?);
        }
        Ok(crew)
    }

    /// The next result, waited for no longer than the deadline.
    pub(super) fn read(&mut self) -> Result<Option<Sample>> {
        let item = self.line.take(self.plan.deadline)?;
        self.late = item.is_none();
        let Some(item) = item else {
            let State { epoch, index, .. } = self.state;
            return Err(stop::too_late(self.plan.stage, self.plan.deadline, epoch, index));
        };
        self.state = item.state;
        item.read
    }

    pub(super) fn state(&self) -> State {
        self.state.clone()
    }
}

/// What every thread does until the line is closed.
fn work_along<T>(
    line: &Line,
    next: Arc<Mutex<impl FnMut() -> Task<T>>>,
    work: Arc<impl Fn(T) -> Result<Sample>>,
    keep_order: bool,
    stage: &str,
) {
    loop {
        let mut feed = next.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(number) = line.reserve() else { return };
        let Task { work: task, state, epoch, index } = feed();
        let read = match task {
            Ok(Some(task)) => {
                drop(feed);
                guarded(stage, epoch, index, || work(task).map(Some))
            }
            // Where the order does not matter, the end of a pass must still come behind all its samples.
            Ok(None) if !keep_order => {
                line.settle(number);
                line.fill(number, Item { read: Ok(None), state });
                continue;
            }
            Ok(None) => Ok(None),
            Err(e) => Err(e),
        };
        line.fill(number, Item { read, state });
    }
}

/// Makes a panic an error that says where it happened.
pub(super) fn guarded<T>(stage: &str, epoch: u64, index: u64, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let why = format!("sample {index} of epoch {epoch}: a panic in {stage}: {}", message(&*panic));
        Err(Error::new(ErrorKind::Data, why))
    })
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.line.close();
        // A thread in the middle of a sample ends after it. One that has already taken too long is not waited for.
        let patience = if self.late { Duration::ZERO } else { self.plan.deadline };
        if self.present.wait_for_none(patience) {
            self.threads.drain(..).for_each(|thread| drop(thread.join()));
        } else {
            let stage = self.plan.stage;
            eprintln!("a thread of {stage} does not return from a sample, and is left behind");
        }
    }
}

/// Which threads have not ended.
#[derive(Default)]
struct Present {
    count: Mutex<usize>,
    none: Condvar,
}

impl Present {
    fn wait_for_none(&self, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if *count == 0 || left.is_zero() {
                return *count == 0;
            }
            count = self.none.wait_timeout(count, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Counts a thread while it lives.
struct Here(Arc<Present>);

impl Here {
    fn new(present: &Arc<Present>) -> Here {
        *present.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Here(present.clone())
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        *self.0.count.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.none.notify_all();
    }
}
