//! A run: its log directory, and what was read from it.

use crate::confined::Roots;
use crate::event_index::EventIndex;
use crate::line_file::{Change, LineFile};
use crate::run_status::{self, Status};
use crate::table::{Column, Table};
use serde_json::{Map, Value, json};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{SystemTime, UNIX_EPOCH};

/// A run.
#[derive(Debug)]
pub(crate) struct Run {
    /// What requests call it.
    pub(crate) id: String,
    /// Its path below the folder it was found in.
    pub(crate) name: String,
    /// The log directory, with all links resolved.
    pub(crate) dir: PathBuf,
    data: RwLock<RunData>,
    info: Mutex<Info>,
}

/// What the files of a run hold.
#[derive(Debug, Default)]
pub(crate) struct RunData {
    sources: [Source; 4],
    /// Images, histograms, the graph and times.
    pub(crate) events: EventIndex,
    /// The last step of each epoch, ascending in both.
    epochs: Vec<(u32, u64)>,
}

/// A file of statistics.
#[derive(Debug, Default)]
struct Source {
    file: LineFile,
    table: Table,
}

/// The files of statistics. The prefix begins the names of their statistics on the page.
const SOURCES: [(&str, &str); 4] =
    [("stats.jsonl", ""), ("steps.jsonl", "steps/"), ("timing.jsonl", "timing/"), ("log.log", "time/")];
const LOG: usize = 3;

/// What the list of runs shows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Info {
    /// What the run does.
    pub(crate) status: Status,
    /// Changes whenever anything was read.
    pub(crate) revision: u64,
    /// The last epoch and step.
    pub(crate) position: (u32, u64),
    /// When the files last changed, in seconds since 1970.
    pub(crate) changed: f64,
    /// When the first event was written, or the directory was created, in seconds since 1970.
    pub(crate) started: f64,
    /// The number of points.
    pub(crate) points: usize,
    /// The number of lines that cannot be read.
    pub(crate) damaged: u64,
    /// The names of the statistics.
    pub(crate) tags: Vec<String>,
    /// Whether there are images, histograms, a graph, a log.
    pub(crate) has: [bool; 4],
    /// Whether the files were read to their ends.
    pub(crate) complete: bool,
}

impl Run {
    /// Creates a run of which nothing was read.
    pub(crate) fn new(id: String, name: String, dir: PathBuf) -> Run {
        Run { id, name, dir, data: RwLock::default(), info: Mutex::default() }
    }

    /// Returns what was read.
    pub(crate) fn data(&self) -> RwLockReadGuard<'_, RunData> {
        // A panic in another request does not make the data unusable.
        self.data.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what the list of runs shows.
    pub(crate) fn info(&self) -> Info {
        self.lock_info().clone()
    }

    fn lock_info(&self) -> MutexGuard<'_, Info> {
        self.info.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_data(&self) -> RwLockWriteGuard<'_, RunData> {
        self.data.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a piece of what was appended to the files. Returns whether there may be more.
    pub(crate) fn update(&self, roots: &Roots, buffer: &mut Vec<u8>) -> bool {
        let (mut changed, mut more) = (false, false);
        let mut newest: Option<SystemTime> = None;
        let mut note_time = |file: &File| {
            let time = file.metadata().and_then(|m| m.modified()).ok();
            newest = newest.max(time);
        };
        let mut has_log = false;
        for (at, (name, _)) in SOURCES.iter().enumerate() {
            let opened = roots.open(&self.dir.join(name));
            let Ok(mut file) = opened else {
                // A new run has moved the file aside.
                let gone = opened.is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
                if gone && !self.data().sources[at].table.is_empty() {
                    self.write_data().sources[at] = Source::default();
                    changed = true;
                }
                continue;
            };
            note_time(&file);
            has_log |= at == LOG;
            let mut data = self.write_data();
            let source = &mut data.sources[at];
            let read = source.read(&mut file, buffer, at == LOG).unwrap_or((false, false));
            changed |= read.0;
            more |= read.1;
        }
        let names = event_files(&self.dir);
        let read = self.write_data().events.update(&names, |name| {
            let file = roots.open(&self.dir.join(name))?;
            note_time(&file);
            Ok(file)
        });
        changed |= read.0;
        more |= read.1;
        if changed {
            self.write_data().number_epochs();
        }
        let status = run_status::status(roots, &self.dir, newest);
        let data = self.data();
        let mut info = self.lock_info();
        if changed || info.status != status || info.complete == more || info.has[3] != has_log {
            *info = data.info(info.revision + 1, status, has_log);
            info.complete = !more;
            info.changed = newest.map_or(0.0, seconds);
            if info.started == 0.0 {
                let created = fs::metadata(&self.dir).and_then(|m| m.created().or_else(|_| m.modified()));
                info.started = created.map_or(0.0, seconds);
            }
        }
        more
    }

    /// Returns settings, hyper-parameters and the manifest as a flat list of names and values.
    pub(crate) fn details(&self, roots: &Roots) -> Map<String, Value> {
        let mut details = Map::new();
        if let Some(settings) = self.latest_state(roots).and_then(|mut s| Some(s.get_mut("settings")?.take()))
        {
            flatten("settings", &settings, &mut details);
        }
        if let Some(manifest) = read_json(roots, &self.dir.join("manifest.json")) {
            // The newest start says what runs now.
            match manifest["starts"].as_array().and_then(|starts| Some((starts.len(), starts.last()?))) {
                Some((count, newest)) => {
                    flatten("", newest, &mut details);
                    details.insert("starts".into(), json!(count));
                }
                None => flatten("", &manifest, &mut details),
            }
        }
        let data = self.data();
        for name in ["learning_rate", "weight_decay", "momentum", "batch_size"] {
            let column = data.sources[0].table.column(name);
            if let Some(&value) = column.and_then(|c| c.values().last()) {
                details.insert(format!("hyper-parameters/{name}"), json!(value));
            }
        }
        for (name, value) in self.hyper_params(roots) {
            details.insert(format!("hyper.txt/{name}"), json!(value));
        }
        details
    }

    /// Returns the lines of `hyper.txt`: names and values.
    pub(crate) fn hyper_params(&self, roots: &Roots) -> Vec<(String, String)> {
        let text = read_text(roots, &self.dir.join("hyper.txt"), 1 << 16).unwrap_or_default();
        let lines = text.lines().filter_map(|l| l.rsplit_once(':'));
        lines.map(|(name, value)| (name.trim().to_string(), value.trim().to_string())).collect()
    }

    /// Returns the state of the latest checkpoint, which has the settings of the run.
    fn latest_state(&self, roots: &Roots) -> Option<Value> {
        let checkpoints = self.dir.join("checkpoints");
        let latest = read_text(roots, &checkpoints.join("latest"), 512)?;
        let latest = latest.trim();
        // Only a name: `..` and separators would lead elsewhere.
        let plain = !latest.is_empty() && Path::new(latest).file_name().is_some_and(|n| n == latest);
        plain.then(|| read_json(roots, &checkpoints.join(latest).join("state.json")))?
    }
}

impl RunData {
    /// Returns the table and the column of a statistic.
    pub(crate) fn column(&self, tag: &str) -> Option<(&Table, &Column)> {
        // The longest prefix first; a statistic may itself have the name of a prefix.
        for (at, (_, prefix)) in SOURCES.iter().enumerate().rev() {
            let table = &self.sources[at].table;
            if let Some(column) = tag.strip_prefix(prefix).and_then(|name| table.column(name)) {
                return Some((table, column));
            }
        }
        None
    }

    /// Returns the names of all statistics, with their columns.
    pub(crate) fn columns(&self) -> impl Iterator<Item = (String, &Table, &Column)> {
        SOURCES.iter().zip(&self.sources).flat_map(|((_, prefix), source)| {
            source.table.columns().map(move |c| (format!("{prefix}{}", c.name()), &source.table, c))
        })
    }

    /// Returns the position of a step in epochs: 2.5 is the middle of the third epoch.
    pub(crate) fn epoch_of(&self, step: u64) -> f64 {
        let at = self.epochs.partition_point(|&(_, last)| last < step);
        let last = |at: usize| at.checked_sub(1).and_then(|i| self.epochs.get(i)).copied().unwrap_or((0, 0));
        match self.epochs.get(at) {
            Some(&(epoch, end)) => {
                let (before, begin) = last(at);
                let part = (step - begin.min(step)) as f64 / (end - begin).max(1) as f64;
                f64::from(before) + part * f64::from(epoch - before)
            }
            None => f64::from(last(self.epochs.len()).0),
        }
    }

    /// Returns when a step happened, in seconds after the first event.
    pub(crate) fn seconds_of(&self, step: u64) -> Option<f64> {
        let times = self.events.times();
        let first = times.first()?.1;
        let at = times.partition_point(|t| t.0 < step);
        let time = match (at.checked_sub(1).map(|i| times[i]), times.get(at)) {
            (Some(a), Some(&b)) => a.1 + (b.1 - a.1) * (step - a.0) as f64 / (b.0 - a.0) as f64,
            (None, Some(b)) => b.1,
            (Some(a), None) => a.1,
            (None, None) => return None,
        };
        Some(time - first)
    }

    /// Collects the last step of each epoch. The epoch that is being trained is assumed to be as
    /// long as the one before.
    fn number_epochs(&mut self) {
        let mut epochs: Vec<(u32, u64)> = Vec::new();
        // Statistics of an epoch's end are exact; the curves over steps may be ahead of them.
        let complete = last_steps(&self.sources[0].table);
        let partial = last_steps(&self.sources[1].table);
        for (epoch, step) in complete.into_iter().chain(partial) {
            if epochs.last().is_none_or(|last| last.0 < epoch && last.1 < step) {
                epochs.push((epoch, step));
            }
        }
        if let [.., before, last] = &mut epochs[..]
            && last.0 == before.0 + 1
        {
            let length = before.1 / u64::from(before.0.max(1));
            last.1 = last.1.max(before.1.saturating_add(length));
        }
        self.epochs = epochs;
    }

    fn info(&self, revision: u64, status: Status, has_log: bool) -> Info {
        let tables = self.sources[..LOG].iter().map(|s| &s.table);
        let position = tables.clone().filter_map(|t| Some((*t.epochs().last()?, *t.steps().last()?))).max();
        let entries = self.events.entries();
        let has = |image: bool| {
            entries.iter().any(|e| matches!(e.kind, crate::event_index::Kind::Image { .. }) == image)
        };
        Info {
            status,
            revision,
            position: position.unwrap_or_default(),
            started: self.events.times().first().map_or(0.0, |t| t.1),
            points: tables.clone().flat_map(Table::columns).map(|c| c.values().len()).sum(),
            damaged: tables.map(Table::damaged).sum(),
            tags: self.columns().map(|(tag, ..)| tag).collect(),
            has: [has(true), has(false), self.events.graph().is_some(), has_log],
            ..Info::default()
        }
    }
}

impl Source {
    /// Reads new lines. Returns whether anything has changed, and whether there may be more.
    fn read(&mut self, file: &mut File, buffer: &mut Vec<u8>, is_log: bool) -> io::Result<(bool, bool)> {
        let change = self.file.change(file)?;
        if change == Change::Restarted {
            self.table = Table::default();
        }
        if change == Change::None {
            return Ok((false, false));
        }
        let (before, table) = (self.table.len() as u64 + self.table.damaged(), &mut self.table);
        let more = self.file.read(file, buffer, |line| {
            if is_log { push_time_summary(table, line) } else { table.push_line(line) }
        })?;
        let read = self.table.len() as u64 + self.table.damaged() != before;
        Ok((read || change == Change::Restarted, more))
    }
}

/// Reads the line of the log that says where the time of an epoch went: `epoch 3: 6.5 s = input 4.1
/// + compute 2.3 + other 0.1; then callbacks 0.8 s`.
fn push_time_summary(table: &mut Table, line: &[u8]) {
    let Ok(line) = std::str::from_utf8(line) else { return };
    let Some((head, parts)) = line.split_once(" s = input ") else { return };
    let Some((epoch, _)) = head.rsplit_once("] epoch ").and_then(|(_, rest)| rest.split_once(": ")) else {
        return;
    };
    let Ok(epoch) = epoch.parse::<u32>() else { return };
    // The words between the numbers.
    let mut rest = parts;
    let mut values = [0.0; 4];
    for (value, end) in values.iter_mut().zip([" + compute ", " + other ", "; then callbacks ", " s"]) {
        let Some((number, after)) = rest.split_once(end) else { return };
        let Ok(number) = number.parse::<f64>() else { return };
        (*value, rest) = (number, after);
    }
    let whole: f64 = values.iter().sum();
    if whole > 0.0 && whole.is_finite() {
        let share = |at: usize| 100.0 * values[at] / whole;
        let cells = [
            ("input (%)", share(0)),
            ("compute (%)", share(1)),
            ("other (%)", share(2)),
            ("callbacks (%)", share(3)),
            ("seconds per epoch", whole),
        ];
        // The log has no step. The reader of the table takes it from the epoch.
        table.push_values(epoch, u64::MAX, &cells);
    }
}

/// Returns each epoch of a table with its last step.
fn last_steps(table: &Table) -> Vec<(u32, u64)> {
    let mut last: Vec<(u32, u64)> = Vec::new();
    for (&epoch, &step) in table.epochs().iter().zip(table.steps()) {
        match last.last_mut() {
            Some(l) if l.0 == epoch => l.1 = step,
            _ => last.push((epoch, step)),
        }
    }
    last
}

impl RunData {
    /// Returns the global step of a row. Rows of the log have only an epoch.
    pub(crate) fn step_of(&self, table: &Table, row: u32) -> u64 {
        let (step, epoch) = (table.steps()[row as usize], table.epochs()[row as usize]);
        if step != u64::MAX {
            return step;
        }
        let at = self.epochs.partition_point(|e| e.0 < epoch);
        self.epochs.get(at).or(self.epochs.last()).map_or(u64::from(epoch), |e| e.1)
    }
}

/// Returns the names of the event files in a directory, sorted.
pub(crate) fn event_files(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.filter_map(|e| e.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|n| n.starts_with("events.out.tfevents.")).collect();
    names.sort();
    names
}

/// The largest JSON file that is read as a whole.
const MAX_JSON: u64 = 32 << 20;

fn read_json(roots: &Roots, path: &Path) -> Option<Value> {
    serde_json::from_str(&read_text(roots, path, MAX_JSON)?).ok()
}

/// Reads a file of at most `limit` bytes.
pub(crate) fn read_text(roots: &Roots, path: &Path, limit: u64) -> Option<String> {
    let mut text = String::new();
    let file = roots.open(path).ok()?;
    if file.metadata().ok()?.len() > limit {
        return None;
    }
    file.take(limit).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The most entries of a flattened file.
const MAX_DETAILS: usize = 2000;

/// Adds the leaves of a JSON value, named by their paths.
fn flatten(prefix: &str, value: &Value, into: &mut Map<String, Value>) {
    if into.len() >= MAX_DETAILS {
        return;
    }
    let below = |key: &str| if prefix.is_empty() { key.to_string() } else { format!("{prefix}/{key}") };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, v)| flatten(&below(key), v, into)),
        // A command line reads best as one line.
        Value::Array(items) if items.iter().all(|i| !i.is_object() && !i.is_array()) => {
            let words = items.iter().map(|i| i.as_str().map_or(i.to_string(), str::to_string));
            into.insert(prefix.to_string(), json!(words.collect::<Vec<_>>().join(" ")));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, v)| flatten(&below(&i.to_string()), v, into));
        }
        leaf => {
            into.insert(prefix.to_string(), leaf.clone());
        }
    }
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn updated(dir: &Path) -> (Run, Roots) {
        let dir = dir.canonicalize().unwrap();
        let roots = Roots::new(std::slice::from_ref(&dir)).unwrap();
        let run = Run::new("id".into(), "name".into(), dir);
        while run.update(&roots, &mut Vec::new()) {}
        (run, roots)
    }

    #[test]
    fn epochs_are_fractions_between_their_last_steps() {
        let dir = tempfile::tempdir().unwrap();
        let line = |epoch, step| format!("{{\"epoch_num\":{epoch},\"global_step\":{step},\"cost\":1.5}}\n");
        fs::write(dir.path().join("stats.jsonl"), line(1, 10) + &line(2, 20)).unwrap();
        fs::write(dir.path().join("steps.jsonl"), line(1, 5) + &line(2, 15) + &line(3, 24)).unwrap();
        let (run, _) = updated(dir.path());
        let data = run.data();
        let epochs: Vec<f64> = [0, 5, 10, 15, 20, 25, 30].map(|step| data.epoch_of(step)).to_vec();
        assert_eq!(epochs, [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]);
        assert_eq!(run.info().position, (3, 24));
        assert_eq!(run.info().tags, ["cost", "steps/cost"]);
    }

    #[test]
    fn the_log_says_where_the_time_went() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("stats.jsonl"), "{\"epoch_num\":1,\"global_step\":93,\"cost\":1}\n")
            .unwrap();
        let log = "[1116 05:23:07 @main_loop.rs:197] epoch 1: 6.0 s = input 3.0 + compute 2.0 + \
                   other 1.0; then callbacks 2.0 s\nepoch 2: x s = input 3.0\n";
        fs::write(dir.path().join("log.log"), log).unwrap();
        let (run, _) = updated(dir.path());
        let data = run.data();
        let (table, column) = data.column("time/compute (%)").unwrap();
        assert_eq!(column.values(), [25.0]);
        assert_eq!(data.step_of(table, column.rows()[0]), 93);
    }

    #[test]
    fn details_are_flat_and_come_from_the_folder_only() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write(
            "manifest.json",
            r#"{"starts":[{"seed":1},{"arguments":["train","--seed","3"],"seed":3,"host":{"name":"a"}}]}"#,
        );
        write("hyper.txt", "learning_rate: 0.01\n");
        fs::create_dir_all(dir.path().join("checkpoints/step-1")).unwrap();
        write("checkpoints/latest", "step-1\n");
        write("checkpoints/step-1/state.json", r#"{"settings":{"device":"cpu:0"}}"#);
        let (run, roots) = updated(dir.path());
        let details = run.details(&roots);
        let value = |name: &str| details.get(name).cloned().unwrap_or_default();
        assert_eq!((value("arguments"), value("starts")), (json!("train --seed 3"), json!(2)));
        assert_eq!((value("seed"), value("host/name")), (json!(3), json!("a")));
        assert_eq!(
            (value("settings/device"), value("hyper.txt/learning_rate")),
            (json!("cpu:0"), json!("0.01"))
        );
        write("checkpoints/latest", "../checkpoints/step-1\n");
        assert!(!run.details(&roots).contains_key("settings/device"));
    }

    #[test]
    fn a_file_that_was_moved_aside_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("stats.jsonl"), "{\"epoch_num\":1,\"global_step\":1,\"cost\":1}\n")
            .unwrap();
        let (run, roots) = updated(dir.path());
        assert_eq!(run.info().points, 1);
        fs::rename(dir.path().join("stats.jsonl"), dir.path().join("stats.jsonl.1")).unwrap();
        run.update(&roots, &mut Vec::new());
        assert_eq!(run.info().points, 0);
    }
}
