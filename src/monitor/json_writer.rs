//! Statistics as lines of JSON.

use super::number::{from_json, to_json};
use super::{Class, Moment, Monitor, Start};
use crate::io::{Disk, RealDisk, failed};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Writes `stats.jsonl` and `timing.jsonl` in the run's directory: one object for each step or epoch in which scalars
/// were put, with `epoch_num`, `global_step`, and the scalars in the order of their names. NaN and infinities, which
/// JSON has not, are the texts `"NaN"`, `"inf"` and `"-inf"`.
///
/// `stats.jsonl` holds what the program and its seed determine: two runs of one program write the same bytes, also if
/// one was interrupted. What depends on the clock is in `timing.jsonl`.
///
/// A run that goes on cuts both to where they were at its checkpoint, and knows what was put but not yet written then. A new run moves files of an older one aside.
#[doc(alias = "JSONWriter")]
#[derive(Default)]
pub struct JsonWriter {
    stats: Stream,
    timing: Stream,
}

/// The scalars of one class, and the file they go to.
#[derive(Default)]
struct Stream {
    pending: BTreeMap<String, f64>,
    lines: Option<Lines>,
    /// The line being made, kept for its memory.
    line: String,
}

impl JsonWriter {
    /// To the run's directory.
    pub fn new() -> JsonWriter {
        JsonWriter::default()
    }

    fn write(&mut self, at: Moment) -> Result<()> {
        self.stats.write(at)?;
        self.timing.write(at)
    }
}

impl Monitor for JsonWriter {
    fn name(&self) -> String {
        "JsonWriter".into()
    }

    fn start(&mut self, start: &Start<'_>) -> Result<()> {
        let Some(dir) = start.logdir else {
            return Err(Error::argument("the run has no directory to write stats.jsonl in"));
        };
        let length = |key: &str| start.resumed.and_then(|r| r[key].as_u64());
        let pending = start.resumed.and_then(|r| r["pending"].as_object());
        let scalar = |(name, value): (&String, &Value)| Some((name.clone(), from_json(value)?));
        self.stats.pending = pending.into_iter().flatten().filter_map(scalar).collect();
        self.stats.lines = Some(Lines::open(&dir.join("stats.jsonl"), length("stats"))?);
        self.timing.lines = Some(Lines::open(&dir.join("timing.jsonl"), length("timing"))?);
        RealDisk.sync_dir(dir).map_err(failed("write", dir))
    }

    fn scalar(&mut self, name: &str, value: f64, class: Class, _: Moment) -> Result<()> {
        let stream = match class {
            Class::Deterministic => &mut self.stats,
            Class::WallClock => &mut self.timing,
        };
        stream.pending.insert(name.to_string(), value);
        Ok(())
    }

    fn end_step(&mut self, at: Moment) -> Result<()> {
        self.write(at)
    }

    fn end_epoch(&mut self, at: Moment) -> Result<()> {
        self.write(at)
    }

    fn sync(&mut self) -> Result<()> {
        let both = [&self.stats, &self.timing];
        both.iter().filter_map(|s| s.lines.as_ref()).try_for_each(Lines::sync)
    }

    fn state(&self) -> Value {
        let length = |s: &Stream| s.lines.as_ref().map(|l| l.length);
        let pending = self.stats.pending.iter().map(|(name, &value)| (name.clone(), to_json(value)));
        json!({
            "stats": length(&self.stats),
            "timing": length(&self.timing),
            "pending": pending.collect::<Map<_, _>>(),
        })
    }
}

impl Stream {
    /// Writes what was put since the last line, if anything.
    fn write(&mut self, at: Moment) -> Result<()> {
        let Some(lines) = self.lines.as_mut().filter(|_| !self.pending.is_empty()) else { return Ok(()) };
        self.line.clear();
        let start = write!(self.line, r#"{{"epoch_num":{},"global_step":{}"#, at.epoch_num, at.global_step);
        let line = self.pending.iter().fold(start, |written, (name, &value)| {
            written.and_then(|()| write!(self.line, ",{}:{}", json!(name), to_json(value)))
        });
        line.and_then(|()| self.line.write_str("}\n")).expect("text in memory can always grow");
        self.pending.clear();
        lines.append(self.line.as_bytes())
    }
}

/// A file of lines that is only appended to.
struct Lines {
    path: PathBuf,
    file: File,
    /// Bytes of whole lines.
    length: u64,
}

impl Lines {
    /// The file, cut to `length` where a run goes on; otherwise a new one.
    fn open(path: &Path, length: Option<u64>) -> Result<Lines> {
        if length.is_none() {
            move_aside(path)?;
        }
        let open = || {
            let mut file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
            let there = file.metadata()?.len();
            let length = length.unwrap_or(0);
            let whole = if there >= length { length } else { whole_lines(&mut file)? };
            if there < length {
                log::warn!("{} has lost {} bytes since the checkpoint", path.display(), length - whole);
            }
            file.set_len(whole)?;
            file.seek(SeekFrom::Start(whole))?;
            Ok(Lines { path: path.to_path_buf(), file, length: whole })
        };
        open().map_err(failed("open", path))
    }

    fn append(&mut self, line: &[u8]) -> Result<()> {
        self.file.write_all(line).map_err(|e| {
            // Half a line would spoil the file for its readers. If that fails too, the first error says enough.
            let _ = self.file.set_len(self.length);
            failed("write", &self.path)(e)
        })?;
        self.length += line.len() as u64;
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(failed("write", &self.path))
    }
}

/// How many bytes of a file are whole lines.
fn whole_lines(file: &mut File) -> std::io::Result<u64> {
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    Ok(text.iter().rposition(|&b| b == b'\n').map_or(0, |at| at as u64 + 1))
}

/// Gives a file of an older run the first free of the names `stats.jsonl.1`, `stats.jsonl.2` and so on.
fn move_aside(path: &Path) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let numbered = |n: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{n}"));
        PathBuf::from(name)
    };
    let Some(aside) = (1..).map(numbered).find(|p| !p.exists()) else {
        return Err(Error::new(ErrorKind::Io, format!("{} cannot be moved aside", path.display())));
    };
    log::info!("{} of an older run is moved to {}", path.display(), aside.display());
    fs::rename(path, &aside).map_err(failed("move aside", path))
}
