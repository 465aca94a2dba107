//! Writes statistics as comma-separated values.

use super::append_file::AppendFile;
use super::lines_file::open;
use super::number::{from_json, to_json};
use super::{Class, Moment, Monitor, Start};
use crate::io::{Disk, RealDisk, failed};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use tensorpack_tensor::{Error, Result};

/// Writes `stats.csv` in the log directory, for spreadsheets and data frames: the header
/// `epoch_num,global_step,name,value`, then one row per scalar, sorted by name within a step or
/// epoch. Not a number and infinities are `NaN`, `inf` and `-inf`.
///
/// It has what `stats.jsonl` has: scalars that depend on the clock are left out, and an interrupted
/// run writes the same bytes as an uninterrupted one.
#[derive(Default)]
pub struct CsvWriter {
    pending: BTreeMap<String, f64>,
    file: Option<AppendFile>,
}

impl CsvWriter {
    /// Writes to the log directory.
    pub fn new() -> CsvWriter {
        CsvWriter::default()
    }

    fn write(&mut self, at: Moment) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        for (name, value) in std::mem::take(&mut self.pending) {
            let Moment { epoch_num, global_step } = at;
            let row = format!("{epoch_num},{global_step},{},{value}\n", field(&name));
            file.append(row.as_bytes());
        }
        file.flush()
    }
}

/// Quotes a field if it needs quotes.
fn field(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.into(),
    }
}

impl Monitor for CsvWriter {
    fn name(&self) -> String {
        "CsvWriter".into()
    }

    fn start(&mut self, start: &Start<'_>) -> Result<()> {
        let Some(dir) = start.logdir else {
            return Err(Error::argument("CsvWriter needs a log directory, but the run has none"));
        };
        let mut file = open(&dir.join("stats.csv"), start.resumed.and_then(|r| r["length"].as_u64()))?;
        if let Some(saved) = start.resumed {
            file.append(saved["waiting"].as_str().unwrap_or_default().as_bytes());
            let pending = saved["pending"].as_object().into_iter().flatten();
            self.pending = pending.filter_map(|(name, x)| Some((name.clone(), from_json(x)?))).collect();
        }
        if file.written() == 0 && file.waiting().is_empty() {
            file.append(b"epoch_num,global_step,name,value\n");
        }
        file.flush()?;
        self.file = Some(file);
        RealDisk.sync_dir(dir).map_err(failed("write", dir))
    }

    fn scalar(&mut self, name: &str, value: f64, class: Class, _: Moment) -> Result<()> {
        if class == Class::Deterministic {
            self.pending.insert(name.to_string(), value);
        }
        Ok(())
    }

    fn end_step(&mut self, at: Moment) -> Result<()> {
        self.write(at)
    }

    fn end_epoch(&mut self, at: Moment) -> Result<()> {
        self.write(at)
    }

    fn sync(&mut self) -> Result<()> {
        self.file.as_mut().map_or(Ok(()), AppendFile::sync)
    }

    fn finish(&mut self) -> Result<()> {
        self.file.as_mut().map_or(Ok(()), AppendFile::flush)
    }

    fn state(&self) -> Value {
        let waiting = self.file.as_ref().map_or(&[][..], AppendFile::waiting);
        let pending = self.pending.iter().map(|(name, &value)| (name.clone(), to_json(value)));
        json!({
            "length": self.file.as_ref().map(AppendFile::written),
            "waiting": String::from_utf8_lossy(waiting),
            "pending": pending.collect::<Map<_, _>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_with_separators_are_quoted() {
        assert_eq!(field("fc/W-rms"), "fc/W-rms");
        assert_eq!(field("a,b"), "\"a,b\"");
        assert_eq!(field("a\"b"), "\"a\"\"b\"");
    }
}
