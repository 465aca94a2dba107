//! The directory of a run, as its readers see it: `manifest.json`, `stats.jsonl`, `steps.jsonl`.

use crate::warning::warn;
use std::fs;
use std::io::ErrorKind as IoError;
use std::path::{Path, PathBuf};
use tensorpack::serde_json::{self, Map, Value};
use tensorpack::{Error, ErrorKind, Result};

/// A run on disk.
pub(crate) struct Run {
    pub(crate) dir: PathBuf,
    /// The starts in its manifest, oldest first. Older versions wrote no manifest.
    pub(crate) starts: Vec<Value>,
    /// The lines of `stats.jsonl`.
    pub(crate) stats: Vec<Map<String, Value>>,
    /// The lines of `steps.jsonl`.
    pub(crate) steps: Vec<Map<String, Value>>,
}

/// A point of a statistic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) epoch: u64,
    pub(crate) step: u64,
    pub(crate) value: f64,
}

/// The keys of a line that are no statistics.
const MOMENT: [&str; 2] = ["epoch_num", "global_step"];

impl Run {
    /// Returns whether a directory is that of a run.
    fn is_at(dir: &Path) -> bool {
        ["manifest.json", "stats.jsonl"].iter().any(|file| dir.join(file).is_file())
            && !dir.join("tensors.safetensors").exists()
    }

    /// Reads a run.
    pub(crate) fn read(dir: &Path) -> Result<Run> {
        if !Run::is_at(dir) {
            let why = format!("{} is not the directory of a run", dir.display());
            return Err(Error::argument(why).note("it has neither manifest.json nor stats.jsonl"));
        }
        let manifest = match text(&dir.join("manifest.json"))? {
            Some(text) => serde_json::from_str(&text).map_err(|e| {
                Error::new(ErrorKind::Io, e.to_string()).within(dir.join("manifest.json").display())
            })?,
            None => Value::Null,
        };
        Ok(Run {
            starts: manifest["starts"].as_array().cloned().unwrap_or_default(),
            stats: lines(&dir.join("stats.jsonl"))?,
            steps: lines(&dir.join("steps.jsonl"))?,
            dir: dir.into(),
        })
    }

    /// Reads the runs in these directories and below them, sorted by path. Those that cannot be read
    /// are warnings. Returns an error if there is no other.
    pub(crate) fn find(dirs: &[PathBuf]) -> Result<Vec<Run>> {
        let mut found = Vec::new();
        for dir in dirs {
            search(dir, 4, &mut found)?;
        }
        found.sort();
        found.dedup();
        if found.is_empty() {
            let dirs: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
            return Err(Error::argument(format!("there is no run in {}", dirs.join(", "))));
        }
        let (mut runs, mut first_error) = (Vec::new(), None);
        for dir in &found {
            match Run::read(dir) {
                Ok(run) => runs.push(run),
                Err(e) if found.len() == 1 => return Err(e),
                Err(e) => {
                    warn(format_args!("warning: {} is left out: {e}", dir.display()));
                    first_error.get_or_insert(e);
                }
            }
        }
        match first_error {
            Some(e) if runs.is_empty() => Err(e),
            _ => Ok(runs),
        }
    }

    /// Returns the path as text.
    pub(crate) fn name(&self) -> String {
        self.dir.display().to_string()
    }

    /// Returns the last epoch and step that has statistics.
    pub(crate) fn progress(&self) -> (u64, u64) {
        let last = |lines: &[Map<String, Value>]| lines.last().map_or((0, 0), moment);
        last(&self.stats).max(last(&self.steps))
    }

    /// Returns the names of the statistics of epochs, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        names(&self.stats)
    }

    /// Returns the names of the curves over steps, in order.
    pub(crate) fn curve_names(&self) -> Vec<String> {
        names(&self.steps)
    }

    /// Returns the points of a statistic of epochs.
    pub(crate) fn statistic(&self, name: &str) -> Vec<Point> {
        points(&self.stats, name)
    }

    /// Returns the points of a curve over steps.
    pub(crate) fn curve(&self, name: &str) -> Vec<Point> {
        points(&self.steps, name)
    }
}

fn names(lines: &[Map<String, Value>]) -> Vec<String> {
    let all = lines.iter().flat_map(|line| line.keys());
    let mut names: Vec<String> = all.filter(|name| !MOMENT.contains(&name.as_str())).cloned().collect();
    names.sort();
    names.dedup();
    names
}

fn points(lines: &[Map<String, Value>], name: &str) -> Vec<Point> {
    let point = |line: &Map<String, Value>| {
        let (epoch, step) = moment(line);
        Some(Point { epoch, step, value: float(line.get(name)?)? })
    };
    lines.iter().filter_map(point).collect()
}

fn moment(line: &Map<String, Value>) -> (u64, u64) {
    let number = |key: &str| line.get(key).and_then(Value::as_u64).unwrap_or(0);
    (number(MOMENT[0]), number(MOMENT[1]))
}

/// Returns a number. NaN and infinities are strings in JSON lines.
fn float(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.parse().ok())
}

/// Returns the text of a file, if it exists.
fn text(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == IoError::NotFound => Ok(None),
        Err(e) => Err(Error::from(e).within(path.display())),
    }
}

/// Returns the objects of a file of JSON lines. Its last line may be incomplete: a run may be
/// writing it.
fn lines(path: &Path) -> Result<Vec<Map<String, Value>>> {
    let text = text(path)?.unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let parse = |(i, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|e| {
            Error::new(ErrorKind::Io, e.to_string()).within(format!("{}:{}", path.display(), i + 1))
        })
    };
    whole.lines().enumerate().map(parse).collect()
}

/// Adds the runs in a directory, down to a depth.
fn search(dir: &Path, depth: u32, found: &mut Vec<PathBuf>) -> Result<()> {
    if Run::is_at(dir) {
        found.push(dir.into());
    }
    let entries = fs::read_dir(dir).map_err(|e| Error::from(e).within(dir.display()))?;
    for entry in entries {
        let entry = entry?;
        let is_inside = !entry.file_name().to_string_lossy().starts_with("checkpoints");
        if depth > 0
            && is_inside
            && entry.file_type()?.is_dir()
            && let Err(e) = search(&entry.path(), depth - 1, found)
        {
            // Another user's, or one that was removed meanwhile.
            warn(format_args!("warning: {e}"));
        }
    }
    Ok(())
}
