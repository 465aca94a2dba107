//! `tensorpack verify` and `tensorpack replay`: start the program of a run again, on a copy of a
//! checkpoint in a temporary directory. The run itself is only read.

use crate::child_process::{CaughtSignals, ChildEnd};
use crate::run_dir::Run;
use crate::runs::FormatArgs;
use crate::warning::warn;
use clap::Args;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};
use tensorpack::io::{CheckpointInfo, list_checkpoints};
use tensorpack::serde_json::{self, Value, json};
use tensorpack::{Error, ErrorKind, Result};

/// The environment variable that tells the program what to do. Its other end is `Trainer::train`.
const VARIABLE: &str = "TENSORPACK_RERUN";
/// How much of what the program wrote an error repeats.
const LINES: usize = 12;

#[derive(Args)]
pub(crate) struct VerifyArgs {
    /// The directory of the run.
    run: PathBuf,
    /// The step of the checkpoint to start from; defaults to the oldest.
    #[arg(long, value_name = "STEP")]
    from: Option<u64>,
    /// The step of the last checkpoint to compare; defaults to the newest.
    #[arg(long, value_name = "STEP")]
    to: Option<u64>,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Args)]
pub(crate) struct ReplayArgs {
    /// The directory of the run.
    run: PathBuf,
    /// The step to run again.
    #[arg(long, value_name = "STEP", value_parser = clap::value_parser!(u64).range(1..))]
    step: u64,
    /// Compute the step in f64, with the reference engine.
    #[arg(long)]
    f64: bool,
    /// The .safetensors file to write; defaults to step-STEP.safetensors in the current directory.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArgs,
}

impl VerifyArgs {
    /// Runs the command. Returns whether all compared checkpoints are equal.
    pub(crate) fn run(&self, out: &mut impl Write) -> Result<bool> {
        let saved = list_checkpoints(&self.run)?;
        let find = |step: Option<u64>, default: Option<&CheckpointInfo>| match step {
            Some(step) => saved.iter().rfind(|c| c.global_step == step).cloned(),
            None => default.cloned(),
        };
        let missing = |step: Option<u64>| no_checkpoint(&self.run, step, &saved);
        let from = find(self.from, saved.first()).ok_or_else(|| missing(self.from))?;
        let to = find(self.to, saved.last()).ok_or_else(|| missing(self.to))?;
        let between = |c: &&CheckpointInfo| {
            c.sequence != from.sequence
                && (from.global_step..=to.global_step).contains(&c.global_step)
                && (from.sequence..=to.sequence).contains(&c.sequence)
        };
        let mut compared: Vec<&CheckpointInfo> = saved.iter().filter(between).collect();
        compared.sort_by_key(|c| c.global_step);
        // The options of a later start may differ, such as the number of epochs.
        let end = end_of_options(&self.run, from.global_step)?;
        if let Some(end) = end.filter(|end| compared.last().is_some_and(|c| c.global_step > *end)) {
            warn(format_args!(
                "note: the steps after {end} were trained with other options; verify them with --from {end}"
            ));
            compared.retain(|c| c.global_step <= end);
        }
        if compared.is_empty() {
            let why = format!(
                "there is no checkpoint to compare after step {} up to step {}",
                from.global_step, to.global_step
            );
            return Err(Error::argument(why).note(existing(&saved)));
        }
        let folders: Vec<String> = compared.iter().map(|c| absolute(&c.path)).collect::<Result<_>>()?;
        let task = json!({"task": "verify", "checkpoints": folders});
        let report = rerun(&self.run, &from, task)?;
        let equal = is_equal(&report);
        if self.format.json {
            let all = json!({
                "run": self.run.display().to_string(),
                "from": from.global_step,
                "to": to.global_step,
                "equal": equal,
                "checkpoints": report,
            });
            writeln!(out, "{all:#}")?;
        } else {
            for line in &report {
                writeln!(out, "{}", verified(line))?;
            }
        }
        Ok(equal)
    }
}

impl ReplayArgs {
    /// Runs the command.
    pub(crate) fn run(&self, out: &mut impl Write) -> Result<()> {
        let saved = list_checkpoints(&self.run)?;
        let before = saved.iter().filter(|c| c.global_step < self.step);
        let from = before.max_by_key(|c| (c.global_step, c.sequence)).ok_or_else(|| {
            let why = format!("{} has no checkpoint from before step {}", self.run.display(), self.step);
            Error::argument(why).note(existing(&saved)).note(KEEP)
        })?;
        let output = self.output.clone();
        let output = output.unwrap_or_else(|| format!("step-{}.safetensors", self.step).into());
        let task =
            json!({"task": "replay", "step": self.step, "f64": self.f64, "output": absolute(&output)?});
        let report = rerun(&self.run, from, task)?;
        let found = report.first().cloned().unwrap_or(Value::Null);
        if self.format.json {
            let all = json!({
                "run": self.run.display().to_string(),
                "step": self.step,
                "from": from.global_step,
                "f64": self.f64,
                "output": output.display().to_string(),
                "tensors": found["tensors"],
                "first_not_finite": found["first_not_finite"],
                "line": found["line"],
            });
            writeln!(out, "{all:#}")?;
            return Ok(());
        }
        writeln!(
            out,
            "step {}, from the checkpoint of step {}: wrote {} tensors to {}",
            self.step,
            from.global_step,
            found["tensors"],
            output.display()
        )?;
        match (found["first_not_finite"].as_str(), found["line"].as_str()) {
            (Some(name), Some(line)) => writeln!(out, "{name} is the first that is not finite ({line})")?,
            _ => writeln!(out, "all are finite")?,
        }
        Ok(())
    }
}

/// How to have more checkpoints.
const KEEP: &str = "a run keeps its ten newest checkpoints and one per half hour; keep more with \
                    TrainConfig::keep(Keep::last(n)), or tag them";

fn no_checkpoint(run: &Path, step: Option<u64>, saved: &[CheckpointInfo]) -> Error {
    let why = match step {
        Some(step) => format!("{} has no checkpoint of step {step}", run.display()),
        None => format!("{} has no checkpoints", run.display()),
    };
    Error::argument(why).note(existing(saved)).note(KEEP)
}

fn existing(saved: &[CheckpointInfo]) -> String {
    let steps: Vec<String> = saved.iter().map(|c| c.global_step.to_string()).collect();
    match steps.is_empty() {
        true => "there are none".into(),
        false => format!("there are checkpoints of the steps {}", steps.join(", ")),
    }
}

/// Returns whether all checkpoints that were compared are equal. If none could be compared, that proves
/// nothing.
fn is_equal(report: &[Value]) -> bool {
    let has = |equal: bool| report.iter().any(|line| line["equal"] == equal);
    has(true) && !has(false)
}

/// The line of a compared checkpoint.
fn verified(line: &Value) -> String {
    let step = &line["step"];
    if let Some(why) = line["skipped"].as_str() {
        return format!("step {step}: not compared: {why}");
    }
    if line["equal"] == true {
        return format!("step {step}: equal, {} variables", line["variables"]);
    }
    let text = |key: &str| line[key].as_str().map_or_else(|| line[key].to_string(), str::to_string);
    let values = format!("{} in the checkpoint, {} when computed again", text("expected"), text("found"));
    match line["element"].as_array() {
        Some(_) => format!(
            "step {step}: {} differs at element {}: {values} ({} of {} elements differ)",
            text("variable"),
            line["element"],
            line["differing"],
            line["elements"]
        ),
        None => format!("step {step}: {} differs: {values}", text("variable")),
    }
}

/// Starts the program of a run again on a copy of a checkpoint. Returns what it reports.
fn rerun(run: &Path, from: &CheckpointInfo, mut task: Value) -> Result<Vec<Value>> {
    let start = start_at(run, from.global_step)?;
    let program = Program::of(&start, run)?;
    // Dropped after the directory: a signal ends this process when the directory is removed.
    let signals = CaughtSignals::install()?;
    let copy = TemporaryDir::new()?;
    let directory = copy.0.join("run");
    let folder = from.path.file_name().unwrap_or_default();
    let to = directory.join("checkpoints").join(folder);
    fs::create_dir_all(&to).map_err(|e| at(e, &to))?;
    for entry in fs::read_dir(&from.path).map_err(|e| at(e, &from.path))? {
        let file = entry?.path();
        fs::copy(&file, to.join(file.file_name().unwrap_or_default())).map_err(|e| at(e, &file))?;
    }
    let latest = directory.join("checkpoints/latest");
    fs::write(&latest, format!("{}\n", folder.to_string_lossy())).map_err(|e| at(e, &latest))?;
    let report = copy.0.join("report");
    task["directory"] = directory.to_string_lossy().into();
    // It may have been moved since.
    task["run"] = match start["logdir"].as_str() {
        Some(logdir) => logdir.into(),
        None => absolute(run)?.into(),
    };
    task["report"] = report.to_string_lossy().into();
    task["options"] = start["options"].clone();
    let file = copy.0.join("task");
    fs::write(&file, task.to_string()).map_err(|e| at(e, &file))?;
    let log = copy.0.join("output");
    let ended = signals.run(&mut program.command(&file, &log)?).map_err(|e| at(e, &program.path))?;
    let status = match ended {
        ChildEnd::Exited(status) => status,
        #[cfg(unix)]
        ChildEnd::Signal => return Err(Error::new(ErrorKind::Interrupted, "ended by a signal")),
    };

    let text = fs::read_to_string(&report).unwrap_or_default();
    let mut lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if lines.pop_if(|line| line["done"] == true).is_some() {
        return Ok(lines);
    }
    let output = fs::read(&log).unwrap_or_default();
    let output = String::from_utf8_lossy(&output);
    let last: Vec<&str> = output.lines().collect();
    let last = last[last.len().saturating_sub(LINES)..].join("\n");
    let why = match status.success() {
        true => format!("{} ended before the last step to repeat", program.path.display()),
        false => format!("{} failed: {status}", program.path.display()),
    };
    Err(Error::new(ErrorKind::Unsupported, why)
        .note("the program must train this run first, with the options that `manifest.json` has")
        .note(format!("its last output:\n{last}")))
}

/// Returns the last start of a run that trained on from this step.
fn start_at(run: &Path, step: u64) -> Result<Value> {
    let starts = Run::read(run)?.starts;
    let began = |start: &&Value| start["resumed_at"].as_u64().unwrap_or(0) <= step;
    let start = starts.iter().rfind(began).cloned().ok_or_else(|| {
        let why =
            format!("{} does not say which program trained this run", run.join("manifest.json").display());
        Error::argument(why).note("a version before 0.1 wrote it, or it was removed")
    })?;
    match start["processes"].as_u64() {
        None | Some(1) => Ok(start),
        Some(n) => Err(Error::new(
            ErrorKind::Unsupported,
            format!("{n} processes trained this run; only runs of one process can be repeated"),
        )),
    }
}

/// Returns the step at which a later start than that of `step` went on with other arguments, if any did.
fn end_of_options(run: &Path, step: u64) -> Result<Option<u64>> {
    let starts = Run::read(run)?.starts;
    let resumed_at = |start: &Value| start["resumed_at"].as_u64().unwrap_or(0);
    let Some(at) = starts.iter().rposition(|start| resumed_at(start) <= step) else { return Ok(None) };
    let differs = |start: &&Value| start["arguments"] != starts[at]["arguments"];
    Ok(starts[at + 1..].iter().find(differs).map(resumed_at))
}

/// A program, as a manifest describes it.
struct Program {
    path: PathBuf,
    start: Value,
}

impl Program {
    fn of(start: &Value, run: &Path) -> Result<Program> {
        let directory = Path::new(start["directory"].as_str().unwrap_or("."));
        let file = &start["executable"];
        let path = file["path"].as_str().or(start["program"].as_str()).unwrap_or_default();
        let path = directory.join(path);
        let about = fs::metadata(&path).map_err(|e| {
            Error::argument(format!("the program of {} is missing: {}: {e}", run.display(), path.display()))
                .note(format!("build it again{}", built_from(start)))
        })?;
        let modified = about.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let changed = |key: &str, now: Option<u64>| file[key].as_u64().is_some_and(|then| Some(then) != now);
        if changed("bytes", Some(about.len())) || changed("modified", modified.map(|at| at.as_secs())) {
            warn(format_args!(
                "warning: {} was built again since the run{}: other results may be those of another program",
                path.display(),
                built_from(start)
            ));
        }
        Ok(Program { path, start: start.clone() })
    }

    /// The command that starts it as the run did, with its output in a file.
    fn command(&self, task: &Path, output: &Path) -> Result<Command> {
        let output = File::create(output).map_err(|e| at(e, output))?;
        let mut command = Command::new(&self.path);
        let words = self.start["arguments"].as_array().into_iter().flatten().filter_map(Value::as_str);
        command.args(words).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        if let Some(directory) = self.start["directory"].as_str() {
            command.current_dir(directory);
        }
        for (name, value) in self.start["environment"].as_object().into_iter().flatten() {
            command.env(name, value.as_str().unwrap_or_default());
        }
        command.env(VARIABLE, task);
        Ok(command)
    }
}

/// The commit that a manifest names.
fn built_from(start: &Value) -> String {
    let Some(commit) = start["git"]["commit"].as_str() else { return String::new() };
    let dirty = if start["git"]["dirty"] == true { ", with changes" } else { "" };
    format!(" (it ran in commit {commit}{dirty})")
}

fn absolute(path: &Path) -> Result<String> {
    Ok(std::path::absolute(path).map_err(|e| at(e, path))?.to_string_lossy().into_owned())
}

fn at(e: std::io::Error, path: &Path) -> Error {
    Error::from(e).within(path.display())
}

/// A directory that is removed with its contents.
struct TemporaryDir(PathBuf);

impl TemporaryDir {
    fn new() -> Result<TemporaryDir> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!("tensorpack-rerun-{}-{}", std::process::id(), since.as_nanos());
        let dir = std::env::temp_dir().join(name);
        fs::create_dir(&dir).map_err(|e| at(e, &dir))?;
        Ok(TemporaryDir(dir))
    }
}

impl Drop for TemporaryDir {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.0) {
            warn(format_args!("warning: {} could not be removed: {e}", self.0.display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_that_were_not_compared_are_not_equal() {
        let [equal, differs, skipped] =
            [json!({"equal": true}), json!({"equal": false}), json!({"skipped": "why"})];
        assert!(is_equal(&[equal.clone(), skipped.clone()]));
        assert!(!is_equal(&[equal, differs]));
        assert!(!is_equal(&[skipped]) && !is_equal(&[]));
    }
}
