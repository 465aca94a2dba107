//! Reads timelines strictly: every field of Chrome's trace format that is written, and no other.

use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

/// A span.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) thread: String,
    pub(crate) category: String,
    pub(crate) name: String,
    /// In nanoseconds.
    pub(crate) begun: i64,
    /// In nanoseconds.
    pub(crate) ended: i64,
}

/// A timeline.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) events: Vec<Event>,
}

impl Trace {
    /// Returns the spans of this name.
    pub(crate) fn named(&self, name: &str) -> Vec<&Event> {
        self.events.iter().filter(|event| event.name == name).collect()
    }

    /// Returns the names of the spans of this category, each once.
    pub(crate) fn names(&self, category: &str) -> Vec<&str> {
        let of_category = self.events.iter().filter(|event| event.category == category);
        let mut names: Vec<&str> = of_category.map(|event| event.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

fn keys(object: &Map<String, Value>) -> Vec<&str> {
    object.keys().map(String::as_str).collect()
}

/// Reads a file, and checks that it is a trace whose spans nest on each thread.
pub(crate) fn read(path: &Path) -> Trace {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file: Value = serde_json::from_str(&text).unwrap();
    let file = file.as_object().unwrap();
    assert_eq!(keys(file), ["displayTimeUnit", "otherData", "traceEvents"]);
    assert_eq!(file["displayTimeUnit"], "ms");
    assert!(file["otherData"].as_object().unwrap().values().all(Value::is_string), "{file:?}");
    assert_eq!(file["otherData"]["dropped_events"], "0");
    // Threads are those of this process, and streams of devices, which are written as processes.
    let mut threads: BTreeMap<(u64, u64), String> = BTreeMap::new();
    // The ends of the open spans of each thread.
    let mut open: BTreeMap<(u64, u64), Vec<i64>> = BTreeMap::new();
    let mut events = Vec::new();
    for event in file["traceEvents"].as_array().unwrap() {
        let event = event.as_object().unwrap();
        let (pid, tid) = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        let thread = (pid, tid);
        assert!(pid == 0 || pid >= 1_000_000, "{event:?}");
        let name = event["name"].as_str().unwrap().to_string();
        match event["ph"].as_str().unwrap() {
            "M" => {
                assert_eq!(keys(event), ["args", "name", "ph", "pid", "tid"]);
                let text = event["args"]["name"].as_str().unwrap().to_string();
                match name.as_str() {
                    "process_name" => assert_eq!(tid, 0),
                    "thread_name" => assert!(threads.insert(thread, text).is_none(), "{tid} has two names"),
                    other => panic!("unexpected metadata {other}"),
                }
            }
            "X" => {
                assert_eq!(keys(event), ["cat", "dur", "name", "ph", "pid", "tid", "ts"]);
                let nanoseconds = |key: &str| (event[key].as_f64().unwrap() * 1000.0).round() as i64;
                let (begun, ended) = (nanoseconds("ts"), nanoseconds("ts") + nanoseconds("dur"));
                assert!(begun >= 0 && ended >= begun && !name.is_empty(), "{event:?}");
                let open = open.entry(thread).or_default();
                while open.last().is_some_and(|end| *end <= begun) {
                    open.pop();
                }
                assert!(open.last().is_none_or(|end| ended <= *end), "{event:?} is partly in another span");
                open.push(ended);
                let thread = threads.get(&thread).expect("threads are named before their spans").clone();
                let category = event["cat"].as_str().unwrap().to_string();
                events.push(Event { thread, category, name, begun, ended });
            }
            other => panic!("unexpected phase {other}"),
        }
    }
    assert!(!events.is_empty());
    Trace { events }
}
