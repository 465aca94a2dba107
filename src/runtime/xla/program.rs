//! A program of a session: one SPMD launch for all towers; one launch per tower if they are
//! independent; or one launch per tower and a joint one if they differ.

use super::launch::{Launch, PassedOn};
use super::module::Purpose;
use super::spmd::{SpmdProgram, merge_towers};
use super::staging::StagedFeeds;
use super::target::Target;
use super::unlike_towers::{UnlikeTowers, split_towers};
use super::variables::Variables;
use crate::kir::{BufferKind, Kernel, KernelNode, Program};
use crate::runtime::Lowered;
use crate::runtime::executor::{Executable, Feed, Outcome, Pending, RunInfo, check_feeds};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tensorpack_pjrt as pjrt;
use tensorpack_tensor::{DType, HostTensor, Result};

/// A compiled program.
pub(super) struct XlaProgram {
    pub(super) launches: Arc<Vec<Launch>>,
    /// What the last launch is given by others, if it is the joint program of unlike towers.
    joint: Option<JointInputs>,
    fetches: Vec<FetchSource>,
    target: Target,
    variables: Arc<Mutex<Variables>>,
    staged: Arc<StagedFeeds>,
    /// Dtype and sizes of each feed.
    feeds: Vec<(DType, Vec<usize>)>,
}

/// The origins of what the joint program of unlike towers is given.
struct JointInputs {
    /// The launches of the towers.
    towers: Range<usize>,
    /// For each value, the tower and the index among those that it passes on.
    passed: Vec<(usize, usize)>,
}

/// The origin of a fetched value.
#[derive(Clone, Copy, Debug)]
struct FetchSource {
    launch: usize,
    /// The tower within the launch.
    tower: usize,
    /// The index of the fetch in the tower.
    index: usize,
}

/// A launched run, with the downloads of its reports and fetches.
struct PendingRun {
    launches: Arc<Vec<Launch>>,
    target: Target,
    variables: Arc<Mutex<Variables>>,
    /// The report of each tower of each launch.
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
        staged: &Arc<StagedFeeds>,
    ) -> Result<XlaProgram> {
        lock(variables).replicate(target, lowered.programs().len())?;
        let (programs, fetches) = match merge_towers(lowered) {
            Ok(spmd) => {
                let towers = spmd.towers.len();
                let spmd = match target.replicas(towers) {
                    // A search is each process's own, because only some may have found a value that is
                    // not finite.
                    Some(replicas)
                        if purpose == Purpose::Run
                            && !lowered.programs().iter().all(is_same_on_all_processes) =>
                    {
                        spmd.on_all_processes(replicas)
                    }
                    _ => spmd,
                };
                let source = |&(tower, at): &(usize, usize)| FetchSource { launch: 0, tower, index: at };
                let fetches = spmd.fetches.iter().map(source).collect();
                (vec![spmd], fetches)
            }
            Err(_) if lowered.programs().iter().all(is_independent) => {
                let source = |&(launch, at): &(usize, usize)| FetchSource { launch, tower: 0, index: at };
                let programs =
                    lowered.programs().iter().map(|p| SpmdProgram::single(p, Vec::new())).collect();
                (programs, lowered.fetches().iter().map(source).collect())
            }
            Err(_) if target.replicas(1).is_none() => {
                let unlike = split_towers(lowered)?;
                return XlaProgram::of_unlike_towers(lowered, &unlike, purpose, target, variables, staged);
            }
            Err(e) => return Err(e),
        };
        let launch = |(first, spmd): (usize, &SpmdProgram)| Launch::new(spmd, purpose, target, first);
        let launches = Arc::new(programs.iter().enumerate().map(launch).collect::<Result<_>>()?);
        let (target, variables, staged) = (target.clone(), variables.clone(), staged.clone());
        let feeds = lowered.feeds().to_vec();
        Ok(XlaProgram { launches, joint: None, fetches, target, variables, staged, feeds })
    }

    /// Compiles the programs of unlike towers.
    fn of_unlike_towers(
        lowered: &Lowered,
        unlike: &UnlikeTowers,
        purpose: Purpose,
        target: &Target,
        variables: &Arc<Mutex<Variables>>,
        staged: &Arc<StagedFeeds>,
    ) -> Result<XlaProgram> {
        let UnlikeTowers { towers, joint, passed, fetches } = unlike;
        let count = towers.len();
        let launches = |purpose: Purpose| {
            let launch = |(first, spmd): (usize, &SpmdProgram)| Launch::new(spmd, purpose, target, first);
            towers.iter().enumerate().map(launch).collect::<Result<Vec<Launch>>>()
        };
        let mut all = match purpose {
            Purpose::Run => Vec::new(),
            // A search tests the results of the towers first. A module that searches passes nothing on,
            // so the towers run once more for the joint one.
            Purpose::FindNonFinite => launches(purpose)?,
        };
        let first = all.len();
        all.extend(launches(Purpose::Run)?);
        all.push(Launch::new(joint, purpose, target, 0)?);
        let source = |&(launch, index): &(usize, usize)| FetchSource { launch, tower: 0, index };
        Ok(XlaProgram {
            launches: Arc::new(all),
            joint: Some(JointInputs { towers: first..first + count, passed: passed.clone() }),
            fetches: fetches.iter().map(source).collect(),
            target: target.clone(),
            variables: variables.clone(),
            staged: staged.clone(),
            feeds: lowered.feeds().to_vec(),
        })
    }

    /// Starts all launches. Returns the outputs of each tower of each launch.
    pub(super) fn launch(&self, run: &RunInfo, feeds: &[Feed<'_>]) -> Result<Vec<Vec<Vec<pjrt::Buffer>>>> {
        check_feeds(&self.feeds, feeds)?;
        let mut variables = lock(&self.variables);
        let mut start = |launch: &Launch, passed: &PassedOn| {
            launch.start(run, feeds, passed, &mut variables, &self.staged, &self.target)
        };
        let (joint, others) = match &self.joint {
            None => (None, &self.launches[..]),
            Some(inputs) => match self.launches.split_last() {
                Some((last, others)) => (Some((inputs, last)), others),
                None => (None, &self.launches[..]),
            },
        };
        let started = others.iter().map(|launch| start(launch, &PassedOn::default()));
        let started = started.collect::<Result<Vec<_>>>().and_then(|mut started| {
            if let Some((inputs, last)) = joint {
                let passed = inputs.collect(&mut started, &self.launches, &self.target)?;
                started.push(start(last, &passed)?);
            }
            Ok(started)
        });
        self.staged.release(feeds);
        started
    }

    /// Starts a run and the downloads of its results.
    fn begin(&self, run: &RunInfo, feeds: &[Feed<'_>]) -> Result<PendingRun> {
        let outputs = self.launch(run, feeds)?;
        let report = |(launch, towers): (&Launch, &Vec<Vec<pjrt::Buffer>>)| {
            towers
                .iter()
                .map(|outputs| outputs[launch.module.fetches].start_download())
                .collect::<Result<_>>()
        };
        let fetch = |p: &FetchSource| outputs[p.launch][p.tower][p.index].start_download();
        Ok(PendingRun {
            reports: self.launches.iter().zip(&outputs).map(report).collect::<Result<_>>()?,
            fetches: self.fetches.iter().map(fetch).collect::<Result<_>>()?,
            launches: self.launches.clone(),
            target: self.target.clone(),
            variables: self.variables.clone(),
        })
    }
}

impl JointInputs {
    /// Takes what the towers pass on from their outputs, and copies it to the device of the first.
    fn collect(
        &self,
        started: &mut [Vec<Vec<pjrt::Buffer>>],
        launches: &[Launch],
        target: &Target,
    ) -> Result<PassedOn> {
        let mut values: Vec<Vec<Arc<pjrt::Buffer>>> = Vec::new();
        let mut passed = PassedOn::default();
        for (tower, at) in self.towers.clone().enumerate() {
            // The fetches and the report remain.
            let on_first = |buffer: pjrt::Buffer| match tower {
                0 => Ok(buffer),
                _ => buffer.copy_to(target.device(0)?),
            };
            let own = started[at][0].split_off(launches[at].module.fetches + 1);
            let mut own = own.into_iter().map(|b| on_first(b).map(Arc::new)).collect::<Result<Vec<_>>>()?;
            passed.ok.extend(own.pop());
            values.push(own);
        }
        passed.values = self.passed.iter().map(|&(tower, i)| values[tower][i].clone()).collect();
        Ok(passed)
    }
}

impl PendingRun {
    /// Waits for the reports of all towers. Returns whether all checked values were finite.
    fn wait_for_reports(&mut self) -> Result<bool> {
        let mut finite = true;
        for (launch, reports) in self.launches.iter().zip(self.reports.drain(..)) {
            for report in reports {
                let report = self.target.wait(report).map_err(|e| launch.explain(e))?;
                finite &= launch.check_report(&report)?;
            }
        }
        Ok(finite)
    }
}

impl Pending for PendingRun {
    fn collect(mut self: Box<Self>, outputs: &mut Vec<HostTensor>) -> Result<Outcome> {
        let finite = self.wait_for_reports();
        if !matches!(finite, Ok(true)) {
            let reset = lock(&self.variables).reset_ok(&self.target);
            finite?;
            return reset.map(|()| Outcome::NotFinite);
        }
        outputs.clear();
        for fetch in self.fetches {
            outputs.push(self.target.wait(fetch)?);
        }
        Ok(Outcome::Committed { staleness: 0 })
    }
}

/// Returns whether the program of a tower has neither collectives nor updates.
fn is_independent(program: &Program) -> bool {
    !has_collectives(program) && program.updates.is_empty()
}

fn has_collectives(program: &Program) -> bool {
    program.kernels.iter().any(|n| matches!(n.kernel, Kernel::AllReduce { .. }))
}

/// Returns whether each process can run the program by itself: it changes nothing, or changes
/// variables in the same way on all processes, because it reads nothing that differs between them.
fn is_same_on_all_processes(program: &Program) -> bool {
    let own = |n: &KernelNode| matches!(n.kernel, Kernel::Random { continued: true, .. });
    let feeds = program.buffers.iter().any(|buffer| matches!(buffer.kind, BufferKind::Feed(_)));
    let varies = feeds || program.kernels.iter().any(own);
    is_independent(program) || !has_collectives(program) && !varies
}

impl Executable for XlaProgram {
    fn run(&mut self, run: &RunInfo, feeds: &[Feed<'_>], outputs: &mut Vec<HostTensor>) -> Result<Outcome> {
        Box::new(self.begin(run, feeds)?).collect(outputs)
    }

    fn start(&mut self, run: &RunInfo, feeds: &[Feed<'_>]) -> Result<Box<dyn Pending>> {
        Ok(Box::new(self.begin(run, feeds)?))
    }

    /// Feeds are checked on the device: on the host this would take as long as a GPU needs for the
    /// whole step.
    fn checks_feeds(&self) -> bool {
        true
    }

    fn plan_text(&self) -> String {
        self.launches.iter().map(Launch::plan_text).collect()
    }
}
