//! Timelines in the JSON format of Chrome's traces, which Perfetto reads, too.

use crate::runtime::DeviceEvents;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Instant;
use tensorpack_timeline::{Event, ThreadEvents, Timeline};

/// The number of the first device among processes: more than there are ranks.
const FIRST_DEVICE: usize = 1_000_000;

/// Writes a timeline: complete events (`ph` is `X`) with times in microseconds since the first one
/// began, and the names of threads. `process` is the number of the process, and `about` describes
/// the recording. Each device is written as a process of its own, whose threads are its streams.
pub(super) fn write(
    timeline: &Timeline,
    devices: &[DeviceEvents],
    process: usize,
    about: &BTreeMap<&str, String>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let all = || timeline.threads.iter().chain(devices.iter().flat_map(|device| &device.streams));
    let origin = all().flat_map(|t| &t.events).map(|event| event.begun).fold(timeline.begun, Instant::min);
    let dropped: u64 = all().map(|thread| thread.dropped).sum();
    write!(out, "{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"dropped_events\":\"{dropped}\"")?;
    for (name, value) in about {
        write!(out, ",{}:{}", json!(name), json!(value))?;
    }
    write!(out, "}},\"traceEvents\":[")?;
    let mut threads: Vec<&ThreadEvents> = timeline.threads.iter().collect();
    threads.sort_by_key(|thread| thread.id);
    write_process(process, &format!("rank {process}"), threads, origin, out)?;
    for (index, device) in devices.iter().enumerate() {
        let name = format!("rank {process}, {}", device.name);
        write!(out, ",")?;
        write_process(FIRST_DEVICE + index, &name, device.streams.iter().collect(), origin, out)?;
    }
    writeln!(out, "\n]}}")
}

/// Writes the events of a process.
fn write_process(
    process: usize,
    name: &str,
    threads: Vec<&ThreadEvents>,
    origin: Instant,
    out: &mut dyn Write,
) -> io::Result<()> {
    let name = json!({"ph": "M", "pid": process, "tid": 0, "name": "process_name", "args": {"name": name}});
    write!(out, "\n{name}")?;
    for thread in threads {
        let tid = thread.id;
        let name = json!({"ph": "M", "pid": process, "tid": tid, "name": "thread_name",
            "args": {"name": thread.name}});
        write!(out, ",\n{name}")?;
        for event in in_order(&thread.events) {
            let (begun, ended) = (event.begun.duration_since(origin), event.ended.duration_since(origin));
            // Both ends are rounded down to nanoseconds, so that nested spans stay nested.
            let (ts, end) = (begun.as_nanos(), ended.as_nanos().max(begun.as_nanos()));
            let label = &event.label;
            write!(
                out,
                ",\n{{\"ph\":\"X\",\"pid\":{process},\"tid\":{tid},\"ts\":{},\"dur\":{},\"cat\":{},\"name\":{}}}",
                Microseconds(ts),
                Microseconds(end - ts),
                json!(label.category),
                json!(label.name.to_string())
            )?;
        }
    }
    Ok(())
}

/// Returns the events ordered by their beginnings, and of those that begin together the longest
/// first: an event comes before those inside it.
fn in_order(events: &[Event]) -> Vec<&Event> {
    let mut events: Vec<&Event> = events.iter().collect();
    events.sort_by(|a, b| a.begun.cmp(&b.begun).then(b.ended.cmp(&a.ended)));
    events
}

/// Nanoseconds, written as microseconds with all digits.
struct Microseconds(u128);

impl std::fmt::Display for Microseconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::time::Duration;
    use tensorpack_timeline::{Label, Name};

    #[test]
    fn times_are_microseconds_since_the_first_event_and_names_are_escaped() {
        let begun = Instant::now();
        let event = |name: &str, from: u64, to: u64| Event {
            label: Label { category: "kernel", name: Name::Shared(name.into()) },
            begun: begun + Duration::from_nanos(from),
            ended: begun + Duration::from_nanos(to),
        };
        let events = vec![event("in \"quotes\"\n", 1500, 2750), event("outer", 1500, 4000)];
        let thread = ThreadEvents { id: 7, name: "tower0-1".into(), events, dropped: 2 };
        let timeline = Timeline { begun, threads: vec![thread] };
        let mut text = Vec::new();
        let kernel = ThreadEvents {
            id: 1,
            name: "Stream #13".into(),
            events: vec![event("fusion", 500, 600)],
            dropped: 1,
        };
        let devices = [DeviceEvents { name: "device:GPU:0".into(), streams: vec![kernel] }];
        write(&timeline, &devices, 3, &BTreeMap::from([("steps", "1 to 2".into())]), &mut text).unwrap();
        let trace: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(trace["otherData"]["dropped_events"], "3");
        assert_eq!(trace["otherData"]["steps"], "1 to 2");
        let events = trace["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), 7);
        assert_eq!(events[1]["args"]["name"], "tower0-1");
        let [outer, inner] = [&events[2], &events[3]];
        assert_eq!((&outer["name"], &inner["name"]), (&json!("outer"), &json!("in \"quotes\"\n")));
        assert_eq!((&outer["ts"], &outer["dur"]), (&json!(1.5), &json!(2.5)));
        assert_eq!((&inner["ts"], &inner["dur"], &inner["tid"]), (&json!(1.5), &json!(1.25), &json!(7)));
        assert_eq!(events[4]["args"]["name"], "rank 3, device:GPU:0");
        assert_eq!(events[5]["args"]["name"], "Stream #13");
        let kernel = &events[6];
        assert_eq!(
            (&kernel["name"], &kernel["ts"], &kernel["dur"]),
            (&json!("fusion"), &json!(0.5), &json!(0.1))
        );
        assert_eq!((&kernel["pid"], &events[4]["pid"]), (&json!(FIRST_DEVICE), &json!(FIRST_DEVICE)));
    }
}
