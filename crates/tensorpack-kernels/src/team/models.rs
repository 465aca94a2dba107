//! loom models of the thread team. Each runs the code of [`Team`] under every schedule and every
//! result of a weak load, up to the limit on preemptions in `LOOM_MAX_PREEMPTIONS`. A thread that
//! is never woken is a deadlock, which loom reports.

use super::*;
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicUsize as Counter;
use std::panic::resume_unwind;

/// The member counts of all teams together: with the first, a team of two spins before it parks on
/// a machine with two cores; with the second, it parks at once.
const ALL: [usize; 2] = [2, usize::MAX];

/// Memory that the chunks of a job write without atomics, as kernels do. loom reports a chunk that
/// runs twice concurrently, and a read that does not happen after the write.
struct Output(Vec<UnsafeCell<usize>>);

// SAFETY: loom checks every access.
unsafe impl Sync for Output {}

impl Output {
    fn new(chunks: usize) -> Output {
        Output((0..chunks).map(|_| UnsafeCell::new(0)).collect())
    }

    fn add(&self, chunk: usize) {
        // SAFETY: loom reports a concurrent access.
        self.0[chunk].with_mut(|n| unsafe { *n += 1 });
    }

    fn read(&self) -> Vec<usize> {
        // SAFETY: loom reports a concurrent access.
        self.0.iter().map(|n| n.with(|n| unsafe { *n })).collect()
    }
}

/// Every chunk runs once, its writes are visible to the caller and to the next job, and parked
/// workers wake up for the next job and for the end.
#[test]
fn jobs_in_a_row_run_every_chunk_once() {
    for all in ALL {
        loom::model(move || {
            let mut team = Team::among(2, all, "team");
            let output = Output::new(3);
            team.run(3, &|chunk, _| output.add(chunk));
            assert_eq!(output.read(), [1, 1, 1]);
            team.run(2, &|chunk, _| output.add(chunk));
            assert_eq!(output.read(), [2, 2, 1]);
        });
    }
}

/// A worker that is late for a job joins none or the next, never one that has ended.
#[test]
fn a_late_worker_joins_no_job_that_has_ended() {
    loom::model(|| {
        let mut team = Team::among(2, usize::MAX, "team");
        for _ in 0..2 {
            // The output lives only as long as its job: loom reports a later access.
            let output = Output::new(2);
            team.run(2, &|chunk, _| output.add(chunk));
            assert_eq!(output.read(), [1, 1]);
        }
    });
}

/// Members may wait for each other: each of them runs its own call.
#[test]
fn every_member_runs_at_the_same_time() {
    loom::model(|| {
        let mut team = Team::among(2, usize::MAX, "team");
        for _ in 0..2 {
            let (arrived, all) = (Mutex::new(0), loom::sync::Condvar::new());
            team.run_on_every_member(&|_| {
                let mut count = arrived.lock().unwrap();
                *count += 1;
                all.notify_all();
                while *count < 2 {
                    count = all.wait(count).unwrap();
                }
            });
            assert_eq!(*arrived.lock().unwrap(), 2);
        }
    });
}

/// Members steal from each other without losing or repeating a chunk.
#[test]
fn three_members_run_every_chunk_once() {
    let mut model = loom::model::Builder::new();
    // Three threads have too many schedules with more preemptions.
    model.preemption_bound = Some(1);
    model.check(|| {
        let mut team = Team::among(3, usize::MAX, "team");
        let output = Output::new(3);
        team.run(3, &|chunk, _| output.add(chunk));
        assert_eq!(output.read(), [1; 3]);
    });
}

/// Members beyond the number of chunks stay out of a job, which does not wait for them, and take
/// part in the next.
#[test]
fn members_without_chunks_stay_out_of_a_job() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(1);
    model.check(|| {
        let mut team = Team::among(3, usize::MAX, "team");
        for chunks in [2, 3] {
            // The output lives only as long as its job: loom reports a later access.
            let output = Output::new(chunks);
            team.run(chunks, &|chunk, member| {
                assert!(member < chunks);
                output.add(chunk);
            });
            assert_eq!(output.read(), vec![1; chunks]);
        }
    });
}

/// A panic in any chunk ends the job on all members and reaches the caller. The team stays usable.
#[test]
fn a_panic_ends_the_job_on_all_members() {
    for bad in 0..2 {
        loom::model(move || {
            let mut team = Team::among(2, usize::MAX, "team");
            let ran = Counter::new(0);
            let job = |chunk, _| {
                // Without the panic hook, which prints.
                if chunk == bad {
                    resume_unwind(Box::new(chunk));
                }
            };
            let panic = catch_unwind(AssertUnwindSafe(|| team.run(2, &job))).unwrap_err();
            assert_eq!(panic.downcast_ref(), Some(&bad));
            team.run(2, &|_, _| {
                ran.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(ran.load(Ordering::Relaxed), 2);
        });
    }
}

/// A team without a job ends: dropping it wakes the workers.
#[test]
fn an_idle_team_ends() {
    loom::model(|| drop(Team::among(3, usize::MAX, "team")));
}
