//! Records kernels with the plugin's profiler.

use super::program::lock;
use super::target::Target;
use super::variables::Variables;
use crate::runtime::device_profiler::{DeviceEvents, DeviceProfiler};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use tensorpack_pjrt::{Profiler, XEvent, XLine, XSpace};
use tensorpack_tensor::Result;
use tensorpack_timeline::{Event, Label, Name, ThreadEvents};

/// Timestamps below this, a year, do not count from 1970 but from the start of the recording.
const LEAST_UNIX_TIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// A recording of the plugin's profiler.
pub(super) struct XlaProfiler {
    profiler: Profiler,
    clock: HostClock,
    variables: Arc<Mutex<Variables>>,
    target: Target,
}

impl XlaProfiler {
    /// Waits for the runs that were launched, then starts to record. Returns `None` if the plugin has
    /// no profiler.
    pub(super) fn start(variables: &Arc<Mutex<Variables>>, target: &Target) -> Result<Option<XlaProfiler>> {
        lock(variables).wait(target)?;
        let clock = HostClock::now();
        let profiler = Profiler::start(target.client.plugin())?;
        let (variables, target) = (variables.clone(), target.clone());
        Ok(profiler.map(|profiler| XlaProfiler { profiler, clock, variables, target }))
    }
}

impl DeviceProfiler for XlaProfiler {
    fn finish(self: Box<Self>) -> Result<Vec<DeviceEvents>> {
        lock(&self.variables).wait(&self.target)?;
        let space = self.profiler.finish()?;
        for message in space.errors.iter().chain(&space.warnings) {
            log::warn!("the profiler of {} says: {message}", self.target.client.plugin().name());
        }
        Ok(device_events(&space, self.clock))
    }
}

/// The same moment on the clock of spans and on that of plugins.
#[derive(Clone, Copy)]
struct HostClock {
    instant: Instant,
    /// Since 1970.
    unix: Duration,
}

impl HostClock {
    fn now() -> HostClock {
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        HostClock { instant: Instant::now(), unix }
    }

    /// Returns the moment at this many picoseconds after the beginning of a line, or `None` if there is
    /// no such moment.
    fn at(&self, line: &XLine, offset_ps: i64) -> Option<Instant> {
        let begun = i128::from(line.timestamp_ns);
        let origin =
            if begun < LEAST_UNIX_TIME.as_nanos() as i128 { 0 } else { self.unix.as_nanos() as i128 };
        let after = begun - origin + i128::from(offset_ps).div_euclid(1000);
        let nanos = Duration::from_nanos(after.unsigned_abs().try_into().ok()?);
        if after < 0 { self.instant.checked_sub(nanos) } else { self.instant.checked_add(nanos) }
    }
}

/// Returns what devices did, on the clock of the host.
fn device_events(space: &XSpace, clock: HostClock) -> Vec<DeviceEvents> {
    let event = |line: &XLine, event: &XEvent| {
        let ended = event.offset_ps.checked_add(event.duration_ps.max(0))?;
        let label = Label { category: "device", name: Name::Shared(event.name.clone()) };
        Some(Event { label, begun: clock.at(line, event.offset_ps)?, ended: clock.at(line, ended)? })
    };
    let stream = |(index, line): (usize, &XLine)| {
        let events: Vec<Event> = line.events.iter().filter_map(|e| event(line, e)).collect();
        let dropped = (line.events.len() - events.len()) as u64;
        let name = if line.name.is_empty() { format!("line {}", line.id) } else { line.name.clone() };
        // Ids of lines may be negative, and those of Perfetto's threads may not.
        ThreadEvents { id: index as u64 + 1, name, events, dropped }
    };
    let planes = space.devices().map(|plane| DeviceEvents {
        name: plane.name.trim_start_matches('/').to_string(),
        streams: plane.lines.iter().enumerate().map(stream).filter(|s| !s.events.is_empty()).collect(),
    });
    planes.filter(|device| !device.streams.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorpack_pjrt::XPlane;

    fn line(timestamp_ns: i64, events: Vec<XEvent>) -> XLine {
        XLine { id: 13, name: "Stream #13".into(), timestamp_ns, events }
    }

    fn event(name: &str, offset_ps: i64, duration_ps: i64) -> XEvent {
        XEvent { name: name.into(), offset_ps, duration_ps }
    }

    #[test]
    fn kernels_are_placed_on_the_clock_of_spans() {
        let clock = HostClock { instant: Instant::now(), unix: Duration::new(1_700_000_000, 5_000) };
        let plane = |name: &str, lines| XPlane { name: name.into(), lines };
        let kernels = vec![event("fusion", 2_500_999, 1_000_002), event("before", -3_000_000, 1_000)];
        let space = XSpace {
            planes: vec![
                plane("/host:CUPTI", vec![line(1_700_000_000_000_005_000, vec![event("api", 0, 1)])]),
                plane(
                    "/device:GPU:0",
                    vec![
                        line(1_700_000_000_000_005_100, kernels),
                        // Its times count from the start of the recording.
                        line(40, vec![event("relative", 60_000, 5_000)]),
                        line(0, Vec::new()),
                    ],
                ),
                plane("/device:GPU:1", Vec::new()),
            ],
            ..XSpace::default()
        };
        let devices = device_events(&space, clock);
        assert_eq!(devices.len(), 1);
        assert_eq!(devices[0].name, "device:GPU:0");
        let [first, second] = &devices[0].streams[..] else { panic!("{devices:?}") };
        let nanos = |event: &Event| {
            let at = |moment: Instant| match moment.checked_duration_since(clock.instant) {
                Some(after) => after.as_nanos() as i64,
                None => -(clock.instant.duration_since(moment).as_nanos() as i64),
            };
            (event.label.name.to_string(), at(event.begun), at(event.ended))
        };
        assert_eq!(nanos(&first.events[0]), ("fusion".into(), 2600, 3601));
        assert_eq!(nanos(&first.events[1]), ("before".into(), -2900, -2899));
        assert_eq!(nanos(&second.events[0]), ("relative".into(), 100, 105));
    }

    #[test]
    fn impossible_times_are_counted_and_left_out() {
        let events = vec![event("good", 0, 1000), event("never", i64::MAX, i64::MAX)];
        let plane = XPlane { name: "/device:TPU:0".into(), lines: vec![line(i64::MAX, events)] };
        let space = XSpace { planes: vec![plane], ..XSpace::default() };
        let clock = HostClock { instant: Instant::now(), unix: Duration::from_secs(1_700_000_000) };
        let stream = &device_events(&space, clock)[0].streams[0];
        assert_eq!((stream.events.len(), stream.dropped), (1, 1));
    }
}
