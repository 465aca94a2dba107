//! A program of a session: one SPMD launch for all towers, or one launch per tower if they are
//! independent.

use super::host_times::{HostPart, HostTimes};
use super::launch::{Launch, LaunchInputs};
use super::module::{FetchPlace, Purpose, scalar_from_bits};
use super::spmd::{SpmdProgram, merge_towers};
use super::staging::StagedFeeds;
use super::target::Target;
use super::variables::Variables;
use crate::kir::{BufferKind, Kernel, KernelNode, Program};
use crate::runtime::Lowered;
use crate::runtime::executor::{Executable, Feed, KernelTime, Outcome, Pending, RunInfo, check_feeds};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tensorpack_pjrt as pjrt;
use tensorpack_tensor::{DType, HostTensor, Result};

/// A compiled program.
pub(super) struct XlaProgram {
    pub(super) launches: Arc<Vec<Launch>>,
    fetches: Vec<FetchSource>,
    target: Target,
    variables: Arc<Mutex<Variables>>,
    staged: Arc<StagedFeeds>,
    /// Dtype and sizes of each feed.
    feeds: Vec<(DType, Vec<usize>)>,
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
            Err(_) if lowered.programs().iter().all(is_independent) => {
                let source = |&(launch, at): &(usize, usize)| FetchSource { launch, tower: 0, index: at };
                let programs =
                    lowered.programs().iter().map(|p| SpmdProgram::single(p, Vec::new())).collect();
                (programs, lowered.fetches().iter().map(source).collect())
            }
            Err(e) => return Err(e),
        };
        let launch = |(first, spmd): (usize, &SpmdProgram)| Launch::new(spmd, purpose, target, first);
        let launches = Arc::new(programs.iter().enumerate().map(launch).collect::<Result<_>>()?);
        let (target, variables, staged) = (target.clone(), variables.clone(), staged.clone());
        let feeds = lowered.feeds().to_vec();
        Ok(XlaProgram { launches, fetches, target, variables, staged, feeds })
    }

    /// Starts all launches. Returns the outputs of each tower of each launch.
    pub(super) fn launch(&self, run: &RunInfo, feeds: &[Feed<'_>]) -> Result<Vec<Vec<Vec<pjrt::Buffer>>>> {
        self.launch_with(&LaunchInputs { run: *run, feeds: &[feeds], skip_limit: 0, skipped_before: 0 })
    }

    /// Starts all launches, with the feeds of one or several steps.
    pub(super) fn launch_with(&self, inputs: &LaunchInputs<'_>) -> Result<Vec<Vec<Vec<pjrt::Buffer>>>> {
        inputs.feeds.iter().try_for_each(|feeds| check_feeds(&self.feeds, feeds))?;
        let mut variables = lock(&self.variables);
        let start = |launch: &Launch| launch.start(inputs, &mut variables, &self.staged, &self.target);
        let started = self.launches.iter().map(start).collect();
        inputs.feeds.iter().for_each(|feeds| self.staged.release(feeds));
        started
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

impl PendingRun {
    /// Waits for the reports of all towers of all launches. Returns them, if all checked values were
    /// finite.
    fn wait_for_reports(&mut self) -> Result<Option<Vec<Vec<HostTensor>>>> {
        let mut finite = true;
        let mut all = Vec::with_capacity(self.launches.len());
        for (launch, reports) in self.launches.iter().zip(self.reports.drain(..)) {
            let mut of_launch = Vec::with_capacity(reports.len());
            for report in reports {
                let report = self.target.wait(report).map_err(|e| launch.explain(e))?;
                finite &= launch.check_report(report.as_slice()?)?;
                of_launch.push(report);
            }
            all.push(of_launch);
        }
        Ok(finite.then_some(all))
    }
}

impl Pending for PendingRun {
    fn collect(mut self: Box<Self>, outputs: &mut Vec<HostTensor>) -> Result<Outcome> {
        let launches = self.launches.clone();
        let mut timer = HostTimes::timer(&launches[0].times);
        let reports = match self.wait_for_reports() {
            Ok(Some(reports)) => reports,
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
        Box::new(self.download(&self.launch(run, feeds)?)?).collect(outputs)
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
