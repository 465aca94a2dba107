//! The threads of asynchronous training: one per tower, and the trainer's thread, which distributes
//! batches and runs callbacks with the first tower.

use super::step::{Iteration, Job, StepCx};
use crate::graph::Fetch;
use crate::runtime::{KernelProgress, Session, StepProgram, Turns};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The iteration of asynchronous training. A step is a step of the first tower. The others run
/// concurrently, the same number of steps per epoch, and update no variables between steps.
pub(super) struct AsyncTowers {
    step: Fetch,
    count: usize,
    /// The threads, started at the first step.
    workers: Option<AsyncWorkers>,
}

impl AsyncTowers {
    pub(super) fn new(step: Fetch, count: usize) -> AsyncTowers {
        AsyncTowers { step, count, workers: None }
    }
}

impl Iteration for AsyncTowers {
    fn run_step(&mut self, cx: &mut StepCx<'_>) -> Result<()> {
        let begins = self.workers.is_none() || cx.local_step == 0;
        let workers = match &mut self.workers {
            Some(workers) => workers,
            None => self.workers.insert(AsyncWorkers::start(&cx.state.session, &self.step, self.count)?),
        };
        if begins {
            workers.begin_epoch(cx);
        }
        workers.turns.release();
        let ran = workers.step(cx);
        workers.turns.hold();
        ran
    }
}

/// The trainer's handles to the threads of all towers.
struct AsyncWorkers {
    step: Fetch,
    towers: Vec<Tower>,
    done: Receiver<Done>,
    turns: Turns,
    deadline: Duration,
    /// The run index at the start: run `i` of tower `t` of `n` draws the random numbers of run
    /// `first_run + i * n + t`.
    first_run: u64,
    /// The last result of the first tower.
    first: Option<(StepProgram, Result<()>)>,
    staleness: Staleness,
}

struct Tower {
    jobs: Sender<(u64, Job)>,
    at: KernelProgress,
    /// Runs sent to this tower so far.
    runs: u64,
    /// Runs still to send in this epoch.
    left: u64,
    busy: bool,
    /// The program, except while the tower runs it. The first tower's programs come with its jobs.
    program: Option<StepProgram>,
}

/// The result of a tower's run.
struct Done {
    tower: usize,
    program: StepProgram,
    /// The number of updates by other towers in between.
    ran: Result<u64>,
}

impl AsyncWorkers {
    fn start(session: &Session, step: &Fetch, count: usize) -> Result<AsyncWorkers> {
        let (send, done) = channel();
        let tower = |i: usize| {
            let fork = session.fork(i, count)?;
            let at = fork.at().clone();
            let (jobs, given) = channel();
            let send = send.clone();
            // Never joined: a stuck thread must not block the error that reports it.
            std::thread::Builder::new()
                .name(format!("tower {i}"))
                .spawn(move || work(i, &fork, &given, &send))?;
            Ok(Tower { jobs, at, runs: 0, left: 0, busy: false, program: Some(StepProgram::new(&[step])) })
        };
        Ok(AsyncWorkers {
            step: step.clone(),
            towers: (0..count).map(tower).collect::<Result<_>>()?,
            done,
            turns: session.turns().clone(),
            deadline: session.deadline(),
            first_run: session.run_index()?,
            first: None,
            staleness: Staleness::default(),
        })
    }

    /// Assigns every tower the same number of steps.
    fn begin_epoch(&mut self, cx: &mut StepCx<'_>) {
        if let Some(summary) = cx.summary {
            summary.groups = self.towers.len();
        }
        let steps = cx.steps_per_epoch - cx.local_step.max(0) as u64;
        self.towers[1..].iter_mut().for_each(|tower| tower.left = steps);
        self.staleness = Staleness::default();
    }

    /// Runs a step of the first tower while the others continue. At the end of an epoch, waits for
    /// all towers.
    fn step(&mut self, cx: &mut StepCx<'_>) -> Result<()> {
        for tower in 1..self.towers.len() {
            self.send_batch(cx, tower)?;
        }
        let step = self.step.clone();
        cx.run_by(&step, |cx, job| {
            self.send(0, job)?;
            self.wait(cx, |workers| workers.first.is_some())?;
            self.first.take().ok_or_else(gone)
        })?;
        let runs = self.towers[0].runs * self.towers.len() as u64;
        cx.state.session.set_run_index(self.first_run + runs)?;
        if cx.last_of_epoch() {
            self.wait(cx, |workers| workers.towers.iter().all(|t| !t.busy))?;
            cx.state.monitors.put_timing("staleness/mean", self.staleness.mean());
            cx.state.monitors.put_timing("staleness/max", self.staleness.most as f64);
        }
        Ok(())
    }

    /// Sends a tower its next batch if it is idle and has steps left in this epoch.
    fn send_batch(&mut self, cx: &mut StepCx<'_>, tower: usize) -> Result<()> {
        let Tower { busy, left, program, .. } = &mut self.towers[tower];
        if *busy || *left == 0 || cx.state.interrupt.signal().is_some() {
            return Ok(());
        }
        let Some(program) = program.take() else { return Ok(()) };
        *left -= 1;
        match cx.parallel_job(&self.step, program) {
            Ok(job) => self.send(tower, job),
            // The step of the first tower continues; the main loop handles the interrupt.
            Err(e) if e.kind() == ErrorKind::Interrupted => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn send(&mut self, tower: usize, job: Job) -> Result<()> {
        let count = self.towers.len() as u64;
        let t = &mut self.towers[tower];
        let run = self.first_run + t.runs * count + tower as u64;
        t.runs += 1;
        t.busy = true;
        t.jobs.send((run, job)).map_err(|_| gone())
    }

    /// Receives results and sends further batches until `finished` holds.
    fn wait(&mut self, cx: &mut StepCx<'_>, finished: impl Fn(&AsyncWorkers) -> bool) -> Result<()> {
        // The deadline counts from here at the earliest: towers were paused before.
        let begun = Instant::now();
        while !finished(self) {
            let quiet = |t: &Tower| t.at.since().max(begun).elapsed();
            let busy = self.towers.iter().enumerate().filter(|(_, t)| t.busy);
            let longest = busy.map(|(i, t)| (quiet(t), i)).max().ok_or_else(gone)?;
            match self.done.recv_timeout(self.deadline.saturating_sub(longest.0)) {
                Ok(done) => self.receive(cx, done)?,
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
                Err(RecvTimeoutError::Timeout) => {
                    let tower = &self.towers[longest.1];
                    if quiet(tower) >= self.deadline {
                        let (i, seconds) = (longest.1, self.deadline.as_secs_f64());
                        let why = format!("tower {i} made no progress for {seconds:.0} s");
                        return Err(tower.at.name(Error::new(ErrorKind::Deadline, why)));
                    }
                }
            }
        }
        Ok(())
    }

    /// Handles the result of a run.
    fn receive(&mut self, cx: &mut StepCx<'_>, done: Done) -> Result<()> {
        let Done { tower, program, ran } = done;
        self.towers[tower].busy = false;
        let several = self.towers.len() > 1;
        let ran = ran.map_err(|e| if several { e.within(format!("tower {tower}")) } else { e });
        let ran = ran.map(|staleness| self.staleness.add(staleness));
        if tower == 0 {
            self.first = Some((program, ran));
            return Ok(());
        }
        self.towers[tower].program = Some(program);
        match ran {
            Ok(()) => cx.state.skipped.in_a_row = 0,
            Err(e) if e.kind() == ErrorKind::NotFinite && cx.skips() => {
                log::warn!(
                    "skipped a step of tower {tower} ({} skipped so far): {e}",
                    cx.state.skipped.total
                );
            }
            Err(e) => return Err(e),
        }
        self.send_batch(cx, tower)
    }
}

impl Drop for AsyncWorkers {
    fn drop(&mut self) {
        self.turns.end();
    }
}

/// The main function of a tower's thread: runs jobs until the channel closes.
fn work(tower: usize, session: &Session, jobs: &Receiver<(u64, Job)>, send: &Sender<Done>) {
    for (run, mut job) in jobs {
        let ran = catch_unwind(AssertUnwindSafe(|| {
            session.set_run_index(run)?;
            job.run(session)?;
            session.staleness()
        }));
        let ran = ran.unwrap_or_else(|_| Err(Error::new(ErrorKind::Engine, "the thread panicked")));
        if send.send(Done { tower, program: job.program, ran }).is_err() {
            return;
        }
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Engine, "the thread of a tower exited")
}

/// The staleness of an epoch's updates: the number of updates by others between read and update.
#[derive(Clone, Copy, Debug, Default)]
struct Staleness {
    updates: u64,
    sum: u64,
    most: u64,
}

impl Staleness {
    fn add(&mut self, staleness: u64) {
        self.updates += 1;
        self.sum += staleness;
        self.most = self.most.max(staleness);
    }

    fn mean(&self) -> f64 {
        self.sum as f64 / self.updates.max(1) as f64
    }
}
