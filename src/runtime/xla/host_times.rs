//! The time that the host spends on launches, by part.

use crate::runtime::executor::KernelTime;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tensorpack_timeline as timeline;

/// What the host does for a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostPart {
    /// Lists the arguments, and uploads those that are not on the device yet.
    Arguments,
    /// Calls the plugin to start the program.
    Execute,
    /// Replaces the variables by their next values.
    Variables,
    /// Starts the downloads of report and fetches.
    Downloads,
    /// Waits for the downloads.
    Wait,
}

const PARTS: [(HostPart, &str); 5] = [
    (HostPart::Arguments, "host: argument setup"),
    (HostPart::Execute, "host: execute call"),
    (HostPart::Variables, "host: next variables"),
    (HostPart::Downloads, "host: start of fetches"),
    (HostPart::Wait, "host: event waits"),
];

#[derive(Clone, Copy, Default)]
struct Time {
    runs: u64,
    total: Duration,
    best: Option<Duration>,
}

/// The times of a program's launches.
#[derive(Default)]
pub(super) struct HostTimes([Mutex<Time>; PARTS.len()]);

/// Measures the parts of a launch, one after the other, for the times of its program and for
/// timelines. It does nothing if neither is wanted.
pub(super) struct PartTimer<'a> {
    times: Option<&'a HostTimes>,
    /// When the last part ended.
    begun: Option<Instant>,
}

impl HostTimes {
    /// Returns where to add up times, if sessions profile.
    pub(super) fn new(profile: bool) -> Option<Arc<HostTimes>> {
        profile.then(Arc::default)
    }

    /// Starts to measure.
    pub(super) fn timer(times: &Option<Arc<HostTimes>>) -> PartTimer<'_> {
        let begun = (times.is_some() || timeline::is_recording()).then(Instant::now);
        PartTimer { times: times.as_deref(), begun }
    }

    /// Returns the times of all parts.
    pub(super) fn report(times: &Option<Arc<HostTimes>>) -> Vec<KernelTime> {
        let Some(times) = times else { return Vec::new() };
        let part = |(&(_, name), time): (&(HostPart, &str), &Mutex<Time>)| {
            let Time { runs, total, best } = *time.lock().unwrap_or_else(PoisonError::into_inner);
            KernelTime {
                name: name.to_string(),
                runs,
                seconds: total.as_secs_f64(),
                best_seconds: best.unwrap_or_default().as_secs_f64(),
                flops: 0.0,
                bytes: 0.0,
            }
        };
        PARTS.iter().zip(&times.0).map(part).collect()
    }
}

impl PartTimer<'_> {
    /// Ends a part: everything since the last one ended.
    pub(super) fn end(&mut self, part: HostPart) {
        let Some(begun) = self.begun else { return };
        let now = Instant::now();
        self.begun = Some(now);
        let index = PARTS.iter().position(|(p, _)| *p == part).expect("all parts are listed");
        timeline::record("launch", PARTS[index].1, begun, now);
        let (Some(times), took) = (self.times, now.duration_since(begun)) else { return };
        let mut time = times.0[index].lock().unwrap_or_else(PoisonError::into_inner);
        time.runs += 1;
        time.total += took;
        time.best = Some(time.best.map_or(took, |best| best.min(took)));
    }
}
