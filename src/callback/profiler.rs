//! Records timelines of steps.

use super::{Callback, GraphCx, TrainCx, chrome_trace};
use crate::runtime::{DeviceEvents, DeviceProfiler};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use tensorpack_tensor::{Error, Result, Site};
use tensorpack_timeline::Recording;

/// The number of steps that a signal or a trigger records.
const STEPS: u64 = 10;

/// Whether a signal asked for a recording.
static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Asks the profiler of this process to record the next steps. Signal handlers may call it.
#[cfg(unix)]
pub(crate) fn request_recording() {
    REQUESTED.store(true, Ordering::Relaxed);
}

/// Writes timelines of steps to `timeline-FIRST-LAST.json` in the log directory, in Chrome's trace
/// format. Open them at `ui.perfetto.dev` or in `chrome://tracing`.
///
/// A timeline has a row for each thread: the training loop with its input, computation, callbacks
/// and checkpoints; each thread of a CPU team with its kernels; the threads that read data. On XLA
/// it has the host's part of each launch, and a row for each stream of a device with its kernels, if the
/// plugin has a profiler. The devices are waited for before and after a recording. If a range ends with an epoch, it includes what follows
/// the epoch's last step.
///
/// It records the steps given to [`Profiler::steps`], the next 10 steps when the process receives
/// `SIGUSR1`, and the next 10 when it is triggered by a
/// [`PeriodicTrigger`](super::PeriodicTrigger). The default callbacks include one, so that the
/// signal always works. It never changes what is trained.
#[doc(alias = "GraphProfiler")]
pub struct Profiler {
    chosen: Option<RangeInclusive<u64>>,
    /// Where `steps` was called.
    site: Option<Site>,
    /// The number of steps to record on request.
    next: u64,
    /// The recording that runs.
    recording: Option<StepsRecording>,
    /// Whether the next steps are to be recorded.
    triggered: bool,
}

struct StepsRecording {
    steps: RangeInclusive<u64>,
    host: Recording,
    /// The recording of the devices, if they have queues of their own, or why there is none.
    devices: Result<Option<Box<dyn DeviceProfiler>>>,
}

impl Default for Profiler {
    fn default() -> Profiler {
        Profiler { chosen: None, site: None, next: STEPS, recording: None, triggered: false }
    }
}

impl Profiler {
    /// Creates a profiler that records when it is asked to.
    pub fn new() -> Profiler {
        Profiler::default()
    }

    /// Creates a profiler that records these steps, counted from 1 as `global_step` does.
    #[track_caller]
    pub fn steps(steps: RangeInclusive<u64>) -> Profiler {
        Profiler { chosen: Some(steps), site: Some(Site::caller()), ..Profiler::default() }
    }

    /// Sets the number of steps that a signal or a trigger records. Defaults to 10.
    #[must_use]
    pub fn on_request(self, steps: u64) -> Profiler {
        Profiler { next: steps.max(1), ..self }
    }

    /// Starts to record if the next step is to be.
    fn start(&mut self, cx: &TrainCx<'_>) {
        let (done, next) = (cx.global_step, cx.global_step + 1);
        let requested = REQUESTED.load(Ordering::Relaxed) && REQUESTED.swap(false, Ordering::Relaxed);
        if self.recording.is_some() {
            return;
        }
        if requested && cx.logdir().is_none() {
            log::warn!("no timeline is recorded: the run has no log directory to write it to");
            return;
        }
        let steps = match &self.chosen {
            Some(chosen) if chosen.contains(&next) => next..=*chosen.end(),
            _ if requested || std::mem::take(&mut self.triggered) => next..=done.saturating_add(self.next),
            _ => return,
        };
        log::info!("recording a timeline of steps {next} to {}", steps.end());
        let devices = cx.session().start_device_profiler();
        self.recording = Some(StepsRecording { steps, host: Recording::start(), devices });
    }

    /// Ends the recording and writes it.
    fn finish(&mut self, cx: &TrainCx<'_>) -> Result<()> {
        let Some(StepsRecording { steps, host, devices }) = self.recording.take() else { return Ok(()) };
        let devices = match devices {
            Ok(Some(devices)) => cx.session().finish_device_profiler(devices).map(Some),
            Ok(None) => Ok(None),
            Err(e) => Err(e),
        };
        let timeline = host.finish();
        let Some(dir) = cx.logdir() else { return Ok(()) };
        let last = cx.global_step.min(*steps.end());
        if last < *steps.start() {
            return Ok(());
        }
        let path = dir.join(format!("timeline-{}-{last}.json", steps.start()));
        let mut about = BTreeMap::from([
            ("steps", format!("{} to {last}", steps.start())),
            ("device", cx.session().options().device.to_string()),
        ]);
        // Training does not depend on kernels of devices, nor does the rest of the timeline.
        if let Some(kernels) = device_kernels(&devices) {
            log::info!("kernels of the devices in the timeline: {kernels}");
            about.insert("device_kernels", kernels);
        }
        let devices = devices.ok().flatten().unwrap_or_default();
        let write = |path: &Path| {
            let mut file = BufWriter::new(File::create(path)?);
            chrome_trace::write(&timeline, &devices, 0, &about, &mut file)?;
            file.flush()
        };
        match write(&path) {
            Ok(()) => log::info!(
                "wrote {}: open it at https://ui.perfetto.dev or in chrome://tracing",
                path.display()
            ),
            // Training does not depend on it.
            Err(e) => {
                log::warn!("no timeline: cannot write {}: {e}", path.display());
                let _ = std::fs::remove_file(&path);
            }
        }
        Ok(())
    }

    /// Returns whether the recording has all of its steps.
    fn is_complete(&self, done: u64) -> bool {
        self.recording.as_ref().is_some_and(|recording| done >= *recording.steps.end())
    }
}

/// Describes the recording of devices; `None` if all work is done by threads.
fn device_kernels(devices: &Result<Option<Vec<DeviceEvents>>>) -> Option<String> {
    match devices {
        Ok(None) => None,
        Ok(Some(devices)) => {
            let streams = devices.iter().flat_map(|device| &device.streams);
            Some(streams.map(|stream| stream.events.len()).sum::<usize>().to_string())
        }
        Err(e) => Some(format!("none, because {}", e.message())),
    }
}

impl fmt::Debug for Profiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let recorded = self.recording.as_ref().map(|recording| &recording.steps);
        write!(f, "Profiler {{ chosen: {:?}, next: {}, records: {recorded:?} }}", self.chosen, self.next)
    }
}

impl Callback for Profiler {
    fn chief_only(&self) -> bool {
        true
    }

    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        let Some(chosen) = &self.chosen else { return Ok(()) };
        if chosen.is_empty() || *chosen.start() == 0 {
            let why = format!("{chosen:?} are no steps: the first step is 1");
            let e = Error::argument(why).note("for example Profiler::steps(100..=109)");
            return Err(self.site.iter().fold(e, |e, site| e.at(*site)));
        }
        g.need_logdir("Profiler").map(|_| ())
    }

    fn before_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if self.is_complete(cx.global_step) {
            self.finish(cx)?;
        }
        self.start(cx);
        Ok(())
    }

    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        // What follows the last step of an epoch belongs to it.
        if cx.last_of_epoch() {
            return Ok(());
        }
        if self.is_complete(cx.global_step) {
            self.finish(cx)?;
        }
        self.start(cx);
        Ok(())
    }

    fn trigger_epoch(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        Ok(())
    }

    fn trigger(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        self.triggered = true;
        Ok(())
    }

    fn after_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.finish(cx)
    }
}
