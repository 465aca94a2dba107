//! A program of a session: one SPMD launch for all towers; one launch per tower if they are
//! independent; or one launch per tower and a joint one if they differ, or if the program is a fork's.

use super::executor::XlaExecutor;
use super::fork::{Access, ForkState};
use super::host_times::{HostPart, HostTimes};
use super::launch::{Launch, LaunchInputs, PartArguments, ReportedCheck};
use super::module::{FetchPlace, Purpose, scalar_from_bits};
use super::split_program::{SplitProgram, split_at_sums, split_at_variables};
use super::spmd::{SpmdProgram, merge_towers};
use super::staging::StagedFeeds;
use super::target::Target;
use super::variables::Variables;
use crate::kir::{BufferKind, Kernel, KernelNode, Program};
use crate::runtime::Lowered;
use crate::runtime::executor::{Executable, Feed, KernelTime, Outcome, Pending, RunInfo, check_feeds};
use crate::runtime::shard_updates::{stored_shards, uses_shards};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tensorpack_pjrt as pjrt;
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result};

/// A compiled program.
pub(super) struct XlaProgram {
    pub(super) launches: Arc<Vec<Launch>>,
    /// What the last launch is given by others, if it is the joint program of a run that is split.
    joint: Option<JointInputs>,
    fetches: Vec<FetchSource>,
    target: Target,
    variables: Arc<Mutex<Variables>>,
    staged: Arc<StagedFeeds>,
    /// Dtype and sizes of each feed.
    feeds: Vec<(DType, Vec<usize>)>,
    access: Access,
    fork: Option<Arc<ForkState>>,
}

/// The origins of what the joint program of a run that is split is given.
struct JointInputs {
    /// The launches of the towers.
    towers: Range<usize>,
    /// The device of the first tower. The joint program runs on device 0.
    first_device: usize,
    /// For each value, the tower and the index among those that it passes on.
    passed: Vec<(usize, usize)>,
}

/// A fork's run whose first part is complete.
pub(super) struct RunApart {
    /// The version of the variables that it has read.
    version: u64,
    /// The outputs of its launches.
    outputs: Vec<Vec<Vec<pjrt::Buffer>>>,
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
pub(super) struct PendingRun {
    pub(super) launches: Arc<Vec<Launch>>,
    pub(super) target: Target,
    pub(super) variables: Arc<Mutex<Variables>>,
    /// The report of each tower of each launch.
    pub(super) reports: Vec<Vec<pjrt::Download>>,
    pub(super) fetches: Vec<PendingFetch>,
}

/// A fetch of a launched run.
pub(super) enum PendingFetch {
    Download(pjrt::Download),
    /// A scalar of this dtype in the report of a tower of a launch, at this index.
    Report {
        launch: usize,
        tower: usize,
        index: usize,
        dtype: DType,
    },
}

pub(super) fn lock(variables: &Mutex<Variables>) -> MutexGuard<'_, Variables> {
    variables.lock().unwrap_or_else(PoisonError::into_inner)
}

impl XlaProgram {
    pub(super) fn new(lowered: &Lowered, purpose: Purpose, executor: &XlaExecutor) -> Result<XlaProgram> {
        let XlaExecutor { target, variables, staged, access, fork, .. } = executor;
        let divided = executor.divided();
        if let Some(fork) = fork {
            return XlaProgram::split(lowered, &split_at_variables(lowered)?, purpose, executor, fork.tower);
        }
        lock(variables).replicate(target, lowered.programs().len())?;
        let uses_shards = |program: &Program| {
            divided.is_some_and(|(variables, shards)| uses_shards(program, variables, shards))
        };
        let (programs, fetches) = match merge_towers(lowered) {
            Ok(mut spmd) => {
                if let Some((variables, shards)) = divided {
                    spmd = spmd.shard_updates(variables, shards);
                }
                let towers = spmd.towers.len();
                let spmd = match target.replicas(towers) {
                    // A search is each process's own, because only some may have found a value that is
                    // not finite.
                    Some(replicas)
                        if purpose != Purpose::FindNonFinite
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
            Err(_) if lowered.programs().iter().all(|p| is_independent(p) && !uses_shards(p)) => {
                let source = |&(launch, at): &(usize, usize)| FetchSource { launch, tower: 0, index: at };
                let programs =
                    lowered.programs().iter().map(|p| SpmdProgram::single(p, Vec::new())).collect();
                (programs, lowered.fetches().iter().map(source).collect())
            }
            Err(_) if target.replicas(1).is_none() => {
                let is_divided = |v: usize| {
                    divided.is_some_and(|(infos, shards)| stored_shards(&infos[v], Some(shards)).is_some())
                };
                let split = split_at_sums(lowered, &is_divided)?;
                return XlaProgram::split(lowered, &split, purpose, executor, 0);
            }
            Err(e) => return Err(e),
        };
        let launch = |(first, spmd): (usize, &SpmdProgram)| Launch::new(spmd, purpose, target, first);
        let launches = Arc::new(programs.iter().enumerate().map(launch).collect::<Result<_>>()?);
        Ok(XlaProgram {
            launches,
            joint: None,
            fetches,
            target: target.clone(),
            variables: variables.clone(),
            staged: staged.clone(),
            feeds: lowered.feeds().to_vec(),
            access: access.clone(),
            fork: None,
        })
    }

    /// Compiles the programs of a run that is split. The first tower runs on device `first_device`.
    fn split(
        lowered: &Lowered,
        split: &SplitProgram,
        purpose: Purpose,
        executor: &XlaExecutor,
        first_device: usize,
    ) -> Result<XlaProgram> {
        let XlaExecutor { target, variables, staged, access, fork, .. } = executor;
        let SplitProgram { towers, joint, passed, fetches } = split;
        let joint = match executor.divided() {
            Some((variables, shards)) => &joint.clone().shard_updates(variables, shards),
            None => joint,
        };
        let launches = |purpose: Purpose| {
            let launch =
                |(i, spmd): (usize, &SpmdProgram)| Launch::new(spmd, purpose, target, first_device + i);
            towers.iter().enumerate().map(launch).collect::<Result<Vec<Launch>>>()
        };
        let mut all = match purpose {
            Purpose::Run => Vec::new(),
            // A search tests the results of the towers first. A module that searches passes nothing on,
            // so the towers run once more for the joint one.
            Purpose::FindNonFinite => launches(purpose)?,
            Purpose::RunSteps(_) => {
                let why = "a launch of several steps cannot be split into one program per tower";
                return Err(Error::new(ErrorKind::Unsupported, why));
            }
        };
        let first = all.len();
        all.extend(launches(Purpose::Run)?);
        let Program { kernels, updates, fetches: joint_fetches, .. } = &joint.program;
        let joins = !(kernels.is_empty() && updates.is_empty() && joint_fetches.is_empty());
        if joins {
            all.push(Launch::new(joint, purpose, target, 0)?);
        }
        let towers = first..first + towers.len();
        let source =
            |&(launch, index): &(usize, usize)| FetchSource { launch: first + launch, tower: 0, index };
        Ok(XlaProgram {
            launches: Arc::new(all),
            joint: joins.then(|| JointInputs { towers, first_device, passed: passed.clone() }),
            fetches: fetches.iter().map(source).collect(),
            target: target.clone(),
            variables: variables.clone(),
            staged: staged.clone(),
            feeds: lowered.feeds().to_vec(),
            access: access.clone(),
            fork: fork.clone(),
        })
    }

    /// Starts all launches. Returns the outputs of each tower of each launch.
    pub(super) fn launch(&self, run: &RunInfo, feeds: &[Feed<'_>]) -> Result<Vec<Vec<Vec<pjrt::Buffer>>>> {
        self.launch_with(&LaunchInputs::one_step(run, &[feeds]))
    }

    /// Starts all launches, with the feeds of one or several steps.
    pub(super) fn launch_with(&self, inputs: &LaunchInputs<'_>) -> Result<Vec<Vec<Vec<pjrt::Buffer>>>> {
        let mut started = self.launch_towers(inputs)?;
        self.launch_joint(inputs, &mut started)?;
        Ok(started)
    }

    /// Starts all launches except a joint one.
    fn launch_towers(&self, inputs: &LaunchInputs<'_>) -> Result<Vec<Vec<Vec<pjrt::Buffer>>>> {
        inputs.feeds.iter().try_for_each(|feeds| check_feeds(&self.feeds, feeds))?;
        let count = self.launches.len() - usize::from(self.joint.is_some());
        let snapshot = self.fork.as_ref().map(|fork| fork.snapshot());
        let part = PartArguments { snapshot, ..PartArguments::default() };
        let mut variables = lock(&self.variables);
        let start = |launch: &Launch| launch.start(inputs, &part, &mut variables, &self.staged, &self.target);
        let started = self.launches[..count].iter().map(start).collect();
        inputs.feeds.iter().for_each(|feeds| self.staged.release(feeds));
        started
    }

    /// Starts the joint launch of a run that is split, with the outputs of its towers.
    fn launch_joint(
        &self,
        inputs: &LaunchInputs<'_>,
        started: &mut Vec<Vec<Vec<pjrt::Buffer>>>,
    ) -> Result<()> {
        let (Some(joint), Some(launch)) = (&self.joint, self.launches.last()) else { return Ok(()) };
        let part = joint.collect(started, &self.launches, launch.device_count(), &self.target)?;
        let mut variables = lock(&self.variables);
        started.push(launch.start(inputs, &part, &mut variables, &self.staged, &self.target)?);
        Ok(())
    }

    /// Runs the tower's part of a fork's program on a snapshot of the variables. Returns `None` if a
    /// value was not finite.
    pub(super) fn run_apart(
        &self,
        fork: &ForkState,
        run: &RunInfo,
        feeds: &[Feed<'_>],
    ) -> Result<Option<RunApart>> {
        let arguments = self.launches.iter().flat_map(|launch| &launch.module.arguments);
        let version = {
            let _turn = self.access.turn()?;
            let variables = lock(&self.variables);
            fork.take_snapshot(arguments, &variables, &self.target)?;
            variables.version
        };
        fork.at.set(None);
        let outputs = self.launch_towers(&LaunchInputs::one_step(run, &[feeds]))?;
        // Wait here, so that the turn is short.
        for (launch, outputs) in self.launches.iter().zip(&outputs) {
            let report = self.target.wait(outputs[0][launch.module.report].start_download()?);
            let report = report.map_err(|e| launch.explain(e))?;
            if launch.check_report(report.as_slice()?)? != ReportedCheck::Finite {
                return Ok(None);
            }
        }
        fork.at.set(None);
        Ok(Some(RunApart { version, outputs }))
    }

    /// Runs the joint part of a fork's program during a turn with the variables.
    pub(super) fn run_joint(
        &self,
        fork: &ForkState,
        apart: RunApart,
        run: &RunInfo,
        feeds: &[Feed<'_>],
        outputs: &mut Vec<HostTensor>,
    ) -> Result<Outcome> {
        let RunApart { version, outputs: mut started } = apart;
        let _turn = self.access.turn()?;
        self.launch_joint(&LaunchInputs::one_step(run, &[feeds]), &mut started)?;
        let outcome = Box::new(self.download(&started)?).collect(outputs)?;
        fork.at.set(None);
        if !matches!(outcome, Outcome::Committed { .. }) {
            return Ok(outcome);
        }
        fork.forget_snapshot();
        let mut variables = lock(&self.variables);
        let staleness = variables.version - version;
        variables.version += u64::from(self.changes_variables());
        Ok(Outcome::Committed { staleness })
    }

    fn changes_variables(&self) -> bool {
        self.launches.iter().any(|launch| !launch.module.updated.is_empty())
    }

    /// Starts the downloads of the results of a launch.
    pub(super) fn download(&self, outputs: &[Vec<Vec<pjrt::Buffer>>]) -> Result<PendingRun> {
        let mut timer = HostTimes::timer(&self.launches[0].times);
        let report = |(launch, towers): (&Launch, &Vec<Vec<pjrt::Buffer>>)| {
            towers.iter().map(|outputs| outputs[launch.module.report].start_download()).collect::<Result<_>>()
        };
        let fetch = |&FetchSource { launch, tower, index }: &FetchSource| {
            Ok(match self.launches[launch].module.fetches[index] {
                FetchPlace::Result(at) => {
                    PendingFetch::Download(outputs[launch][tower][at].start_download()?)
                }
                FetchPlace::Report(index, dtype) => PendingFetch::Report { launch, tower, index, dtype },
            })
        };
        let pending = PendingRun {
            reports: self.launches.iter().zip(outputs).map(report).collect::<Result<_>>()?,
            fetches: self.fetches.iter().map(fetch).collect::<Result<_>>()?,
            launches: self.launches.clone(),
            target: self.target.clone(),
            variables: self.variables.clone(),
        };
        timer.end(HostPart::Downloads);
        Ok(pending)
    }
}

impl JointInputs {
    /// Takes what the towers pass on from their outputs, and copies it to the `devices` devices of the
    /// joint program.
    fn collect(
        &self,
        started: &mut [Vec<Vec<pjrt::Buffer>>],
        launches: &[Launch],
        devices: usize,
        target: &Target,
    ) -> Result<PartArguments> {
        // The fetches and the report remain.
        let mut take = |at: usize| {
            let own = started[at][0].split_off(launches[at].module.report + 1);
            own.into_iter().map(Arc::new).collect::<Vec<_>>()
        };
        let of_towers: Vec<Vec<Arc<pjrt::Buffer>>> = self.towers.clone().map(&mut take).collect();
        let mut part = PartArguments::default();
        for device in 0..devices {
            let copy = |tower: usize, buffer: &Arc<pjrt::Buffer>| match self.first_device + tower == device {
                true => Ok(buffer.clone()),
                false => buffer.copy_to(target.device(device)?).map(Arc::new),
            };
            let passed = self.passed.iter().map(|&(tower, i)| copy(tower, &of_towers[tower][i]));
            part.passed.push(passed.collect::<Result<_>>()?);
            // A tower's last output says whether its part succeeded.
            let flags = of_towers.iter().enumerate().filter_map(|(tower, own)| Some((tower, own.last()?)));
            part.towers_ok.push(flags.map(|(tower, ok)| copy(tower, ok)).collect::<Result<_>>()?);
        }
        Ok(part)
    }
}

impl PendingRun {
    /// Waits for the reports of all towers of all launches. Returns them with the outcome of the check.
    fn wait_for_reports(&mut self) -> Result<(ReportedCheck, Vec<Vec<HostTensor>>)> {
        let mut outcome = ReportedCheck::Finite;
        let mut all = Vec::with_capacity(self.launches.len());
        for (launch, reports) in self.launches.iter().zip(self.reports.drain(..)) {
            let mut of_launch = Vec::with_capacity(reports.len());
            for report in reports {
                let report = self.target.wait(report).map_err(|e| launch.explain(e))?;
                outcome = outcome.max(launch.check_report(report.as_slice()?)?);
                of_launch.push(report);
            }
            all.push(of_launch);
        }
        Ok((outcome, all))
    }
}

impl Pending for PendingRun {
    fn collect(mut self: Box<Self>, outputs: &mut Vec<HostTensor>) -> Result<Outcome> {
        let launches = self.launches.clone();
        let mut timer = HostTimes::timer(&launches[0].times);
        let reports = match self.wait_for_reports() {
            Ok((ReportedCheck::Finite, reports)) => reports,
            Ok((ReportedCheck::Skipped, _)) => return Ok(Outcome::Skipped),
            failed => {
                let reset = lock(&self.variables).reset_ok(&self.target);
                failed?;
                return reset.map(|()| Outcome::NotFinite);
            }
        };
        outputs.clear();
        for fetch in self.fetches {
            outputs.push(match fetch {
                PendingFetch::Download(download) => self.target.wait(download)?,
                PendingFetch::Report { launch, tower, index, dtype } => {
                    scalar_from_bits(reports[launch][tower].as_slice::<i64>()?[index], dtype)
                }
            });
        }
        timer.end(HostPart::Wait);
        Ok(Outcome::Committed { staleness: 0 })
    }
}

/// Returns whether the program of a tower has neither collectives nor updates.
fn is_independent(program: &Program) -> bool {
    !has_collectives(program) && program.updates.is_empty()
}

fn has_collectives(program: &Program) -> bool {
    program.kernels.iter().any(|n| n.kernel.is_collective())
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
        if let Some(fork) = &self.fork {
            return match self.run_apart(fork, run, feeds)? {
                Some(apart) => self.run_joint(fork, apart, run, feeds, outputs),
                None => Ok(Outcome::NotFinite),
            };
        }
        let turn = self.access.turn()?;
        let outcome = Box::new(self.download(&self.launch(run, feeds)?)?).collect(outputs)?;
        if turn.is_some() && outcome != Outcome::NotFinite && self.changes_variables() {
            lock(&self.variables).version += 1;
        }
        Ok(outcome)
    }

    fn start(&mut self, run: &RunInfo, feeds: &[Feed<'_>]) -> Result<Box<dyn Pending>> {
        Ok(Box::new(self.download(&self.launch(run, feeds)?)?))
    }

    /// Feeds are checked on the device: on the host this would take as long as a GPU needs for the
    /// whole step.
    fn checks_feeds(&self) -> bool {
        true
    }

    fn plan_text(&self) -> String {
        self.launches.iter().map(Launch::plan_text).collect()
    }

    fn profile(&self) -> Vec<KernelTime> {
        HostTimes::report(&self.launches[0].times)
    }
}
