//! Records what each thread of the process does, and when.
//!
//! Code marks its parts with [`span`], or with [`record`] if it has measured them itself. While no
//! [`Recording`] runs, either costs one relaxed load. A recording collects the spans of all threads
//! that end while it runs; several may run at the same time.

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The largest number of spans that are kept per thread. Later ones are counted only.
pub const MAX_SPANS: usize = 500_000;

/// The number of recordings that run.
static RECORDINGS: AtomicUsize = AtomicUsize::new(0);
static NEXT_THREAD: AtomicU64 = AtomicU64::new(1);
/// The logs of all threads that have had a span.
static LOGS: Mutex<Vec<Arc<ThreadLog>>> = Mutex::new(Vec::new());

thread_local! {
    static LOCAL: Local = Local::new();
}

/// The name of a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// A name that is part of the program.
    Static(&'static str),
    /// A name that exists at run time only.
    Shared(Arc<str>),
    /// A part of something with a name, shown as `NAME: PART`.
    Part(Arc<str>, &'static str),
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::Static(name) => f.write_str(name),
            Name::Shared(name) => f.write_str(name),
            Name::Part(name, part) => write!(f, "{name}: {part}"),
        }
    }
}

/// What a span is: its name, and the kind of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// The kind of work, such as `kernel` or `callback`.
    pub category: &'static str,
    /// The name.
    pub name: Name,
}

/// A part of a thread's time.
#[derive(Clone, Debug)]
pub struct Event {
    /// What the thread did.
    pub label: Label,
    /// When it began.
    pub begun: Instant,
    /// When it ended.
    pub ended: Instant,
}

/// The spans of one thread.
#[derive(Clone, Debug)]
pub struct ThreadEvents {
    /// A number that no other thread of the process has.
    pub id: u64,
    /// The name of the thread.
    pub name: String,
    /// The spans, ordered by their ends.
    pub events: Vec<Event>,
    /// The number of spans that did not fit.
    pub dropped: u64,
}

/// What was recorded.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// When the recording began. Spans that were measured by their thread may have begun before.
    pub begun: Instant,
    /// The spans of each thread that had any.
    pub threads: Vec<ThreadEvents>,
}

/// Records the spans of all threads until it is finished or dropped.
#[derive(Debug)]
pub struct Recording {
    begun: Instant,
}

struct ThreadLog {
    id: u64,
    name: String,
    spans: Mutex<Spans>,
}

#[derive(Default)]
struct Spans {
    events: Vec<Event>,
    dropped: u64,
}

struct Local {
    log: Arc<ThreadLog>,
    /// The labels of the spans that are open, outermost first.
    open: RefCell<Vec<Label>>,
}

impl Local {
    fn new() -> Local {
        let thread = std::thread::current();
        let id = NEXT_THREAD.fetch_add(1, Ordering::Relaxed);
        let name = thread.name().map_or_else(|| format!("thread {id}"), str::to_string);
        let log = Arc::new(ThreadLog { id, name, spans: Mutex::default() });
        logs().push(log.clone());
        Local { log, open: RefCell::default() }
    }
}

impl ThreadLog {
    fn spans(&self) -> MutexGuard<'_, Spans> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, event: Event) {
        let mut spans = self.spans();
        match spans.events.len() < MAX_SPANS {
            true => spans.events.push(event),
            false => spans.dropped += 1,
        }
    }
}

fn logs() -> MutexGuard<'static, Vec<Arc<ThreadLog>>> {
    LOGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether a recording runs: one relaxed load.
#[inline]
pub fn is_recording() -> bool {
    RECORDINGS.load(Ordering::Relaxed) != 0
}

/// Begins a span of this thread, which ends when the returned value is dropped. `label` is called
/// only while a recording runs.
#[inline]
pub fn span(label: impl FnOnce() -> Label) -> Span {
    let begun = if is_recording() { begin(label()) } else { None };
    Span { begun, on_this_thread: PhantomData }
}

/// Begins a span with a name that is part of the program.
#[inline]
pub fn static_span(category: &'static str, name: &'static str) -> Span {
    span(|| Label { category, name: Name::Static(name) })
}

#[cold]
fn begin(label: Label) -> Option<Instant> {
    // A thread that is about to end may have no local state any more.
    LOCAL.try_with(|local| local.open.borrow_mut().push(label)).ok()?;
    Some(Instant::now())
}

/// Records a part of this thread's time that the caller has measured.
#[inline]
pub fn record(category: &'static str, name: &'static str, begun: Instant, ended: Instant) {
    if is_recording() {
        let label = Label { category, name: Name::Static(name) };
        let _ = LOCAL.try_with(|local| local.log.push(Event { label, begun, ended }));
    }
}

/// Returns the label of the innermost open span of this thread, so that others that work for it can
/// have a span of the same name. Returns `None` if nothing is recorded.
#[inline]
pub fn current() -> Option<Label> {
    match is_recording() {
        true => LOCAL.try_with(|local| local.open.borrow().last().cloned()).ok().flatten(),
        false => None,
    }
}

/// An open span.
#[must_use = "a span ends when it is dropped"]
#[derive(Debug)]
pub struct Span {
    /// When it began; `None` if it is not recorded.
    begun: Option<Instant>,
    on_this_thread: PhantomData<*const ()>,
}

impl Drop for Span {
    #[inline]
    fn drop(&mut self) {
        if let Some(begun) = self.begun {
            end(begun);
        }
    }
}

#[cold]
fn end(begun: Instant) {
    let ended = Instant::now();
    let _ = LOCAL.try_with(|local| {
        let label = local.open.borrow_mut().pop();
        if let Some(label) = label.filter(|_| is_recording()) {
            local.log.push(Event { label, begun, ended });
        }
    });
}

impl Recording {
    /// Starts to record.
    pub fn start() -> Recording {
        let logs = logs();
        if RECORDINGS.fetch_add(1, Ordering::Relaxed) == 0 {
            // Spans that ended while the last recording did.
            logs.iter().for_each(|log| *log.spans() = Spans::default());
        }
        Recording { begun: Instant::now() }
    }

    /// Ends the recording and returns the spans that ended while it ran.
    pub fn finish(self) -> Timeline {
        let of_thread = |log: &Arc<ThreadLog>| {
            let spans = log.spans();
            let events = spans.events.iter().filter(|event| event.ended >= self.begun).cloned().collect();
            ThreadEvents { id: log.id, name: log.name.clone(), events, dropped: spans.dropped }
        };
        let mut threads: Vec<ThreadEvents> = logs().iter().map(of_thread).collect();
        threads.retain(|thread| !thread.events.is_empty());
        Timeline { begun: self.begun, threads }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let mut logs = logs();
        if RECORDINGS.fetch_sub(1, Ordering::Relaxed) == 1 {
            logs.iter().for_each(|log| *log.spans() = Spans::default());
            // A thread that has ended has no log of its own any more.
            logs.retain(|log| Arc::strong_count(log) > 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// The names of the spans that the named thread recorded.
    fn names(timeline: &Timeline, thread: &str) -> Vec<String> {
        let of_thread = timeline.threads.iter().filter(|t| t.name == thread);
        of_thread.flat_map(|t| t.events.iter().map(|e| e.label.name.to_string())).collect()
    }

    /// Runs `body` on a thread of its own with a name of its own: recordings see all threads.
    fn on_thread<T: Send + 'static>(name: &str, body: impl FnOnce() -> T + Send + 'static) -> T {
        thread::Builder::new().name(name.into()).spawn(body).unwrap().join().unwrap()
    }

    #[test]
    fn spans_nest_and_the_inner_one_ends_first() {
        let recording = Recording::start();
        on_thread("nested", || {
            let _outer = static_span("test", "outer");
            assert_eq!(current().unwrap().name, Name::Static("outer"));
            {
                let _inner = span(|| Label { category: "test", name: Name::Part("a".into(), "b") });
                assert_eq!(current().unwrap().name.to_string(), "a: b");
            }
            assert_eq!(current().unwrap().name, Name::Static("outer"));
        });
        let timeline = recording.finish();
        assert_eq!(names(&timeline, "nested"), ["a: b", "outer"]);
        let thread = timeline.threads.iter().find(|t| t.name == "nested").unwrap();
        let [inner, outer] = [&thread.events[0], &thread.events[1]];
        assert!(outer.begun <= inner.begun && inner.ended <= outer.ended, "{thread:?}");
    }

    #[test]
    fn recordings_at_the_same_time_each_have_their_own_part() {
        let (send, jobs) = std::sync::mpsc::channel::<&'static str>();
        let (answer, answered) = std::sync::mpsc::channel();
        let worker = thread::Builder::new().name("two".into()).spawn(move || {
            for name in jobs {
                drop(static_span("test", name));
                answer.send(()).unwrap();
            }
        });
        let work = |name| {
            send.send(name).unwrap();
            answered.recv().unwrap();
        };
        let first = Recording::start();
        work("a");
        let second = Recording::start();
        work("b");
        assert_eq!(names(&first.finish(), "two"), ["a", "b"]);
        work("c");
        assert_eq!(names(&second.finish(), "two"), ["b", "c"]);
        drop(send);
        worker.unwrap().join().unwrap();
    }

    #[test]
    fn a_full_log_counts_what_it_drops() {
        let recording = Recording::start();
        on_thread("full", || {
            let now = Instant::now();
            (0..MAX_SPANS + 3).for_each(|_| record("test", "x", now, now));
        });
        let timeline = recording.finish();
        let thread = timeline.threads.iter().find(|t| t.name == "full").unwrap();
        assert_eq!((thread.events.len(), thread.dropped), (MAX_SPANS, 3));
    }
}
