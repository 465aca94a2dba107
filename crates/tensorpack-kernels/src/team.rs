//! A thread team that runs the chunks of one kernel after another.
//!
//! The calling thread is member 0 and takes part in the work. Between kernels the workers spin
//! briefly, since the next kernel usually follows within microseconds, and then park, so that an
//! idle session uses no CPU.
//!
//! Each member starts with its own contiguous range of chunks. The ranges depend only on the number
//! of chunks, so a member often finds in its cache what it wrote in the previous kernel. A member
//! that runs out of chunks steals from the end of the others' ranges. Chunks are independent, so
//! results do not depend on which member runs which chunk.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use crate::partition;
use crate::simd::subnormals::SubnormalsAreZero;
use crate::sync::{self, Arc, AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Mutex, Thread};

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
}

/// A job: a closure on the caller's stack, borrowed until `Team::run` returns.
type Job<'a> = &'a (dyn Fn(usize, usize) + Sync);

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
    /// Number of jobs so far; workers wait for it to change.
    generation: AtomicU64,
    /// The current job, a `*const Job` valid while `running` is not zero.
    job: AtomicPtr<()>,
    /// One per member.
    queues: Vec<ChunkQueue>,
    /// Workers that have not finished the current job.
    running: AtomicUsize,
    quit: AtomicBool,
    parked: Vec<AtomicBool>,
    caller: Mutex<Option<Thread>>,
    caller_parked: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    spins: u32,
}

impl Team {
    /// Creates a team of `threads` members, including the caller of [`Team::run`]. Its threads spin
    /// between kernels only if the machine has a core for each of them.
    pub fn new(threads: usize) -> Team {
        Team::among(threads, threads)
    }

    /// Creates a team of `threads` members that runs concurrently with other teams. `all` is the
    /// number of threads of all teams together: this team spins only if the machine has a core for
    /// each of those.
    pub fn among(threads: usize, all: usize) -> Team {
        let threads = threads.max(1);
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let spins = if all.max(threads) <= cores { SPINS } else { 0 };
        let shared = Arc::new(Shared {
            generation: AtomicU64::new(0),
            job: AtomicPtr::new(std::ptr::null_mut()),
            queues: (0..threads).map(|_| ChunkQueue::default()).collect(),
            running: AtomicUsize::new(0),
            quit: AtomicBool::new(false),
            parked: (1..threads).map(|_| AtomicBool::new(false)).collect(),
            caller: Mutex::new(None),
            caller_parked: AtomicBool::new(false),
            panic: Mutex::new(None),
            spins,
        });
        let workers = (1..threads)
            .map_while(|member| {
                let shared = shared.clone();
                let spawned = sync::Builder::new()
                    .name(format!("tensorpack-{member}"))
                    .spawn(move || shared.work(member));
                // If the system refuses more threads, a smaller team computes the same results.
                spawned.ok().map(|handle| handle.thread().clone())
            })
            .collect();
        Team { shared, workers, spins }
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
        let _flush = SubnormalsAreZero::begin();
        if chunks <= 1 || self.workers.is_empty() {
            return (0..chunks).for_each(|chunk| job(chunk, 0));
        }
        if chunks > MAX_CHUNKS {
            return self.run_in_rounds(chunks, MAX_CHUNKS, job);
        }
        let shared = &*self.shared;
        {
            let me = sync::current();
            let mut caller = shared.caller.lock().unwrap_or_else(|e| e.into_inner());
            if caller.as_ref().is_none_or(|c| c.id() != me.id()) {
                *caller = Some(me);
            }
        }
        for (member, queue) in shared.queues[..self.len()].iter().enumerate() {
            queue.set(partition::part(chunks, self.len(), member));
        }
        shared.running.store(self.workers.len(), Ordering::Relaxed);
        shared.job.store((&raw const job).cast_mut().cast(), Ordering::Relaxed);
        shared.generation.fetch_add(1, Ordering::SeqCst);
        for (worker, parked) in self.workers.iter().zip(&shared.parked) {
            if parked.load(Ordering::SeqCst) {
                worker.unpark();
            }
        }
        let mine = catch_unwind(AssertUnwindSafe(|| shared.take_chunks(job, 0)));
        // The closure lives on this stack: wait for the workers even if this thread panicked.
        let mut spun = 0;
        while shared.running.load(Ordering::Acquire) != 0 {
            if spun < self.spins {
                spun += 1;
                sync::spin_loop();
            } else {
                shared.caller_parked.store(true, Ordering::SeqCst);
                if shared.running.load(Ordering::SeqCst) != 0 {
                    sync::park();
                }
                shared.caller_parked.store(false, Ordering::SeqCst);
            }
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
    fn take_chunks(&self, job: Job<'_>, member: usize) {
        while let Some(chunk) = self.queues[member].pop_front() {
            job(chunk, member);
        }
        for others in self.queues[member + 1..].iter().chain(&self.queues[..member]) {
            while let Some(chunk) = others.pop_back() {
                job(chunk, member);
            }
        }
    }

    fn work(&self, member: usize) {
        let _flush = SubnormalsAreZero::begin();
        let mut seen = 0;
        loop {
            let mut spun = 0;
            while self.generation.load(Ordering::SeqCst) == seen {
                if self.quit.load(Ordering::Relaxed) {
                    return;
                }
                if spun < self.spins {
                    spun += 1;
                    sync::spin_loop();
                } else {
                    let parked = &self.parked[member - 1];
                    parked.store(true, Ordering::SeqCst);
                    if self.generation.load(Ordering::SeqCst) == seen && !self.quit.load(Ordering::SeqCst) {
                        sync::park();
                    }
                    parked.store(false, Ordering::SeqCst);
                }
            }
            seen += 1;
            // SAFETY: `Team::run` stored the job before it incremented `generation`, and keeps it
            // alive until every worker has decremented `running`, which this one does only below.
            let job = unsafe { *self.job.load(Ordering::Relaxed).cast::<Job<'_>>() };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.take_chunks(job, member))) {
                self.panic.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(panic);
            }
            if self.running.fetch_sub(1, Ordering::SeqCst) == 1
                && self.caller_parked.load(Ordering::SeqCst)
                && let Some(caller) = &*self.caller.lock().unwrap_or_else(|e| e.into_inner())
            {
                caller.unpark();
            }
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
    use std::thread;

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
            thread::sleep(std::time::Duration::from_millis(20));
            let hits = AtomicUsize::new(0);
            team.run(2, &|_, _| {
                hits.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(hits.into_inner(), 2);
        }
    }
}
