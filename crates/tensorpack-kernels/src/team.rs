//! A thread team that runs the chunks of one kernel after another.
//!
//! The calling thread is member 0 and takes part in the work. Between kernels the workers spin
//! briefly, since the next kernel usually follows within microseconds, and then park, so that an
//! idle session uses no CPU.
//!
//! A worker joins a job when it arrives, and the caller waits only for the workers that joined. On
//! a machine whose cores are taken by others, the caller runs all chunks of a small kernel before a
//! worker gets a core, and goes on without it. If the system takes the core of a worker inside a
//! chunk, the caller has to wait. After such a stall it works alone for some time (`stall.rs`).
//!
//! Each member starts with its own contiguous range of chunks. The ranges depend only on the number
//! of chunks, so a member often finds in its cache what it wrote in the previous kernel. A member
//! that runs out of chunks steals from the end of the others' ranges. Chunks are independent, so
//! results do not depend on which member runs which chunk. Members beyond the number of chunks stay
//! out of a job: with many threads, waiting for them costs more than a small kernel.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::partition;
use crate::simd::subnormals::SubnormalsAreZero;
use crate::stall::Stalls;
use crate::sync::{self, Arc, AtomicBool, AtomicPtr, AtomicU64, Mutex, Thread};
use tensorpack_timeline::{self as timeline, Label};

/// Number of times a waiting thread polls before it parks: some tens of microseconds. A model
/// checker needs to see one.
const SPINS: u32 = if cfg!(loom) { 1 } else { 20_000 };

/// Maximum number of chunks per job: a chunk queue keeps both ends in the halves of one u64.
const MAX_CHUNKS: usize = u32::MAX as usize;

/// A thread team: threads that run the chunks of a kernel together.
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<Thread>,
    spins: u32,
    stalls: Stalls,
}

/// The body of a job: a closure on the caller's stack.
type Job<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// A job as workers see it, on the caller's stack, borrowed until `Team::dispatch` returns.
struct Dispatched<'a> {
    job: Job<'a>,
    /// The caller's open span, if a timeline is recorded: the spans of workers have its name.
    label: Option<Label>,
}

/// The remaining chunks of a member: a range with its start and end in the halves of one u64. It
/// has a cache line of its own, since its owner pops from it all the time.
#[derive(Default)]
#[repr(align(64))]
struct ChunkQueue(AtomicU64);

impl ChunkQueue {
    fn set(&self, chunks: Range<usize>) {
        debug_assert!(chunks.end <= u32::MAX as usize, "{chunks:?}");
        self.0.store((chunks.start as u64) << 32 | chunks.end as u64, Ordering::Relaxed);
    }

    /// Pops the first chunk, for the owner.
    fn pop_front(&self) -> Option<usize> {
        self.take(|chunks| chunks.next())
    }

    /// Pops the last chunk, for a thief.
    fn pop_back(&self) -> Option<usize> {
        self.take(|chunks| chunks.next_back())
    }

    fn take(&self, one: impl Fn(&mut Range<u64>) -> Option<u64>) -> Option<usize> {
        let mut taken = None;
        let left = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |both| {
            let mut chunks = both >> 32..both & u64::from(u32::MAX);
            taken = one(&mut chunks);
            taken.map(|_| chunks.start << 32 | chunks.end)
        });
        left.ok().and(taken).map(|chunk| chunk as usize)
    }
}

struct Shared {
    /// The number of the current job, counted from 1; workers wait for it to change.
    current: AtomicU64,
    /// The number of the last job that no more workers may join.
    closed: AtomicU64,
    /// The current job, a `*const Dispatched`. It is valid for workers that have joined.
    job: AtomicPtr<()>,
    /// The number of members with chunks of the current job.
    active: AtomicU64,
    /// One per member.
    queues: Vec<ChunkQueue>,
    workers: Vec<Worker>,
    quit: AtomicBool,
    caller: Mutex<Option<Thread>>,
    caller_parked: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    spins: u32,
}

/// The state of a worker, in a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct Worker {
    /// The number of the job that the worker has joined, or 0.
    joined: AtomicU64,
    parked: AtomicBool,
}

impl Worker {
    fn has_joined(&self, number: u64) -> bool {
        self.joined.load(Ordering::SeqCst) == number
    }
}

impl Team {
    /// Creates a team of `threads` members, including the caller of [`Team::run`]. Its threads spin
    /// between kernels only if the machine has a core for each of them.
    pub fn new(threads: usize) -> Team {
        Team::among(threads, threads, "team")
    }

    /// Creates a team of `threads` members that runs concurrently with other teams. `all` is the
    /// number of threads of all teams together: this team spins only if the machine has a core for
    /// each of those. Its threads are named `NAME-1`, `NAME-2` and so on; the caller is member 0.
    pub fn among(threads: usize, all: usize, name: &str) -> Team {
        let threads = threads.max(1);
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let spins = if all.max(threads) <= cores { SPINS } else { 0 };
        let shared = Arc::new(Shared {
            current: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            job: AtomicPtr::new(std::ptr::null_mut()),
            active: AtomicU64::new(0),
            queues: (0..threads).map(|_| ChunkQueue::default()).collect(),
            workers: (1..threads).map(|_| Worker::default()).collect(),
            quit: AtomicBool::new(false),
            caller: Mutex::new(None),
            caller_parked: AtomicBool::new(false),
            panic: Mutex::new(None),
            spins,
        });
        let workers = (1..threads)
            .map_while(|member| {
                let shared = shared.clone();
                let spawned =
                    sync::Builder::new().name(format!("{name}-{member}")).spawn(move || shared.work(member));
                // If the system refuses more threads, a smaller team computes the same results.
                spawned.ok().map(|handle| handle.thread().clone())
            })
            .collect();
        Team { shared, workers, spins, stalls: Stalls::default() }
    }

    /// Returns the number of members.
    pub fn len(&self) -> usize {
        self.workers.len() + 1
    }

    /// Always false: the caller is a member.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Calls `job(chunk, member)` once for every chunk in `0..chunks`, on all members, and returns
    /// when all are done. If a job panics, the panic resumes on the caller once every member has
    /// stopped. Takes `&mut self` because a team runs one job at a time. Jobs run with subnormals
    /// flushed to zero.
    pub fn run(&mut self, chunks: usize, job: Job<'_>) {
        if chunks <= 1 || self.workers.is_empty() || self.stalls.works_alone() {
            let _flush = SubnormalsAreZero::begin();
            return (0..chunks).for_each(|chunk| job(chunk, 0));
        }
        if chunks > MAX_CHUNKS {
            return self.run_in_rounds(chunks, MAX_CHUNKS, job);
        }
        self.dispatch(chunks, job);
    }

    /// Calls `job(i)` for every `i` below [`Team::len`], so that the calls may wait for each other,
    /// as in gang scheduling. If they do, each runs on a member of its own; a member whose call has
    /// ended may run another one. Otherwise like [`Team::run`].
    pub fn run_on_every_member(&mut self, job: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() {
            let _flush = SubnormalsAreZero::begin();
            return job(0);
        }
        // A member that waits in its chunk takes no other, so each member gets one of them.
        self.dispatch(self.len(), &|chunk, _| job(chunk));
    }

    /// Runs the chunks of a job on the caller and on the workers that join in time.
    fn dispatch(&mut self, chunks: usize, job: Job<'_>) {
        let _flush = SubnormalsAreZero::begin();
        let shared = &*self.shared;
        {
            let me = sync::current();
            let mut caller = shared.caller.lock().unwrap_or_else(|e| e.into_inner());
            if caller.as_ref().is_none_or(|c| c.id() != me.id()) {
                *caller = Some(me);
            }
        }
        let active = self.len().min(chunks);
        for (member, queue) in shared.queues[..active].iter().enumerate() {
            queue.set(partition::part(chunks, active, member));
        }
        shared.active.store(active as u64, Ordering::Relaxed);
        let dispatched = Dispatched { job, label: timeline::current() };
        shared.job.store((&raw const dispatched).cast_mut().cast(), Ordering::Relaxed);
        let number = shared.current.fetch_add(1, Ordering::SeqCst) + 1;
        for (thread, worker) in self.workers.iter().zip(&shared.workers).take(active - 1) {
            if worker.parked.load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
        let begun = Instant::now();
        let mine = catch_unwind(AssertUnwindSafe(|| shared.take_chunks(job, 0)));
        // The closure lives on this stack: wait for the workers even if this thread panicked.
        // Nothing from here to the last wait may panic.
        shared.closed.store(number, Ordering::SeqCst);
        for worker in &shared.workers[..active - 1] {
            shared.wait_for(worker, number, begun, self.spins, &mut self.stalls);
        }
        let theirs = shared.panic.lock().unwrap_or_else(|e| e.into_inner()).take();
        if let Some(panic) = mine.err().or(theirs) {
            std::panic::resume_unwind(panic);
        }
    }

    /// Runs the chunks in rounds of at most `max` chunks.
    fn run_in_rounds(&mut self, chunks: usize, max: usize, job: Job<'_>) {
        for first in (0..chunks).step_by(max) {
            self.run(max.min(chunks - first), &|chunk, member| job(first + chunk, member));
        }
    }
}

impl Shared {
    fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed) as usize
    }

    fn take_chunks(&self, job: Job<'_>, member: usize) {
        while let Some(chunk) = self.queues[member].pop_front() {
            job(chunk, member);
        }
        for others in self.queues[member + 1..self.active()].iter().chain(&self.queues[..member]) {
            while let Some(chunk) = others.pop_back() {
                job(chunk, member);
            }
        }
    }

    /// Waits until a worker has left a closed job, which began at `begun`.
    fn wait_for(&self, worker: &Worker, number: u64, begun: Instant, spins: u32, stalls: &mut Stalls) {
        let mut spun = 0;
        while worker.has_joined(number) {
            if spun < spins {
                spun += 1;
                sync::spin_loop();
                continue;
            }
            let parked = Instant::now();
            while worker.has_joined(number) {
                self.caller_parked.store(true, Ordering::SeqCst);
                if worker.has_joined(number) {
                    sync::park();
                }
                self.caller_parked.store(false, Ordering::SeqCst);
            }
            stalls.waited(parked - begun, parked, Instant::now());
        }
    }

    fn work(&self, member: usize) {
        let _flush = SubnormalsAreZero::begin();
        let me = &self.workers[member - 1];
        let mut seen = 0;
        loop {
            let mut spun = 0;
            while self.current.load(Ordering::SeqCst) == seen {
                if self.quit.load(Ordering::Relaxed) {
                    return;
                }
                if spun < self.spins {
                    spun += 1;
                    sync::spin_loop();
                } else {
                    me.parked.store(true, Ordering::SeqCst);
                    if self.current.load(Ordering::SeqCst) == seen && !self.quit.load(Ordering::SeqCst) {
                        sync::park();
                    }
                    me.parked.store(false, Ordering::SeqCst);
                }
            }
            seen = self.current.load(Ordering::SeqCst);
            // This may be the number of a later job, whose number the worker has not seen yet. Then
            // the job that it has seen is closed, and `join` fails.
            if member >= self.active() || !self.join(me, seen) {
                continue;
            }
            // SAFETY: `Team::dispatch` stored the job before it published its number in `current`,
            // which this worker has read. `Worker::join` has found the job open, so `active` belongs
            // to it and counts this worker: `dispatch` sees it in `wait_for`, and neither returns nor
            // stores another job before the worker leaves, which it does only below.
            let dispatched = unsafe { &*self.job.load(Ordering::Relaxed).cast::<Dispatched<'_>>() };
            let span = dispatched.label.clone().map(|label| timeline::span(|| label));
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.take_chunks(dispatched.job, member))) {
                self.panic.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(panic);
            }
            drop(span);
            self.leave(me);
        }
    }

    /// Joins a job unless it is closed. The caller closes it before it looks at `joined`, and both
    /// sides are sequentially consistent: either this worker sees that the job is closed, or the
    /// caller sees that this worker has joined.
    fn join(&self, me: &Worker, number: u64) -> bool {
        me.joined.store(number, Ordering::SeqCst);
        let open = self.closed.load(Ordering::SeqCst) < number;
        if !open {
            self.leave(me);
        }
        open
    }

    /// Leaves the job. The caller may have parked even if the job was closed before this worker
    /// joined: it saw `joined` for a moment.
    fn leave(&self, me: &Worker) {
        me.joined.store(0, Ordering::SeqCst);
        if self.caller_parked.load(Ordering::SeqCst)
            && let Some(caller) = &*self.caller.lock().unwrap_or_else(|e| e.into_inner())
        {
            caller.unpark();
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.quit.store(true, Ordering::SeqCst);
        self.workers.iter().for_each(Thread::unpark);
    }
}

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Team({} threads)", self.len())
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn every_chunk_runs_once() {
        for threads in [1, 2, 3, 5] {
            let mut team = Team::new(threads);
            for chunks in [0, 1, 2, 7, 100] {
                let hits: Vec<AtomicUsize> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
                team.run(chunks, &|c, member| {
                    assert!(member < threads);
                    hits[c].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    hits.iter().all(|h| h.load(Ordering::Relaxed) == 1),
                    "{threads} threads, {chunks} chunks"
                );
            }
        }
    }

    #[test]
    fn more_chunks_than_a_queue_holds_run_in_rounds() {
        for threads in [1, 3] {
            let mut team = Team::new(threads);
            for chunks in [0, 3, 4, 10] {
                let hits: Vec<AtomicUsize> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
                team.run_in_rounds(chunks, 4, &|c, _| {
                    hits[c].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    hits.iter().all(|h| h.load(Ordering::Relaxed) == 1),
                    "{threads} threads, {chunks} chunks"
                );
            }
        }
    }

    /// As on a machine whose cores are all taken by others: the worker's thread never runs.
    #[test]
    fn a_job_ends_without_a_worker_that_never_joins() {
        let (done, is_done) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let mut team = Team::new(2);
            team.shared.quit.store(true, Ordering::SeqCst);
            team.workers[0].unpark();
            let sum = AtomicUsize::new(0);
            for _ in 0..100 {
                team.run(8, &|c, _| {
                    sum.fetch_add(c, Ordering::Relaxed);
                });
            }
            done.send(sum.into_inner()).unwrap();
        });
        assert_eq!(is_done.recv_timeout(Duration::from_secs(20)), Ok(100 * 28));
    }

    #[test]
    fn a_caller_waits_for_a_worker_inside_a_chunk() {
        let mut team = Team::new(2);
        for _ in 0..3 {
            // Both members are inside a chunk at the same time, and the worker's takes longer.
            let both = std::sync::Barrier::new(2);
            let ended = AtomicUsize::new(0);
            team.run(2, &|_, member| {
                both.wait();
                if member > 0 {
                    thread::sleep(Duration::from_millis(3));
                }
                ended.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(ended.into_inner(), 2);
            team.stalls = Stalls::default();
        }
    }

    /// On a busy machine the first jobs may not stall: the caller itself may lose its core.
    #[test]
    fn after_a_stall_the_caller_works_alone() {
        let mut team = Team::new(2);
        let stalled = (0..50).any(|_| {
            let both = std::sync::Barrier::new(2);
            team.run(2, &|_, member| {
                both.wait();
                if member > 0 {
                    thread::sleep(Duration::from_millis(20));
                }
            });
            team.stalls.works_alone()
        });
        assert!(stalled);
        stall(&mut team);
        // Time enough for the worker to join if it is called.
        team.run(8, &|_, member| {
            assert_eq!(member, 0);
            thread::sleep(Duration::from_millis(5));
        });
    }

    /// Makes the caller work alone for a while.
    fn stall(team: &mut Team) {
        let now = Instant::now();
        team.stalls.waited(Duration::ZERO, now, now + Duration::from_secs(1));
        assert!(team.stalls.works_alone());
    }

    #[test]
    fn members_may_wait_for_each_other_even_after_a_stall() {
        let mut team = Team::new(3);
        for _ in 0..3 {
            stall(&mut team);
            let all = std::sync::Barrier::new(3);
            let ran = AtomicUsize::new(0);
            team.run_on_every_member(&|member| {
                all.wait();
                ran.fetch_or(1 << member, Ordering::Relaxed);
            });
            assert_eq!(ran.into_inner(), 0b111);
        }
    }

    #[test]
    fn many_small_jobs_in_a_row() {
        let mut team = Team::new(3);
        let sum = AtomicUsize::new(0);
        for _ in 0..5_000 {
            team.run(4, &|c, _| {
                sum.fetch_add(c, Ordering::Relaxed);
            });
        }
        assert_eq!(sum.into_inner(), 5_000 * 6);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_stays_usable() {
        let mut team = Team::new(3);
        for bad in 0..8 {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                team.run(8, &|c, _| assert!(c != bad, "chunk {c} is bad"));
            }));
            let message = caught.unwrap_err();
            assert_eq!(message.downcast_ref::<String>().unwrap(), &format!("chunk {bad} is bad"));
        }
        team.run(8, &|_, _| ());
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn subnormals_are_flushed_on_every_member_only_while_a_job_runs() {
        let halved = || std::hint::black_box(f32::MIN_POSITIVE) * std::hint::black_box(0.5);
        for threads in [1, 3] {
            let mut team = Team::new(threads);
            // The barrier makes every member run exactly one chunk.
            let all = std::sync::Barrier::new(team.len());
            team.run(team.len(), &|_, member| {
                all.wait();
                assert_eq!(halved(), 0.0, "member {member}");
            });
            assert!(halved() > 0.0);
            catch_unwind(AssertUnwindSafe(|| team.run(1, &|_, _| panic!("on purpose")))).unwrap_err();
            assert!(halved() > 0.0);
        }
    }

    #[test]
    fn wakes_after_a_pause() {
        let mut team = Team::new(2);
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(20));
            let hits = AtomicUsize::new(0);
            team.run(2, &|_, _| {
                hits.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(hits.into_inner(), 2);
        }
    }

    /// Every member has a span of the caller's name for its part of a job.
    #[test]
    fn workers_have_spans_of_the_name_of_the_callers() {
        let recording = timeline::Recording::start();
        let mut team = Team::among(3, usize::MAX, "spanned");
        // A barrier makes every member take part.
        let all = std::sync::Barrier::new(3);
        let meet = |_| {
            all.wait();
        };
        {
            let _kernel = timeline::static_span("kernel", "a kernel of this test");
            team.run_on_every_member(&meet);
        }
        team.run_on_every_member(&meet);
        let timeline = recording.finish();
        let count = |thread: &str| {
            let of_thread = timeline.threads.iter().filter(|t| t.name == thread);
            of_thread.map(|t| t.events.len()).sum::<usize>()
        };
        assert_eq!((count("spanned-1"), count("spanned-2")), (1, 1));
    }
}
