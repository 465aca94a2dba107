//! A program of a session: one launch for all its towers or, where they have nothing to do with each other, one each.

use super::launch::Launch;
use super::module::Purpose;
use super::spmd::{SpmdProgram, join};
use super::staged::Staged;
use super::target::Target;
use super::variables::Variables;
use crate::kir::{Kernel, Program};
use crate::runtime::Lowered;
use crate::runtime::executor::{Executable, Feed, Outcome, Pending, RunInfo, check_feeds};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tensorpack_pjrt as pjrt;
use tensorpack_tensor::{DType, HostTensor, Result};

/// A compiled program.
pub(super) struct XlaProgram {
    pub(super) launches: Arc<Vec<Launch>>,
    fetches: Vec<Place>,
    target: Target,
    variables: Arc<Mutex<Variables>>,
    staged: Arc<Staged>,
    /// Type and sizes of everything that is fed.
    feeds: Vec<(DType, Vec<usize>)>,
}

/// Where a value that the caller gets comes from.
#[derive(Clone, Copy, Debug)]
struct Place {
    launch: usize,
    /// Which of the launch's towers.
    tower: usize,
    /// Which of its fetches.
    at: usize,
}

/// A run that was started: what it will say, and what it will give.
struct Started {
    launches: Arc<Vec<Launch>>,
    target: Target,
    variables: Arc<Mutex<Variables>>,
    /// By launch, the report of each tower.
    reports: Vec<Vec<pjrt::Download>>,
    fetches: Vec<pjrt::Download>,
}

pub(super) fn lock(variables: &Mutex<Variables>) -> MutexGuard<'_, Variables> {
    variables.lock().unwrap_or_else(PoisonError::into_inner)
}

impl XlaProgram {
    pub(super) fn new(
        lowered: &Lowered,
        purpose: Purpose,
        target: &Target,
        variables: &Arc<Mutex<Variables>>,
        staged: &Arc<Staged>,
    ) -> Result<XlaProgram> {
        lock(variables).spread(target, lowered.programs().len())?;
        let joined = join(lowered);
        let (joints, fetches) = match joined {
            Ok(spmd) => {
                let place = |&(tower, at): &(usize, usize)| Place { launch: 0, tower, at };
                let fetches = spmd.fetches.iter().map(place).collect();
                (vec![spmd], fetches)
            }
            Err(_) if lowered.programs().iter().all(stands_alone) => {
                let place = |&(launch, at): &(usize, usize)| Place { launch, tower: 0, at };
                let joints = lowered.programs().iter().map(|p| SpmdProgram::single(p, Vec::new())).collect();
                (joints, lowered.fetches().iter().map(place).collect())
            }
            Err(e) => return Err(e),
        };
        let launch = |(first, spmd): (usize, &SpmdProgram)| Launch::new(spmd, purpose, target, first);
        let launches = Arc::new(joints.iter().enumerate().map(launch).collect::<Result<_>>()?);
        let (target, variables, staged) = (target.clone(), variables.clone(), staged.clone());
        let feeds = lowered.feeds().to_vec();
        Ok(XlaProgram { launches, fetches, target, variables, staged, feeds })
    }

    /// Starts all launches: by launch and tower, what will be there.
    pub(super) fn launch(&self, run: &RunInfo, feeds: &[Feed<'_>]) -> Result<Vec<Vec<Vec<pjrt::Buffer>>>> {
        check_feeds(&self.feeds, feeds)?;
        let mut variables = lock(&self.variables);
        let start = |launch: &Launch| launch.start(run, feeds, &mut variables, &self.staged, &self.target);
        let started = self.launches.iter().map(start).collect();
        self.staged.taken(feeds);
        started
    }

    /// Starts a run, and all copies of what it makes.
    fn begin(&self, run: &RunInfo, feeds: &[Feed<'_>]) -> Result<Started> {
        let made = self.launch(run, feeds)?;
        let report = |(launch, towers): (&Launch, &Vec<Vec<pjrt::Buffer>>)| {
            towers.iter().map(|made| made[launch.module.fetches].start_download()).collect::<Result<_>>()
        };
        let fetch = |p: &Place| made[p.launch][p.tower][p.at].start_download();
        Ok(Started {
            reports: self.launches.iter().zip(&made).map(report).collect::<Result<_>>()?,
            fetches: self.fetches.iter().map(fetch).collect::<Result<_>>()?,
            launches: self.launches.clone(),
            target: self.target.clone(),
            variables: self.variables.clone(),
        })
    }
}

impl Started {
    /// Waits for what all towers say: whether everything was finite.
    fn judge(&mut self) -> Result<bool> {
        let wait = self.target.options.deadline;
        let mut finite = true;
        for (launch, reports) in self.launches.iter().zip(self.reports.drain(..)) {
            for report in reports {
                finite &= launch.judge(&report.wait(wait).map_err(|e| launch.explain(e))?)?;
            }
        }
        Ok(finite)
    }
}

impl Pending for Started {
    fn collect(mut self: Box<Self>, outputs: &mut Vec<HostTensor>) -> Result<Outcome> {
        let judged = self.judge();
        if !matches!(judged, Ok(true)) {
            let reset = lock(&self.variables).reset_ok(&self.target);
            judged?;
            return reset.map(|()| Outcome::NotFinite);
        }
        outputs.clear();
        for fetch in self.fetches {
            outputs.push(fetch.wait(self.target.options.deadline)?);
        }
        Ok(Outcome::Committed { behind: 0 })
    }
}

/// Whether a tower's program neither meets others nor changes a variable.
fn stands_alone(program: &Program) -> bool {
    let meets = program.kernels.iter().any(|n| matches!(n.kernel, Kernel::AllReduce { .. }));
    !meets && program.updates.is_empty()
}

impl Executable for XlaProgram {
    fn run(&mut self, run: &RunInfo, feeds: &[Feed<'_>], outputs: &mut Vec<HostTensor>) -> Result<Outcome> {
        Box::new(self.begin(run, feeds)?).collect(outputs)
    }

    fn start(&mut self, run: &RunInfo, feeds: &[Feed<'_>]) -> Result<Box<dyn Pending>> {
        Ok(Box::new(self.begin(run, feeds)?))
    }

    /// On the device: the host takes as long to look at a batch of images as a GPU to train on it.
    fn checks_feeds(&self) -> bool {
        true
    }

    fn plan_text(&self) -> String {
        self.launches.iter().map(Launch::text).collect()
    }
}
