//! Runs programs on a separate thread: those of several towers, and those with custom kernels.
//!
//! The caller does not take part in a run. It waits, and detects when a tower is overdue or when no
//! tower makes progress, so it gets an error even if a tower never finishes. The thread waits for
//! all towers, forever if necessary, and owns everything that they use, so the memory of a tower
//! that hangs stays valid.

use super::all_reduce::{Communicator, Overdue};
use super::engine::CpuProgram;
use super::tower_positions::Origins;
use crate::runtime::executor::{Executable, Feed, KernelTime, Outcome, RunInfo};
use crate::runtime::value_errors::Diagnosis;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel, sync_channel};
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// Interval between checks for overdue towers.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The time without progress after which the caller logs where the towers are.
const LOG_AFTER: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce() + Send>;

/// The thread that runs towers for the caller.
#[derive(Debug)]
pub(super) struct TowerThread {
    jobs: Sender<Job>,
    lost: AtomicBool,
}

impl TowerThread {
    pub(super) fn new() -> Result<Arc<TowerThread>> {
        let (jobs, asked) = channel::<Job>();
        let work = move || asked.into_iter().for_each(|job| job());
        std::thread::Builder::new().name("tensorpack-towers".into()).spawn(work)?;
        Ok(Arc::new(TowerThread { jobs, lost: AtomicBool::new(false) }))
    }

    /// Returns whether a tower hangs, so that the memory of all towers is lost.
    pub(super) fn lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Runs `job`, whose towers synchronize through `communicator`. Returns an error if towers are
    /// overdue or make no progress. Calls `log_wait` with the step of each tower when that takes
    /// long.
    fn run_job<R: Send + 'static>(
        &self,
        communicator: &Communicator,
        log_wait: impl Fn(Vec<(usize, usize)>),
        job: impl FnOnce() -> R + Send + 'static,
    ) -> std::result::Result<R, Overdue> {
        let (answer, answered) = sync_channel(1);
        let gone = || Overdue {
            error: Error::new(ErrorKind::Engine, "the thread that runs the towers is gone"),
            towers: Vec::new(),
        };
        let job = move || {
            // The receiver is gone if the run was abandoned; ignore the send error.
            let _ = answer.send(catch_unwind(AssertUnwindSafe(job)));
        };
        self.jobs.send(Box::new(job)).map_err(|_| gone())?;
        let (mut steps, mut since, mut logged) = (communicator.steps(), Instant::now(), false);
        loop {
            match answered.recv_timeout(POLL_INTERVAL) {
                Ok(done) => return Ok(done.unwrap_or_else(|panic| resume_unwind(panic))),
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let now = communicator.steps();
            if now != steps {
                (steps, since, logged) = (now, Instant::now(), false);
            } else if since.elapsed() >= LOG_AFTER && !std::mem::replace(&mut logged, true) {
                log_wait(communicator.running());
            }
            if let Some(overdue) = communicator.overdue().or_else(|| communicator.stuck(since)) {
                self.lost.store(true, Ordering::Relaxed);
                return Err(overdue);
            }
        }
    }
}

/// A program that a [`TowerThread`] runs.
pub(super) struct WatchedProgram {
    program: Arc<CpuProgram>,
    communicator: Arc<Communicator>,
    tower_thread: Arc<TowerThread>,
    /// The origins of the steps of each tower, for errors.
    steps: Arc<Origins>,
}

impl WatchedProgram {
    pub(super) fn new(
        program: CpuProgram,
        communicator: Arc<Communicator>,
        tower_thread: Arc<TowerThread>,
    ) -> WatchedProgram {
        WatchedProgram { steps: program.origins(), program: Arc::new(program), communicator, tower_thread }
    }

    /// Runs `job` on the tower thread with the program and copies of the feeds.
    fn run_job<R: Send + 'static>(
        &self,
        feeds: &[Feed<'_>],
        job: impl FnOnce(&CpuProgram, &[Feed<'_>]) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        let program = self.program.clone();
        // A copy shares its elements. They must outlive a tower that is abandoned.
        let feeds: Vec<HostTensor> = feeds.iter().map(|&feed| feed.clone()).collect();
        let job = move || job(&program, &feeds.iter().collect::<Vec<_>>());
        self.tower_thread
            .run_job(&self.communicator, |towers| self.log_wait(towers), job)
            .unwrap_or_else(|overdue| Err(self.explain(overdue)))
    }

    fn log_wait(&self, towers: Vec<(usize, usize)>) {
        for (tower, step) in towers {
            if let Some(at) = self.steps[tower].get(step) {
                let seconds = LOG_AFTER.as_secs();
                log::warn!("tower {tower} is in {}, created at {}, for {seconds} s so far", at.name, at.site);
            }
        }
    }

    fn explain(&self, Overdue { error, towers }: Overdue) -> Error {
        let e = towers.into_iter().fold(error, |e, (tower, step)| match self.steps[tower].get(step) {
            Some(at) => {
                e.note(format!("tower {tower} is in {}, created at {}", at.name, at.site)).at(at.site)
            }
            None => e,
        });
        e.note("the tower was abandoned: this session cannot continue; the last checkpoint is valid")
    }

    /// [`CpuProgram::find_bad`].
    pub(super) fn find_bad(
        &self,
        run: &RunInfo,
        feeds: &[Feed<'_>],
        diagnosis: Diagnosis,
    ) -> Result<Option<Error>> {
        let run = *run;
        self.run_job(feeds, move |program, feeds| program.find_bad(&run, feeds, &diagnosis))
    }
}

impl Executable for WatchedProgram {
    fn run(&mut self, run: &RunInfo, feeds: &[Feed<'_>], outputs: &mut Vec<HostTensor>) -> Result<Outcome> {
        let (run, mut made) = (*run, std::mem::take(outputs));
        let (made, outcome) = self.run_job(feeds, move |program, feeds| {
            let outcome = program.run(&run, feeds, &mut made);
            Ok((made, outcome))
        })?;
        *outputs = made;
        outcome
    }

    fn checks_feeds(&self) -> bool {
        self.program.communicates()
    }

    fn communicates(&self) -> bool {
        self.program.communicates()
    }

    fn plan_text(&self) -> String {
        self.program.plan_text()
    }

    fn planned_bytes(&self) -> Option<usize> {
        self.program.planned_bytes()
    }

    fn profile(&self) -> Vec<KernelTime> {
        self.program.profile()
    }
}
