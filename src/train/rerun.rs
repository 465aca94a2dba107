//! Runs a part of a run again, for `tensorpack verify` and `tensorpack replay`.
//!
//! The command puts a copy of a checkpoint into a temporary directory, and starts the program of the
//! run again with [`VARIABLE`] set to a file that says what to do. The program then trains in that
//! directory, and ends when the task is done. It writes what it found to a report, a line of JSON for
//! each finding.

use super::{RunConfig, StepsPerLaunch};
use crate::callback::{Position, TrainState};
use crate::graph::Fetch;
use crate::io::{Checkpoint, failed, safetensors};
use crate::runtime::Session;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// The environment variable that names the file with the task.
const VARIABLE: &str = "TENSORPACK_RERUN";

/// What a program does instead of training.
pub(super) struct Rerun {
    /// The directory to train in, instead of that of the run.
    directory: PathBuf,
    /// The directory of the run.
    run: PathBuf,
    report: PathBuf,
    /// The options of the run, by name. Its configuration file may have changed since.
    options: Value,
    task: Task,
    /// Whether the task is done, so that training ends.
    done: AtomicBool,
}

enum Task {
    /// Compares the state with these checkpoints, in the order of training.
    Verify(VecDeque<(PathBuf, Position)>),
    /// Writes all tensors of a step to a file.
    Replay { step: u64, in_f64: bool, output: PathBuf },
}

impl Rerun {
    /// Returns the task of this process, if it has one.
    pub(super) fn from_environment() -> Result<Option<Rerun>> {
        std::env::var_os(VARIABLE).map(|file| Rerun::read(Path::new(&file))).transpose()
    }

    fn read(file: &Path) -> Result<Rerun> {
        let text = fs::read_to_string(file).map_err(failed("read", file))?;
        let task: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        let bad = |key: &str| {
            Error::argument(format!("{}, which {VARIABLE} names, has no valid {key}", file.display()))
        };
        let path = |key: &str| task[key].as_str().map(PathBuf::from).ok_or_else(|| bad(key));
        let kind = match task["task"].as_str() {
            Some("verify") => {
                let folders = task["checkpoints"].as_array().ok_or_else(|| bad("checkpoints"))?;
                let folders = folders.iter().filter_map(Value::as_str).map(PathBuf::from);
                // A run that trains removes old checkpoints.
                let folders: Vec<PathBuf> = folders.filter(|folder| folder.exists()).collect();
                if folders.is_empty() {
                    return Err(Error::argument("all checkpoints to compare were removed meanwhile")
                        .note("verify newer ones, or wait until the run has ended"));
                }
                Task::Verify(
                    folders
                        .into_iter()
                        .map(|folder| Ok((folder.clone(), position(&folder)?)))
                        .collect::<Result<_>>()?,
                )
            }
            Some("replay") => Task::Replay {
                step: task["step"].as_u64().ok_or_else(|| bad("step"))?,
                in_f64: task["f64"] == true,
                output: path("output")?,
            },
            _ => return Err(bad("task")),
        };
        let [directory, run, report] = [path("directory")?, path("run")?, path("report")?];
        let options = task["options"].clone();
        Ok(Rerun { directory, run, report, options, task: kind, done: AtomicBool::new(false) })
    }

    /// Makes a run that resumes the copied checkpoint and writes only to the temporary directory.
    /// Returns an error if it is another run of this program.
    pub(super) fn apply(self, run: &mut RunConfig) -> Result<()> {
        let directory = run.logdir.as_deref().map(std::path::absolute).transpose()?;
        if directory.as_ref() != Some(&self.run) {
            let other = directory.map_or("a run without a log directory".into(), |d| d.display().to_string());
            let why = format!("{} cannot be repeated: the program first trains {other}", self.run.display());
            return Err(Error::new(ErrorKind::Unsupported, why)
                .note("the program must train this run before any other, as it did at first"));
        }
        self.check_options(&run.options)?;
        run.logdir = Some(self.directory.clone());
        run.fresh = false;
        // Monitors may write elsewhere. The history of statistics, which callbacks read, stays.
        run.monitors = Some(Vec::new());
        // Results do not depend on it.
        run.steps_per_launch = StepsPerLaunch::Exactly(1);
        run.then_exit = true;
        run.rerun = Some(self);
        Ok(())
    }

    /// Returns an error if an option is not what it was in the run. The command line is the same, but a
    /// `--config` file may have been changed.
    fn check_options(&self, now: &Value) -> Result<()> {
        let (Some(then), Some(now)) = (self.options.as_object(), now.as_object()) else { return Ok(()) };
        let changed = then.keys().chain(now.keys()).find(|name| then.get(*name) != now.get(*name));
        let Some(name) = changed else { return Ok(()) };
        let text = |value: Option<&Value>| value.map_or("not set".into(), Value::to_string);
        let why = format!(
            "the option {name} is {}, and was {} in the run",
            text(now.get(name)),
            text(then.get(name))
        );
        Err(Error::argument(why).note("restore the file that --config names"))
    }

    /// Compares the state of a commit point with the checkpoint that was taken there, if there is one,
    /// and ends training after the last one. Call it with no run in flight if [`Rerun::is_due`].
    /// Returns an error if the step to replay is over and was not seen.
    pub(super) fn compare(&mut self, state: &mut TrainState) -> Result<()> {
        if self.is_done() {
            return Ok(());
        }
        let now = state.position();
        let ahead = match &mut self.task {
            Task::Verify(ahead) => ahead,
            Task::Replay { step, .. } if now.global_step >= *step => {
                let why =
                    format!("step {step} cannot be replayed: it is no run of the trainer's own session");
                return Err(Error::new(ErrorKind::Unsupported, why)
                    .note("asynchronous trainers and steps without a run of the graph are not supported"));
            }
            Task::Replay { .. } => return Ok(()),
        };
        let is_due = ahead.front().is_some_and(|(_, position)| !is_before(&now, position));
        let Some((folder, position)) = is_due.then(|| ahead.pop_front()).flatten() else { return Ok(()) };
        let is_last = ahead.is_empty();
        let found = match position == now {
            true => differences(&folder, state).or_else(|e| match folder.exists() {
                true => Err(e),
                false => Ok(json!({"skipped": "the run has removed it meanwhile"})),
            })?,
            false => {
                json!({"skipped": "training has no such moment: a signal or a callback ended a run there"})
            }
        };
        let mut line = json!({"checkpoint": folder.display().to_string(), "step": position.global_step});
        if let (Some(line), Some(found)) = (line.as_object_mut(), found.as_object()) {
            line.extend(found.clone());
        }
        self.write(&line)?;
        if is_last || line["equal"] == false {
            state.stop_reason = Some("the part of the run is computed again".into());
            return self.end();
        }
        // Another one may have been taken at the same moment.
        self.compare(state)
    }

    /// Returns whether a checkpoint was taken at this commit point, or before it.
    pub(super) fn is_due(&self, now: &Position) -> bool {
        match &self.task {
            Task::Verify(ahead) => ahead.front().is_some_and(|(_, position)| !is_before(now, position)),
            Task::Replay { .. } => false,
        }
    }

    /// Returns whether this step is the one to write.
    pub(super) fn replays(&self, at: u64) -> bool {
        matches!(&self.task, Task::Replay { step, .. } if *step == at)
    }

    /// Whether the task is done.
    pub(super) fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }

    /// Writes all tensors of a step. Call it with no run in flight. Returns an error that ends the step,
    /// which is not run: [`Rerun::is_done`] tells it from others.
    pub(super) fn replay(
        &self,
        session: &Session,
        what: &Fetch,
        feeds: &[(&str, &HostTensor)],
    ) -> Result<()> {
        let Task::Replay { step, in_f64, output } = &self.task else { return Ok(()) };
        let dump = session.dump_step(what, feeds, *in_f64)?;
        safetensors::write(output, &dump.tensors)?;
        let (name, site) = dump.first_not_finite.unzip();
        self.write(&json!({
            "step": step,
            "tensors": dump.tensors.len(),
            "first_not_finite": name,
            "line": site.map(|site| site.to_string()),
        }))?;
        self.end()?;
        Err(Error::new(ErrorKind::Interrupted, format!("step {step} was replayed")))
    }

    fn write(&self, line: &Value) -> Result<()> {
        let file = OpenOptions::new().create(true).append(true).open(&self.report);
        file.and_then(|mut file| writeln!(file, "{line}")).map_err(failed("write", &self.report))
    }

    /// Ends the task. Training then ends as if a callback had stopped it, and the process after it: the
    /// program must not go on with a model that is not trained.
    fn end(&self) -> Result<()> {
        self.done.store(true, Ordering::Relaxed);
        self.write(&json!({"done": true}))
    }
}

/// Whether training comes to `other` only after `now`.
fn is_before(now: &Position, other: &Position) -> bool {
    let order = |p: &Position| (p.global_step, p.epoch_num, p.ended);
    order(now) < order(other)
}

/// Reads the position of a checkpoint, without its tensors.
fn position(folder: &Path) -> Result<Position> {
    let file = folder.join("state.json");
    let text = fs::read_to_string(&file).map_err(failed("read", &file))?;
    let state: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
    Position::from_json(&state["position"]).map_err(|e| e.within(file.display()))
}

/// Compares the variables of a checkpoint with those of the session, bit by bit, and the number of the
/// next draw of random numbers.
fn differences(folder: &Path, state: &TrainState) -> Result<Value> {
    let expected = Checkpoint::load(folder)?;
    for (name, expected) in &expected.tensors {
        let found = state.session.read_stored(name)?.0;
        if let Some(difference) = difference(expected, &found) {
            let mut line = json!({"equal": false, "variable": name});
            if let (Some(line), Some(difference)) = (line.as_object_mut(), difference.as_object()) {
                line.extend(difference.clone());
            }
            return Ok(line);
        }
    }
    let draws = state.session.run_index()?;
    if expected.state["run_index"].as_u64().is_some_and(|expected| expected != draws) {
        return Ok(json!({"equal": false, "variable": "the number of draws of random numbers",
            "expected": expected.state["run_index"], "found": draws}));
    }
    Ok(json!({"equal": true, "variables": expected.tensors.len()}))
}

/// Returns the first element that differs, its values, and how many differ.
fn difference(expected: &HostTensor, found: &HostTensor) -> Option<Value> {
    if (expected.dtype(), expected.sizes()) != (found.dtype(), found.sizes()) {
        let text = |t: &HostTensor| format!("{}{:?}", t.dtype(), t.sizes());
        return Some(json!({"expected": text(expected), "found": text(found)}));
    }
    let size = expected.dtype().size();
    let pairs = expected.as_bytes().chunks(size).zip(found.as_bytes().chunks(size));
    let mut differing = pairs.enumerate().filter(|(_, (a, b))| a != b).map(|(i, _)| i);
    let first = differing.next()?;
    let mut index = Vec::new();
    let mut rest = first;
    for &n in expected.sizes().iter().rev() {
        index.insert(0, rest % n);
        rest /= n;
    }
    // JSON has no NaN.
    let value = |t: &HostTensor| t.to_f64_vec()[first].to_string();
    Some(json!({
        "element": index,
        "expected": value(expected),
        "found": value(found),
        "differing": 1 + differing.count(),
        "elements": expected.len(),
    }))
}
