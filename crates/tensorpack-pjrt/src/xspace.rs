//! What a profiler has recorded: a message `XSpace` (`tsl/profiler/protobuf/xplane.proto`).

use std::collections::BTreeMap;
use std::sync::Arc;
use tensorpack_protobuf::{Field, Fields, Malformed};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The recordings of devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XSpace {
    /// One per device, and others for the host.
    pub planes: Vec<XPlane>,
    /// What kept the profiler from recording.
    pub errors: Vec<String>,
    /// What may be missing.
    pub warnings: Vec<String>,
}

/// The recording of one device, called `/device:KIND:INDEX`, or of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XPlane {
    /// Its name.
    pub name: String,
    /// Its streams or threads.
    pub lines: Vec<XLine>,
}

/// A stream of a device, or a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XLine {
    /// A number that is unique in the plane.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// When it begins, in nanoseconds since 1970.
    pub timestamp_ns: i64,
    /// Its events. Those that a profiler only counts are left out.
    pub events: Vec<XEvent>,
}

/// A kernel, a copy, or another operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XEvent {
    /// Its name.
    pub name: Arc<str>,
    /// When it begins, in picoseconds after the beginning of its line.
    pub offset_ps: i64,
    /// How long it takes, in picoseconds.
    pub duration_ps: i64,
}

impl XSpace {
    /// Parses a serialized message.
    pub fn parse(bytes: &[u8]) -> Result<XSpace> {
        // XLA's own plugins append a zero byte, which no message can end with at that place.
        let parsed = match (parse(bytes), bytes.strip_suffix(&[0])) {
            (Err(_), Some(shorter)) => parse(shorter),
            (parsed, _) => parsed,
        };
        parsed.map_err(|e| Error::new(ErrorKind::Data, format!("not a recording of a profiler: {e}")))
    }

    /// Returns the planes of devices.
    pub fn devices(&self) -> impl Iterator<Item = &XPlane> {
        self.planes.iter().filter(|plane| plane.name.starts_with("/device:"))
    }
}

fn parse(bytes: &[u8]) -> Result<XSpace, Malformed> {
    let mut space = XSpace::default();
    for field in Fields::new(bytes) {
        match field? {
            (1, plane) => space.planes.push(parse_plane(plane.bytes()?)?),
            (2, error) => space.errors.push(text(error)?),
            (3, warning) => space.warnings.push(text(warning)?),
            _ => {}
        }
    }
    Ok(space)
}

fn parse_plane(bytes: &[u8]) -> Result<XPlane, Malformed> {
    let mut plane = XPlane::default();
    let mut names: BTreeMap<i64, Arc<str>> = BTreeMap::new();
    let mut lines = Vec::new();
    for field in Fields::new(bytes) {
        match field? {
            (2, name) => plane.name = text(name)?,
            // The names of its events may follow it.
            (3, line) => lines.push(line.bytes()?),
            (4, entry) => names.extend(parse_event_metadata(entry.bytes()?)?),
            _ => {}
        }
    }
    plane.lines = lines.into_iter().map(|line| parse_line(line, &names)).collect::<Result<_, _>>()?;
    Ok(plane)
}

/// Parses an entry of a plane's `event_metadata`: the id and the name of some of its events.
fn parse_event_metadata(entry: &[u8]) -> Result<Option<(i64, Arc<str>)>, Malformed> {
    let (mut id, mut name, mut display_name) = (0, String::new(), String::new());
    for field in Fields::new(entry) {
        match field? {
            (1, key) => id = key.int64()?,
            (2, metadata) => {
                for field in Fields::new(metadata.bytes()?) {
                    match field? {
                        (2, value) => name = text(value)?,
                        (4, value) => display_name = text(value)?,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    let name = if display_name.is_empty() { name } else { display_name };
    Ok((!name.is_empty()).then(|| (id, name.into())))
}

fn parse_line(bytes: &[u8], names: &BTreeMap<i64, Arc<str>>) -> Result<XLine, Malformed> {
    let (mut line, mut display_name) = (XLine::default(), String::new());
    for field in Fields::new(bytes) {
        match field? {
            (1, id) => line.id = id.int64()?,
            (2, name) => line.name = text(name)?,
            (3, timestamp) => line.timestamp_ns = timestamp.int64()?,
            (4, event) => line.events.extend(parse_event(event.bytes()?, names)?),
            (11, name) => display_name = text(name)?,
            _ => {}
        }
    }
    if !display_name.is_empty() {
        line.name = display_name;
    }
    Ok(line)
}

/// Parses an event. Returns `None` if it has no time, only a number of occurrences.
fn parse_event(bytes: &[u8], names: &BTreeMap<i64, Arc<str>>) -> Result<Option<XEvent>, Malformed> {
    let (mut metadata_id, mut offset_ps, mut duration_ps, mut is_counter) = (0, 0, 0, false);
    for field in Fields::new(bytes) {
        match field? {
            (1, value) => metadata_id = value.int64()?,
            (2, value) => offset_ps = value.int64()?,
            (3, value) => duration_ps = value.int64()?,
            (5, _) => is_counter = true,
            _ => {}
        }
    }
    let name = || names.get(&metadata_id).cloned().unwrap_or_else(|| format!("event {metadata_id}").into());
    Ok((!is_counter).then(|| XEvent { name: name(), offset_ps, duration_ps }))
}

/// Returns a string. Names of kernels that are not UTF-8 stay readable.
fn text(field: Field<'_>) -> Result<String, Malformed> {
    Ok(String::from_utf8_lossy(field.bytes()?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by JAX's profiler; `tests/golden/make_xspace.py` describes it.
    const RECORDING: &[u8] = include_bytes!("../tests/golden/cpu.xplane.pb");

    #[test]
    fn a_recording_of_jax_has_the_events_that_jax_reads() {
        let mut expected: Vec<Vec<String>> = include_str!("../tests/golden/cpu.tsv")
            .lines()
            .map(|line| line.split('\t').map(str::to_string).collect())
            .collect();
        let space = XSpace::parse(RECORDING).unwrap();
        let mut found: Vec<Vec<String>> = Vec::new();
        for plane in &space.planes {
            for line in &plane.lines {
                for event in &line.events {
                    let begun = line.timestamp_ns + event.offset_ps / 1000;
                    let numbers = [begun.to_string(), (event.duration_ps / 1000).to_string()];
                    let names = [plane.name.clone(), line.name.clone(), event.name.to_string()];
                    found.push(names.into_iter().chain(numbers).collect());
                }
            }
        }
        expected.sort();
        found.sort();
        assert!(expected.len() > 10);
        assert_eq!(found, expected);
        assert_eq!(space.devices().count(), 0);
    }

    #[test]
    fn a_damaged_recording_is_an_error() {
        let ends = (0..RECORDING.len()).filter(|end| XSpace::parse(&RECORDING[..*end]).is_ok()).count();
        // Only where one plane ends and another begins.
        assert!(ends < 8, "{ends}");
        assert!(XSpace::parse(&[0xff; 40]).unwrap_err().message().contains("not a recording"));
        assert_eq!(XSpace::parse(&[]).unwrap(), XSpace::default());
    }
}
