//! A program that runs several steps in one launch.

use super::host_times::{HostPart, HostTimes};
use super::launch::{Launch, LaunchInputs, ReportedCheck};
use super::module::scalar_from_bits;
use super::program::{PendingFetch, PendingRun, XlaProgram, lock};
use super::target::Target;
use crate::runtime::executor::{
    Executable, Feed, KernelTime, PendingSteps, StepEnd, StepResult, StepsExecutable, StepsInfo,
};
use tensorpack_pjrt as pjrt;
use tensorpack_tensor::{DType, HostTensor, Result};

/// A compiled program of several steps.
pub(super) struct XlaStepsProgram(pub(super) XlaProgram);

/// A launch of several steps, with the downloads of its reports and fetches.
struct PendingLaunch {
    /// The downloads of stacked values.
    run: PendingRun,
    steps: usize,
    info: StepsInfo,
}

impl StepsExecutable for XlaStepsProgram {
    fn start(&mut self, info: &StepsInfo, feeds: &[&[Feed<'_>]]) -> Result<Box<dyn PendingSteps>> {
        let StepsInfo { first, skip_limit, skipped_before } = *info;
        let outputs = self.0.launch_with(&LaunchInputs { run: first, feeds, skip_limit, skipped_before })?;
        let run = self.0.download(&outputs)?;
        Ok(Box::new(PendingLaunch { run, steps: feeds.len(), info: *info }))
    }

    fn profile(&self) -> Vec<KernelTime> {
        self.0.profile()
    }
}

impl PendingSteps for PendingLaunch {
    fn collect(self: Box<Self>) -> Result<Vec<StepResult>> {
        let PendingLaunch { run, steps, info } = *self;
        let PendingRun { launches, target, variables, reports, fetches } = run;
        // Training steps are one launch for all towers.
        let (launch, reports) = (&launches[0], reports.into_iter().flatten());
        let mut timer = HostTimes::timer(&launch.times);
        let ended = Downloaded::wait(launch, &target.with_deadline_of(steps), reports, fetches)
            .and_then(|downloaded| downloaded.results(launch, steps, &info));
        if !matches!(ended, Ok((_, false))) {
            lock(&variables).reset_ok(&target)?;
        }
        timer.end(HostPart::Wait);
        ended.map(|(results, _)| results)
    }
}

/// The results of a launch on the host, stacked.
struct Downloaded {
    /// The report of each tower.
    reports: Vec<HostTensor>,
    fetches: Vec<DownloadedFetch>,
}

enum DownloadedFetch {
    Stacked(HostTensor),
    /// A scalar of this dtype in the report of a tower, at this index.
    Report {
        tower: usize,
        index: usize,
        dtype: DType,
    },
}

impl Downloaded {
    fn wait(
        launch: &Launch,
        target: &Target,
        reports: impl Iterator<Item = pjrt::Download>,
        fetches: Vec<PendingFetch>,
    ) -> Result<Downloaded> {
        let reports = reports.map(|report| target.wait(report).map_err(|e| launch.explain(e)));
        let reports = reports.collect::<Result<_>>()?;
        let fetch = |fetch| {
            Ok(match fetch {
                PendingFetch::Download(download) => DownloadedFetch::Stacked(target.wait(download)?),
                PendingFetch::Report { tower, index, dtype, .. } => {
                    DownloadedFetch::Report { tower, index, dtype }
                }
            })
        };
        Ok(Downloaded { reports, fetches: fetches.into_iter().map(fetch).collect::<Result<_>>()? })
    }

    /// Returns the results of the steps, up to the one after which no step changed anything, and
    /// whether there is such a one.
    fn results(&self, launch: &Launch, steps: usize, info: &StepsInfo) -> Result<(Vec<StepResult>, bool)> {
        let mut results = Vec::with_capacity(steps);
        let mut skipped = info.skipped_before;
        for step in 0..steps {
            let mut outcome = ReportedCheck::Finite;
            for report in &self.reports {
                match launch.check_report(row(report, step)?) {
                    Ok(here) => outcome = outcome.max(here),
                    Err(e) => {
                        results.push(Err(e));
                        return Ok((results, true));
                    }
                }
            }
            match outcome {
                ReportedCheck::Finite => {
                    skipped = 0;
                    results.push(Ok(StepEnd::Committed(self.fetched(step)?)));
                    continue;
                }
                ReportedCheck::Skipped => {
                    results.push(Ok(StepEnd::Skipped));
                    continue;
                }
                ReportedCheck::NotFinite => results.push(Ok(StepEnd::NotFinite)),
            }
            skipped += 1;
            if skipped > info.skip_limit {
                return Ok((results, true));
            }
        }
        Ok((results, false))
    }

    fn fetched(&self, step: usize) -> Result<Vec<HostTensor>> {
        let value = |fetch: &DownloadedFetch| match fetch {
            DownloadedFetch::Stacked(stacked) => slice(stacked, step),
            DownloadedFetch::Report { tower, index, dtype } => {
                Ok(scalar_from_bits(row(&self.reports[*tower], step)?[*index], *dtype))
            }
        };
        self.fetches.iter().map(value).collect()
    }
}

/// Returns the report of a step.
fn row(report: &HostTensor, step: usize) -> Result<&[i64]> {
    let width = report.sizes()[1];
    Ok(&report.as_slice::<i64>()?[step * width..(step + 1) * width])
}

/// Returns the value of a step.
fn slice(stacked: &HostTensor, step: usize) -> Result<HostTensor> {
    let mut value = HostTensor::zeros(stacked.dtype(), &stacked.sizes()[1..])?;
    let bytes = value.as_bytes().len();
    value.copy_from_bytes(&stacked.as_bytes()[step * bytes..(step + 1) * bytes])?;
    Ok(value)
}
