//! Writes statistics as JSON lines.

use super::append_file::AppendFile;
use super::lines_file::open;
use super::number::{from_json, to_json};
use super::{Class, CurvePoints, Moment, Monitor, Start};
use crate::io::{Disk, RealDisk, failed};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use tensorpack_tensor::{Error, Result};

/// Writes `stats.jsonl` and `timing.jsonl` in the log directory: one object per step or epoch that
/// has scalars, with `epoch_num`, `global_step`, and the scalars sorted by name. NaN and
/// infinities, which JSON lacks, are the strings `"NaN"`, `"inf"` and `"-inf"`.
///
/// `steps.jsonl` has the curves over steps, such as that of the cost: one object per point, with
/// the same keys. They are written a few at a time.
///
/// `stats.jsonl` contains the deterministic scalars: two runs of one program with one seed write
/// the same bytes, even if one was interrupted. So does `steps.jsonl`. Scalars that depend on the
/// clock go to `timing.jsonl`.
///
/// A resumed run truncates the files to their lengths at the checkpoint, and restores the scalars
/// that were not yet written then. A new run moves the files of an older one aside.
///
/// If a file cannot be written, because the device is full for example, its lines wait in memory
/// and every later line tries again. Checkpoints contain the lines that wait.
#[doc(alias = "JSONWriter")]
#[derive(Default)]
pub struct JsonWriter {
    stats: Stream,
    timing: Stream,
    steps: Stream,
}

/// The scalars of one class, and the file they go to.
#[derive(Default)]
struct Stream {
    pending: BTreeMap<String, f64>,
    lines: Option<AppendFile>,
    /// The buffer of the current line, kept to reuse its memory.
    line: String,
}

impl JsonWriter {
    /// Writes to the log directory.
    pub fn new() -> JsonWriter {
        JsonWriter::default()
    }

    fn write(&mut self, at: Moment) -> Result<()> {
        self.stats.write(at)?;
        self.timing.write(at)
    }

    /// Returns the files that are open.
    fn files(&mut self) -> impl Iterator<Item = &mut AppendFile> {
        [&mut self.stats, &mut self.timing, &mut self.steps].into_iter().filter_map(|s| s.lines.as_mut())
    }
}

impl Monitor for JsonWriter {
    fn name(&self) -> String {
        "JsonWriter".into()
    }

    fn start(&mut self, start: &Start<'_>) -> Result<()> {
        let Some(dir) = start.logdir else {
            return Err(Error::argument("JsonWriter needs a log directory, but the run has none"));
        };
        let open = |file: &str, key: &str| {
            let mut lines = open(&dir.join(file), start.resumed.and_then(|r| r[key].as_u64()))?;
            let waiting = start.resumed.and_then(|r| r["waiting"][key].as_str());
            lines.append(waiting.unwrap_or_default().as_bytes());
            Ok::<_, Error>(lines)
        };
        let pending = start.resumed.and_then(|r| r["pending"].as_object());
        let scalar = |(name, value): (&String, &Value)| Some((name.clone(), from_json(value)?));
        self.stats.pending = pending.into_iter().flatten().filter_map(scalar).collect();
        self.stats.lines = Some(open("stats.jsonl", "stats")?);
        self.timing.lines = Some(open("timing.jsonl", "timing")?);
        self.steps.lines = Some(open("steps.jsonl", "steps")?);
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

    fn curve_points(&mut self, points: &CurvePoints<'_>) -> Result<()> {
        for (at, values) in points.iter() {
            self.steps.append(at, points.names().iter().map(String::as_str).zip(values.iter().copied()));
        }
        self.steps.lines.as_mut().map_or(Ok(()), AppendFile::flush)
    }

    fn end_step(&mut self, at: Moment) -> Result<()> {
        self.write(at)
    }

    fn end_epoch(&mut self, at: Moment) -> Result<()> {
        self.write(at)
    }

    fn sync(&mut self) -> Result<()> {
        self.files().try_for_each(AppendFile::sync)
    }

    fn finish(&mut self) -> Result<()> {
        self.files().try_for_each(AppendFile::flush)
    }

    fn state(&self) -> Value {
        let length = |s: &Stream| s.lines.as_ref().map(AppendFile::written);
        let waiting = |s: &Stream| {
            let lines = s.lines.as_ref().map_or(&[][..], AppendFile::waiting);
            String::from_utf8_lossy(lines).into_owned()
        };
        let pending = self.stats.pending.iter().map(|(name, &value)| (name.clone(), to_json(value)));
        json!({
            "stats": length(&self.stats),
            "timing": length(&self.timing),
            "steps": length(&self.steps),
            "pending": pending.collect::<Map<_, _>>(),
            "waiting": {
                "stats": waiting(&self.stats),
                "timing": waiting(&self.timing),
                "steps": waiting(&self.steps),
            },
        })
    }
}

impl Stream {
    /// Writes the scalars since the last line, if there are any.
    fn write(&mut self, at: Moment) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let pending = std::mem::take(&mut self.pending);
        self.append(at, pending.iter().map(|(name, &value)| (name.as_str(), value)));
        self.lines.as_mut().map_or(Ok(()), AppendFile::flush)
    }

    /// Appends a line with these scalars. The file is flushed later.
    fn append<'a>(&mut self, at: Moment, scalars: impl Iterator<Item = (&'a str, f64)>) {
        let Some(lines) = &mut self.lines else { return };
        self.line.clear();
        let start = write!(self.line, r#"{{"epoch_num":{},"global_step":{}"#, at.epoch_num, at.global_step);
        let line = scalars.fold(start, |written, (name, value)| {
            written.and_then(|()| write!(self.line, ",{}:{}", json!(name), to_json(value)))
        });
        line.and_then(|()| self.line.write_str("}\n")).expect("writing to a String does not fail");
        lines.append(self.line.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_checkpoint_contains_the_lines_that_a_full_device_refused() {
        let dir = tempfile::tempdir().unwrap();
        let start = |resumed| Start { logdir: Some(dir.path()), resumed, at: Moment::default() };
        let put = |writer: &mut JsonWriter, step| {
            let at = Moment { epoch_num: 1, global_step: step };
            writer.scalar("cost", step as f64, Class::Deterministic, at).unwrap();
            writer.end_step(at).unwrap();
        };
        let mut writer = JsonWriter::new();
        writer.start(&start(None)).unwrap();
        put(&mut writer, 1);
        writer.stats.lines.as_mut().unwrap().replace_device("/dev/full");
        put(&mut writer, 2);
        writer.sync().unwrap();
        let state = writer.state();
        drop(writer);
        let mut resumed = JsonWriter::new();
        resumed.start(&start(Some(&state))).unwrap();
        put(&mut resumed, 3);
        let stats = fs::read_to_string(dir.path().join("stats.jsonl")).unwrap();
        let steps: Vec<Value> =
            stats.lines().map(|l| serde_json::from_str::<Value>(l).unwrap()["global_step"].clone()).collect();
        assert_eq!(steps, [json!(1), json!(2), json!(3)]);
    }
}
