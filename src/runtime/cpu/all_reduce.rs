//! All-reduce between the towers of a process: each tower contributes a summand and adds up its
//! share of the elements.
//!
//! Every wait has a deadline and ends at once when another tower fails: a tower that never arrives
//! causes an error that names the all-reduce, not a hang. Towers report when they finish, so that
//! the caller knows how long to wait for the last one.

use super::tower_positions::Origins;
use crate::distributed::SumTree;
use crate::sync::{AtomicBool, AtomicPtr, AtomicU64, Condvar, Mutex, MutexGuard, spin_loop};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use tensorpack_tensor::{DType, Error, ErrorKind, Result};

/// Number of spins before a waiting tower sleeps. A model checker needs to see one.
const SPINS: u32 = if cfg!(loom) { 1 } else { 20_000 };

/// How long a tower that missed a deadline may still take to finish.
const GRACE: Duration = Duration::from_millis(100);

/// Adds up a range of the elements, given where the summand of each tower is.
type AddShare<'a> = dyn Fn(std::ops::Range<usize>, &dyn Fn(usize) -> *const u8) + 'a;

/// Synchronizes the towers of a program, as a communicator does in NCCL or MPI.
#[derive(Debug)]
pub(super) struct Communicator {
    /// The summand of each tower and the destination of its sum.
    parts: Vec<(AtomicPtr<u8>, AtomicPtr<u8>)>,
    tree: SumTree,
    /// Number of completed barriers.
    met: AtomicU64,
    waiting: Mutex<usize>,
    all_here: Condvar,
    failed: AtomicBool,
    round: Mutex<Round>,
    /// The current step of each tower.
    steps: Vec<AtomicUsize>,
    deadline: Duration,
    spins: u32,
}

/// The state of the towers of one run.
#[derive(Debug, Default)]
struct Round {
    left: Vec<bool>,
    /// When towers that have not finished become overdue.
    until: Option<Instant>,
    /// The error of the first tower that failed.
    cause: Option<Error>,
    /// What the steps of the program that runs were lowered from.
    origins: Option<Arc<Origins>>,
}

/// A running tower. Dropping it reports the outcome to the others, even after a panic.
pub(super) struct RunningTower<'a> {
    communicator: &'a Communicator,
    tower: usize,
    /// The outcome; `None` if the tower panics.
    pub(super) outcome: Option<Result<()>>,
}

impl Drop for RunningTower<'_> {
    fn drop(&mut self) {
        self.communicator.left(self.tower, self.outcome.take());
    }
}

/// Towers that did not finish in time.
#[derive(Debug)]
pub(super) struct Overdue {
    /// The error of another tower if one failed, otherwise a deadline error.
    pub(super) error: Error,
    /// The overdue towers, with their current steps.
    pub(super) towers: Vec<(usize, usize)>,
}

/// Returns the towers that have not finished, with their current steps.
fn running(round: &Round, steps: Vec<usize>) -> Vec<(usize, usize)> {
    steps.into_iter().enumerate().filter(|&(tower, _)| round.left.get(tower) == Some(&false)).collect()
}

impl Communicator {
    /// Creates a communicator for `towers` towers, whose waits take at most `deadline`. Towers spin
    /// while they wait if `spin` is set, which pays only if every thread has a core.
    pub(super) fn new(towers: usize, deadline: Duration, spin: bool) -> Communicator {
        let nowhere = || AtomicPtr::new(std::ptr::null_mut());
        Communicator {
            parts: (0..towers).map(|_| (nowhere(), nowhere())).collect(),
            tree: SumTree::new(towers),
            met: AtomicU64::new(0),
            waiting: Mutex::new(0),
            all_here: Condvar::new(),
            failed: AtomicBool::new(false),
            round: Mutex::default(),
            steps: (0..towers).map(|_| AtomicUsize::new(0)).collect(),
            deadline,
            spins: if spin { SPINS } else { 0 },
        }
    }

    fn round(&self) -> MutexGuard<'_, Round> {
        self.round.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resets the state before all towers start.
    pub(super) fn begin(&self) {
        let mut round = self.round();
        round.left.clear();
        round.left.resize(self.parts.len(), false);
        (round.until, round.cause) = (None, None);
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = 0;
        self.failed.store(false, Ordering::SeqCst);
    }

    /// Says which program the towers are about to run, for reports.
    pub(super) fn set_program(&self, origins: &Arc<Origins>) {
        let mut round = self.round();
        if !round.origins.as_ref().is_some_and(|there| Arc::ptr_eq(there, origins)) {
            round.origins = Some(origins.clone());
        }
    }

    /// Returns what the steps of the last program were lowered from.
    pub(super) fn origins(&self) -> Option<Arc<Origins>> {
        self.round().origins.clone()
    }

    /// Registers the start of a tower.
    pub(super) fn enter(&self, tower: usize) -> RunningTower<'_> {
        RunningTower { communicator: self, tower, outcome: None }
    }

    /// Records the current step of a tower.
    pub(super) fn at_step(&self, tower: usize, step: usize) {
        self.steps[tower].store(step, Ordering::Relaxed);
    }

    /// Records that a tower finished, failed or panicked. The cause is stored before the others are
    /// woken, because their errors are only consequences.
    fn left(&self, tower: usize, outcome: Option<Result<()>>) {
        let failed = !matches!(outcome, Some(Ok(())));
        let mut round = self.round();
        round.left[tower] = true;
        let mut patience = self.deadline;
        if let Some(Err(e)) = outcome {
            if e.kind() == ErrorKind::Deadline {
                patience = GRACE;
            }
            round.cause.get_or_insert(e);
        }
        // A deadline beyond the clock's range never comes.
        if let Some(until) = Instant::now().checked_add(patience) {
            round.until = Some(round.until.map_or(until, |earlier| earlier.min(until)));
        }
        drop(round);
        if failed {
            self.fail();
        }
    }

    /// Returns the error of the first tower that failed. Called after all towers have finished.
    pub(super) fn end(&self) -> Result<()> {
        let mut round = self.round();
        round.until = None;
        round.cause.take().map_or(Ok(()), Err)
    }

    /// Returns the current step of each tower.
    pub(super) fn steps(&self) -> Vec<usize> {
        self.steps.iter().map(|step| step.load(Ordering::Relaxed)).collect()
    }

    /// Returns the towers that have not finished, with their current steps.
    pub(super) fn running(&self) -> Vec<(usize, usize)> {
        running(&self.round(), self.steps())
    }

    /// Returns the towers that have not finished, if the deadline has passed `since` the last
    /// progress of any of them.
    pub(super) fn stuck(&self, since: Instant) -> Option<Overdue> {
        // If one tower waits for another, its error comes first: it says what it waits for.
        if since.elapsed() <= self.deadline.saturating_add(3 * GRACE) {
            return None;
        }
        let towers = self.running();
        let names = towers.iter().map(|(t, _)| t.to_string()).collect::<Vec<_>>().join(" and ");
        let why = format!("tower {names} made no progress for {:.0} s", self.deadline.as_secs_f64());
        let error = Error::new(ErrorKind::Deadline, why);
        (!towers.is_empty()).then_some(Overdue { error, towers })
    }

    /// Returns the towers that should have finished by now, if there are any.
    pub(super) fn overdue(&self) -> Option<Overdue> {
        let round = self.round();
        round.until.filter(|until| Instant::now() > *until)?;
        let towers = running(&round, self.steps());
        let names = towers.iter().map(|(t, _)| t.to_string()).collect::<Vec<_>>().join(" and ");
        let late = || {
            let waited = self.deadline.as_secs_f64();
            let why = format!("tower {names} did not finish within {waited:.0} s of the others");
            Error::new(ErrorKind::Deadline, why)
        };
        let error = round.cause.clone().unwrap_or_else(late);
        (!towers.is_empty()).then_some(Overdue { error, towers })
    }

    /// Ends every wait with an error, because a tower failed.
    fn fail(&self) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        self.failed.store(true, Ordering::SeqCst);
        drop(waiting);
        self.all_here.notify_all();
    }

    /// Waits until all towers arrive. `what` names the barrier in errors.
    fn barrier(&self, tower: usize, what: &str) -> Result<()> {
        let begun = Instant::now();
        let gave_up = || {
            let why = format!("tower {tower} gave up at {what}: another tower failed");
            Err(Error::new(ErrorKind::Engine, why))
        };
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if self.failed.load(Ordering::SeqCst) {
            return gave_up();
        }
        let met = self.met.load(Ordering::SeqCst);
        *waiting += 1;
        if *waiting == self.parts.len() {
            *waiting = 0;
            self.met.store(met + 1, Ordering::SeqCst);
            drop(waiting);
            self.all_here.notify_all();
            return Ok(());
        }
        drop(waiting);
        let here = || self.met.load(Ordering::SeqCst) != met || self.failed.load(Ordering::SeqCst);
        let mut spun = 0;
        while spun < self.spins && !here() {
            spin_loop();
            spun += 1;
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while !here() {
            let Some(left) = self.deadline.checked_sub(begun.elapsed()) else {
                let why = format!(
                    "tower {tower} waited {:.0} s at {what} for the others",
                    self.deadline.as_secs_f64()
                );
                return Err(Error::new(ErrorKind::Deadline, why).note("another tower is stuck or far behind"));
            };
            waiting = self.all_here.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        match self.met.load(Ordering::SeqCst) != met {
            true => Ok(()),
            false => gave_up(),
        }
    }

    /// Writes the sum of all towers' `input` to every tower's `output`, added in the order of
    /// [`SumTree`], so that all get the same bits.
    ///
    /// # Safety
    /// `input` and `output` must be valid for `len` elements of `dtype` (f32 or f64), the same
    /// number in all towers, and may be the same memory; no other thread may access them during the
    /// call.
    pub(super) unsafe fn all_reduce(
        &self,
        tower: usize,
        what: &str,
        dtype: DType,
        input: *const u8,
        output: *mut u8,
        len: usize,
    ) -> Result<()> {
        self.parts[tower].0.store(input.cast_mut(), Ordering::Relaxed);
        self.parts[tower].1.store(output, Ordering::Relaxed);
        self.barrier(tower, what)?;
        let towers = self.parts.len();
        let mine = len * tower / towers..len * (tower + 1) / towers;
        // SAFETY: all towers have stored their pointers, because the barrier returned `Ok`, and
        // those are valid for `len` elements each, as the caller guarantees. Only this tower writes
        // this range of elements.
        unsafe {
            match dtype {
                DType::F64 => self.add::<f64>(mine),
                _ => self.add::<f32>(mine),
            }
        }
        // No tower continues before all have added, because the inputs are needed until then.
        self.barrier(tower, what)
    }

    /// Divides `len` elements among the towers, and calls `add` with each tower's share and the
    /// summands of all towers. No tower returns before all shares are done.
    ///
    /// # Safety
    /// `input` must be valid for reading `len` elements, the same number in all towers; no other
    /// thread may write them during the call.
    pub(super) unsafe fn share(
        &self,
        tower: usize,
        what: &str,
        input: *const u8,
        len: usize,
        add: &AddShare<'_>,
    ) -> Result<()> {
        let towers = self.parts.len();
        if towers == 1 {
            add(0..len, &|_| input);
            return Ok(());
        }
        self.parts[tower].0.store(input.cast_mut(), Ordering::Relaxed);
        self.barrier(tower, what)?;
        let summand = |tower: usize| self.parts[tower].0.load(Ordering::Relaxed).cast_const();
        add(len * tower / towers..len * (tower + 1) / towers, &summand);
        self.barrier(tower, what)
    }

    /// Adds up a range of elements.
    ///
    /// # Safety
    /// The range must be inside the elements of type `T` that all towers' pointers are valid for,
    /// and no other thread may access it.
    unsafe fn add<T: Copy + Default + std::ops::Add<Output = T>>(&self, mine: std::ops::Range<usize>) {
        let at = |p: &AtomicPtr<u8>| p.load(Ordering::Relaxed).cast::<T>().wrapping_add(mine.start);
        let write = |first: usize, sums: &[T]| {
            for (_, output) in &self.parts {
                // SAFETY: guaranteed by the caller.
                unsafe { std::ptr::copy_nonoverlapping(sums.as_ptr(), at(output).add(first), sums.len()) };
            }
        };
        // SAFETY: guaranteed by the caller; an input and an output may be the same memory, since all
        // inputs of a tile are read before its sums are written.
        unsafe { self.tree.sum(mine.len(), |tower| at(&self.parts[tower].0).cast_const(), |x| x, write) };
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_get_the_same_sum() {
        let communicator = Communicator::new(3, Duration::from_secs(10), false);
        let mut parts: Vec<Vec<f32>> =
            (0..3).map(|t| (0..5000).map(|i| (i * (t + 1)) as f32).collect()).collect();
        std::thread::scope(|s| {
            for (t, part) in parts.iter_mut().enumerate() {
                let communicator = &communicator;
                s.spawn(move || {
                    for _ in 0..2 {
                        let p = part.as_mut_ptr().cast::<u8>();
                        // SAFETY: each tower brings its own vector of 5000 numbers, in place.
                        unsafe { communicator.all_reduce(t, "sum", DType::F32, p, p, 5000) }.unwrap();
                    }
                });
            }
        });
        let want: Vec<f32> = (0..5000).map(|i| (i * 18) as f32).collect();
        assert!(parts.iter().all(|p| *p == want));
    }

    #[test]
    fn a_tower_that_never_arrives_is_an_error() {
        let communicator = Communicator::new(2, Duration::from_millis(50), false);
        let e = communicator.barrier(1, "gradients/fc0/W").unwrap_err();
        assert!(e.message().starts_with("tower 1 waited 0 s at gradients/fc0/W"), "{e}");
    }

    #[test]
    fn a_failure_ends_all_waits() {
        let communicator = Communicator::new(2, Duration::from_secs(100), true);
        std::thread::scope(|s| {
            let waiter = s.spawn(|| communicator.barrier(0, "sum"));
            std::thread::sleep(Duration::from_millis(20));
            communicator.fail();
            // A tower that arrives later does not wait, either.
            assert!(communicator.barrier(1, "sum").unwrap_err().message().contains("another tower failed"));
            assert!(waiter.join().unwrap().unwrap_err().message().contains("another tower failed"));
        });
    }

    /// The error reports the first cause and the missing towers.
    #[test]
    fn towers_that_do_not_leave_are_overdue() {
        let communicator = Communicator::new(3, Duration::from_millis(50), false);
        communicator.begin();
        let (mut first, _stuck, mut third) =
            (communicator.enter(0), communicator.enter(1), communicator.enter(2));
        communicator.at_step(1, 7);
        assert!(communicator.overdue().is_none());
        first.outcome = Some(communicator.barrier(0, "sum"));
        drop(first);
        third.outcome = Some(communicator.barrier(2, "sum"));
        drop(third);
        std::thread::sleep(2 * GRACE);
        let Overdue { error, towers } = communicator.overdue().unwrap();
        assert!(error.message().starts_with("tower 0 waited 0 s at sum"), "{error}");
        assert_eq!(towers, [(1, 7)]);
    }

    #[test]
    fn a_tower_that_stays_after_all_others_are_done_is_overdue_too() {
        let communicator = Communicator::new(2, Duration::from_millis(50), false);
        communicator.begin();
        let (mut first, second) = (communicator.enter(0), communicator.enter(1));
        first.outcome = Some(Ok(()));
        drop(first);
        std::thread::sleep(Duration::from_millis(60));
        let late = communicator.overdue().unwrap().error;
        assert!(late.message().starts_with("tower 1 did not finish within 0 s"), "{late}");
        drop(second);
        assert!(communicator.overdue().is_none());
        communicator.begin();
        assert!(communicator.overdue().is_none() && communicator.end().is_ok());
    }
}

/// loom models. A wait never times out in loom, so a lost wake-up is a deadlock.
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::Arc;
    use loom::cell::UnsafeCell;

    fn communicator(towers: usize, spin: bool) -> Arc<Communicator> {
        let communicator = Communicator::new(towers, Duration::from_secs(3600), spin);
        communicator.begin();
        Arc::new(communicator)
    }

    /// A number per tower, without atomics, as gradients are. loom reports a read that does not
    /// happen after the write.
    struct Gradients(Vec<UnsafeCell<usize>>);

    // SAFETY: loom checks every access.
    unsafe impl Sync for Gradients {}
    // SAFETY: as above.
    unsafe impl Send for Gradients {}

    impl Gradients {
        fn add(&self, tower: usize, n: usize) {
            // SAFETY: loom reports a concurrent access.
            self.0[tower].with_mut(|g| unsafe { *g += n });
        }

        fn sum(&self) -> usize {
            // SAFETY: loom reports a concurrent access.
            self.0.iter().map(|g| g.with(|g| unsafe { *g })).sum()
        }
    }

    /// Runs `tower(i)` for every tower, the last one on this thread, and returns what each returns.
    fn towers<T: 'static>(count: usize, tower: impl Fn(usize) -> T + Clone + 'static) -> Vec<T> {
        let others: Vec<_> = (0..count - 1)
            .map(|i| {
                let tower = tower.clone();
                loom::thread::spawn(move || tower(i))
            })
            .collect();
        let last = tower(count - 1);
        others.into_iter().map(|t| t.join().unwrap()).chain([last]).collect()
    }

    /// A barrier releases all towers, and what each wrote before it is visible to all after it.
    fn barriers_in_a_row(count: usize, spin: bool) {
        let communicator = communicator(count, spin);
        let gradients = Arc::new(Gradients((0..count).map(|_| UnsafeCell::new(0)).collect()));
        towers(count, move |tower| {
            gradients.add(tower, 1);
            communicator.barrier(tower, "before").unwrap();
            assert_eq!(gradients.sum(), count);
            communicator.barrier(tower, "after").unwrap();
            gradients.add(tower, 1);
        });
    }

    #[test]
    fn two_towers_meet_twice() {
        loom::model(|| barriers_in_a_row(2, false));
    }

    #[test]
    fn two_towers_that_spin_meet_twice() {
        loom::model(|| barriers_in_a_row(2, true));
    }

    #[test]
    fn three_towers_meet_twice() {
        let mut model = loom::model::Builder::new();
        // Three threads have too many schedules with more preemptions.
        model.preemption_bound = Some(2);
        model.check(|| barriers_in_a_row(3, false));
    }

    /// The whole all-reduce, in place: no sum is torn, and both towers get it.
    #[test]
    fn both_towers_get_the_sum() {
        loom::model(|| {
            let communicator = communicator(2, false);
            let sums = towers(2, move |tower| {
                let mut part = [(tower + 1) as f32, 10.0 * (tower + 1) as f32];
                let p = part.as_mut_ptr().cast::<u8>();
                // SAFETY: each tower brings its own two numbers, and no other thread has them.
                unsafe { communicator.all_reduce(tower, "sum", DType::F32, p, p, 2) }.unwrap();
                part
            });
            assert_eq!(sums, [[3.0, 30.0]; 2]);
        });
    }

    /// A tower that fails before the barrier releases the others, and its error is the result. With
    /// two towers, no third one wakes the waiting one by failing too.
    #[test]
    fn a_failure_releases_all_others() {
        for (count, spin) in [(2, false), (2, true), (3, false), (3, true)] {
            loom::model(move || {
                let communicator = communicator(count, spin);
                let run = communicator.clone();
                let passed = towers(count, move |tower| {
                    let mut running = run.enter(tower);
                    let outcome = match tower {
                        0 => Err(Error::new(ErrorKind::NotFinite, "the cause")),
                        _ => run.barrier(tower, "sum"),
                    };
                    let passed = outcome.is_ok();
                    running.outcome = Some(outcome);
                    passed
                });
                assert!(!passed.contains(&true));
                assert!(communicator.running().is_empty());
                assert_eq!(communicator.end().unwrap_err().kind(), ErrorKind::NotFinite);
            });
        }
    }
}
