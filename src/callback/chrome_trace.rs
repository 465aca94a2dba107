//! Timelines in the JSON format of Chrome's traces, which Perfetto reads, too.

use serde_json::json;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Instant;
use tensorpack_timeline::{Event, ThreadEvents, Timeline};

/// Writes a timeline: complete events (`ph` is `X`) with times in microseconds since the first one
/// began, and the names of threads. `process` is the number of the process, and `about` describes
/// the recording.
pub(super) fn write(
    timeline: &Timeline,
    process: usize,
    about: &BTreeMap<&str, String>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let all = || timeline.threads.iter().flat_map(|thread| &thread.events);
    let origin = all().map(|event| event.begun).fold(timeline.begun, Instant::min);
    let dropped: u64 = timeline.threads.iter().map(|thread| thread.dropped).sum();
    write!(out, "{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"dropped_events\":\"{dropped}\"")?;
    for (name, value) in about {
        write!(out, ",{}:{}", json!(name), json!(value))?;
    }
    writeln!(out, "}},\"traceEvents\":[")?;
    let name = json!({"ph": "M", "pid": process, "tid": 0, "name": "process_name",
        "args": {"name": format!("rank {process}")}});
    write!(out, "{name}")?;
    let mut threads: Vec<&ThreadEvents> = timeline.threads.iter().collect();
    threads.sort_by_key(|thread| thread.id);
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
    writeln!(out, "\n]}}")
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
        write(&timeline, 3, &BTreeMap::from([("steps", "1 to 2".into())]), &mut text).unwrap();
        let trace: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(trace["otherData"]["dropped_events"], "2");
        assert_eq!(trace["otherData"]["steps"], "1 to 2");
        let events = trace["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), 4);
        assert_eq!(events[1]["args"]["name"], "tower0-1");
        let [outer, inner] = [&events[2], &events[3]];
        assert_eq!((&outer["name"], &inner["name"]), (&json!("outer"), &json!("in \"quotes\"\n")));
        assert_eq!((&outer["ts"], &outer["dur"]), (&json!(1.5), &json!(2.5)));
        assert_eq!((&inner["ts"], &inner["dur"], &inner["tid"]), (&json!(1.5), &json!(1.25), &json!(7)));
    }
}
