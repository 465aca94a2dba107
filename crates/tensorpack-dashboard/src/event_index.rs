//! Indexes TensorBoard's event files: where images, histograms and the graph are, and when each
//! step happened. Scalars are read from the JSON lines instead.

use crate::line_file::identity;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use tensorpack_protobuf::{Field, Fields, Malformed};

/// The largest record that is read. Larger ones are skipped.
const MAX_RECORD: u64 = 64 << 20;
/// The most images and histograms of a run. Later ones are left out.
const MAX_ENTRIES: usize = 50_000;
/// The least time between two steps whose times are kept, in seconds.
const MIN_INTERVAL: f64 = 0.5;
/// The most bytes that one call reads, so that a large file shows up piece by piece.
const MAX_READ: u64 = 64 << 20;

/// The index of all event files of a run.
#[derive(Debug, Default)]
pub(crate) struct EventIndex {
    files: BTreeMap<String, EventFile>,
    /// What a reader sees after dropping the events that a restart has written again.
    entries: Vec<Entry>,
    times: Vec<(u64, f64)>,
    graph: Option<Place>,
}

/// The part of a file that is indexed.
#[derive(Debug, Default)]
struct EventFile {
    offset: u64,
    identity: (u64, u64),
    /// Whether the rest of the file cannot be read.
    damaged: bool,
    events: Vec<Event>,
    /// When steps happened, at most two per second.
    times: Vec<(u64, f64)>,
}

#[derive(Clone, Debug)]
enum Event {
    Start { step: u64 },
    Graph(Place),
    Entry(Entry),
}

/// A range of bytes of an event file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The name of the file.
    pub(crate) file: String,
    /// The position of the first byte.
    pub(crate) offset: u64,
    /// The number of bytes.
    pub(crate) len: usize,
}

/// What an entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A PNG or JPEG file.
    Image {
        /// The width in pixels.
        width: u32,
        /// The height in pixels.
        height: u32,
    },
    /// A `HistogramProto` message.
    Histogram,
}

/// An image or a histogram.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    /// The name.
    pub(crate) tag: String,
    /// The global step.
    pub(crate) step: u64,
    /// Seconds since 1970.
    pub(crate) seconds: f64,
    /// What it holds.
    pub(crate) kind: Kind,
    /// Where its bytes are.
    pub(crate) place: Place,
}

/// A histogram: the upper limit and the number of values of each bucket, and the smallest and
/// largest value.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Histogram {
    /// The smallest value.
    pub(crate) min: f64,
    /// The largest value.
    pub(crate) max: f64,
    /// The upper limits of the buckets.
    pub(crate) limits: Vec<f64>,
    /// The number of values in each bucket.
    pub(crate) counts: Vec<f64>,
}

impl EventIndex {
    /// Returns the images and histograms, in the order of their steps.
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns when steps happened: step and seconds since 1970, both ascending.
    pub(crate) fn times(&self) -> &[(u64, f64)] {
        &self.times
    }

    /// Returns where the graph is, a `GraphDef` message.
    pub(crate) fn graph(&self) -> Option<&Place> {
        self.graph.as_ref()
    }

    /// Reads what is new in the files with these names, which `open` opens. Returns whether
    /// anything has changed, and whether there may be more to read.
    pub(crate) fn update(
        &mut self,
        names: &[String],
        mut open: impl FnMut(&str) -> io::Result<File>,
    ) -> (bool, bool) {
        let before = self.files.len();
        self.files.retain(|name, _| names.contains(name));
        let (mut changed, mut more) = (self.files.len() != before, false);
        for name in names {
            let file = self.files.entry(name.clone()).or_default();
            // A file that cannot be read now may be readable later.
            let Ok(opened) = open(name) else { continue };
            let read = file.read(name, opened).unwrap_or((false, false));
            changed |= read.0;
            more |= read.1;
        }
        if changed {
            self.collect();
        }
        (changed, more)
    }

    /// Joins the files. A start at step `s` says that all earlier events of steps from `s` on are
    /// obsolete.
    fn collect(&mut self) {
        self.entries.clear();
        self.times.clear();
        self.graph = None;
        for file in self.files.values() {
            self.times.retain(|t| file.starts().all(|step| t.0 < step));
            let last = self.times.last().copied().unwrap_or((0, 0.0));
            let later =
                file.times.iter().filter(|t| self.times.is_empty() || (t.0 > last.0 && t.1 >= last.1));
            let later: Vec<_> = later.copied().collect();
            self.times.extend(later);
        }
        for event in self.files.values().flat_map(|f| &f.events) {
            match event {
                &Event::Start { step } => self.entries.retain(|e| e.step < step),
                Event::Graph(place) => self.graph = Some(place.clone()),
                Event::Entry(entry) => self.entries.push(entry.clone()),
            }
        }
        self.entries.sort_by_key(|e| e.step);
    }
}

impl EventFile {
    /// Returns the steps at which this file says that training began.
    fn starts(&self) -> impl Iterator<Item = u64> {
        self.events.iter().filter_map(|e| match e {
            &Event::Start { step } => Some(step),
            _ => None,
        })
    }

    /// Reads the records that were appended. Returns whether anything has changed, and whether
    /// there may be more.
    fn read(&mut self, name: &str, file: File) -> io::Result<(bool, bool)> {
        let metadata = file.metadata()?;
        let mut changed = false;
        if self.offset > metadata.len() || (self.offset > 0 && self.identity != identity(&metadata)) {
            *self = EventFile::default();
            changed = true;
        }
        self.identity = identity(&metadata);
        if self.damaged || self.offset == metadata.len() {
            return Ok((changed, false));
        }
        let mut reader = BufReader::with_capacity(1 << 18, file);
        reader.seek(SeekFrom::Start(self.offset))?;
        let (begin, mut data) = (self.offset, Vec::new());
        loop {
            let mut header = [0; 12];
            // A record ends with a checksum of 4 bytes.
            if metadata.len() - self.offset < 16 {
                return Ok((changed, false));
            }
            reader.read_exact(&mut header)?;
            let (length, checksum) = header.split_at(8);
            if masked_crc(length) != little_endian_u32(checksum) {
                self.damaged = true;
                return Ok((true, false));
            }
            let length = u64::from_le_bytes(std::array::from_fn(|i| length[i]));
            if length > metadata.len() - self.offset - 16 {
                // The rest is still being written.
                return Ok((changed, false));
            }
            let at = self.offset + 12;
            self.offset = at + length + 4;
            changed = true;
            if length > MAX_RECORD {
                reader.seek(SeekFrom::Start(self.offset))?;
                continue;
            }
            data.clear();
            (&mut reader).take(length + 4).read_to_end(&mut data)?;
            let Some((record, checksum)) = data.split_last_chunk::<4>() else { continue };
            if masked_crc(record) == u32::from_le_bytes(*checksum) {
                // A damaged message is skipped. The framing is whole, so the next one is found.
                let _ = self.index(name, record, at);
            }
            if self.offset - begin > MAX_READ {
                return Ok((changed, true));
            }
        }
    }

    /// Adds an `Event` message whose first byte is at `at` in the file.
    fn index(&mut self, name: &str, record: &[u8], at: u64) -> Result<(), Malformed> {
        let (mut step, mut seconds) = (0, 0.0);
        let place = |part: &[u8]| Place {
            file: name.to_string(),
            offset: at + (part.as_ptr().addr() - record.as_ptr().addr()) as u64,
            len: part.len(),
        };
        for field in Fields::new(record) {
            match field? {
                (1, Field::I64(bytes)) => seconds = f64::from_le_bytes(bytes),
                (2, value) => step = value.int64()?.max(0) as u64,
                (4, graph) => self.events.push(Event::Graph(place(graph.bytes()?))),
                (5, summary) => {
                    let last = self.times.last().copied();
                    if last.is_none_or(|(s, t)| step > s && seconds - t >= MIN_INTERVAL)
                        && seconds.is_finite()
                    {
                        self.times.push((step, seconds));
                    }
                    for value in Fields::new(summary.bytes()?) {
                        let (1, value) = value? else { continue };
                        let Some((tag, kind, bytes)) = entry(value.bytes()?)? else { continue };
                        if self.events.len() < MAX_ENTRIES {
                            let place = place(bytes);
                            self.events.push(Event::Entry(Entry { tag, step, seconds, kind, place }));
                        }
                    }
                }
                (7, log) => {
                    let started = Fields::new(log.bytes()?).flatten().any(|f| f == (1, Field::Varint(1)));
                    if started {
                        self.times.retain(|t| t.0 < step);
                        self.events.push(Event::Start { step });
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The tag of a `Summary.Value`, and the bytes of its image file or histogram.
type Value<'a> = (String, Kind, &'a [u8]);

/// Reads a `Summary.Value`. Returns `None` for a scalar.
fn entry(value: &[u8]) -> Result<Option<Value<'_>>, Malformed> {
    let (mut tag, mut found) = ("", None);
    for field in Fields::new(value) {
        match field? {
            (1, name) => tag = name.string()?,
            (4, image) => {
                let (mut width, mut height, mut file) = (0, 0, &[][..]);
                for field in Fields::new(image.bytes()?) {
                    match field? {
                        (1, n) => height = n.int64()? as u32,
                        (2, n) => width = n.int64()? as u32,
                        (4, bytes) => file = bytes.bytes()?,
                        _ => {}
                    }
                }
                found = Some((Kind::Image { width, height }, file));
            }
            (5, histogram) => found = Some((Kind::Histogram, histogram.bytes()?)),
            _ => {}
        }
    }
    Ok(found.map(|(kind, bytes)| (tag.to_string(), kind, bytes)))
}

/// Reads the bytes of a place.
pub(crate) fn read_place(mut file: File, place: &Place) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(place.offset))?;
    let mut bytes = Vec::new();
    // `len` is that of a record that was read whole.
    file.take(place.len as u64).read_to_end(&mut bytes)?;
    if bytes.len() == place.len { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Reads a `HistogramProto`.
pub(crate) fn histogram(message: &[u8]) -> Result<Histogram, Malformed> {
    let mut h = Histogram::default();
    for field in Fields::new(message) {
        match field? {
            (1, Field::I64(bytes)) => h.min = f64::from_le_bytes(bytes),
            (2, Field::I64(bytes)) => h.max = f64::from_le_bytes(bytes),
            (6, limits) => limits.extend_double(&mut h.limits)?,
            (7, counts) => counts.extend_double(&mut h.counts)?,
            _ => {}
        }
    }
    let n = h.limits.len().min(h.counts.len());
    h.limits.truncate(n);
    h.counts.truncate(n);
    Ok(h)
}

/// The checksum of the framing: a rotated CRC-32C plus a constant.
pub(crate) fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn little_endian_u32(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |n, &b| n << 8 | u32::from(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;
    use tensorpack_protobuf::Message;

    fn record(event: Message) -> Vec<u8> {
        let data = event.into_bytes();
        let length = (data.len() as u64).to_le_bytes();
        let parts =
            [&length[..], &masked_crc(&length).to_le_bytes(), &data, &masked_crc(&data).to_le_bytes()];
        parts.concat()
    }

    fn event(step: i64) -> Message {
        Message::new().double(1, 1000.0 + step as f64).int64(2, step)
    }

    fn image(step: i64, file: &[u8]) -> Vec<u8> {
        let image = Message::new().int64(1, 2).int64(2, 3).int64(3, 1).bytes(4, file);
        let value = Message::new().string(1, "digits").message(4, &image);
        record(event(step).message(5, &Message::new().message(1, &value)))
    }

    fn start(step: i64) -> Vec<u8> {
        record(event(step).message(7, &Message::new().int64(1, 1)))
    }

    fn update(index: &mut EventIndex, dir: &Path) -> bool {
        let mut names: Vec<String> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        index.update(&names, |name| File::open(dir.join(name))).0
    }

    #[test]
    fn a_growing_file_is_indexed_record_by_record() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.1");
        let all = [image(1, b"one"), image(2, b"second")].concat();
        let mut index = EventIndex::default();
        let first = image(1, b"one").len();
        for end in 0..=all.len() {
            fs::write(&path, &all[..end]).unwrap();
            update(&mut index, dir.path());
            assert_eq!(index.entries().len(), usize::from(end >= first) + usize::from(end == all.len()));
        }
        assert!(!update(&mut index, dir.path()));
        let second = &index.entries()[1];
        assert_eq!((second.step, second.tag.as_str()), (2, "digits"));
        assert_eq!(second.kind, Kind::Image { width: 3, height: 2 });
        assert_eq!(read_place(File::open(&path).unwrap(), &second.place).unwrap(), b"second");
        assert_eq!(index.times(), [(1, 1001.0), (2, 1002.0)]);
    }

    #[test]
    fn times_of_many_steps_leave_room_for_images() {
        let dir = tempfile::tempdir().unwrap();
        let scalar = Message::new().message(1, &Message::new().string(1, "cost").float(2, 0.5));
        let point = |step: i64| {
            let seconds = 1000.0 + step as f64 * 0.001;
            record(Message::new().double(1, seconds).int64(2, step).message(5, &scalar))
        };
        let mut bytes: Vec<u8> = (1..60_000).flat_map(point).collect();
        bytes.extend(image(60_000, b"late"));
        fs::write(dir.path().join("events.1"), bytes).unwrap();
        let mut index = EventIndex::default();
        update(&mut index, dir.path());
        assert_eq!(index.entries().len(), 1);
        assert!((100..300).contains(&index.times().len()), "{}", index.times().len());
    }

    #[test]
    fn a_restart_drops_the_events_that_are_written_again() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("events.1"), [image(1, b"a"), image(2, b"b"), image(3, b"c")].concat())
            .unwrap();
        let mut index = EventIndex::default();
        update(&mut index, dir.path());
        assert_eq!(index.entries().len(), 3);
        fs::write(dir.path().join("events.2"), [start(2), image(2, b"B")].concat()).unwrap();
        update(&mut index, dir.path());
        let steps: Vec<_> = index.entries().iter().map(|e| (e.step, e.place.file.as_str())).collect();
        assert_eq!(steps, [(1, "events.1"), (2, "events.2")]);
        // A truncated file is read again.
        fs::write(dir.path().join("events.1"), b"").unwrap();
        update(&mut index, dir.path());
        assert_eq!(index.entries().len(), 1);
    }

    #[test]
    fn damaged_files_end_quietly() {
        let dir = tempfile::tempdir().unwrap();
        let good = [image(1, b"a"), image(2, b"b")].concat();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x55;
            fs::write(dir.path().join("events.1"), &bad).unwrap();
            let mut index = EventIndex::default();
            update(&mut index, dir.path());
            assert!(index.entries().len() < 2, "byte {at}");
        }
        // A length that the file cannot hold is waited for and never allocated.
        let huge = u64::MAX.to_le_bytes();
        fs::write(
            dir.path().join("events.1"),
            [&huge[..], &masked_crc(&huge).to_le_bytes(), &[0; 8]].concat(),
        )
        .unwrap();
        update(&mut EventIndex::default(), dir.path());
    }
}
