//! `manifest.json`: what ran, where and with what.

use crate::io::{RealDisk, failed, write_atomically};
use crate::logger;
use crate::monitor::move_aside;
use crate::runtime::available_memory;
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::SystemTime;
use tensorpack_tensor::Result;

/// The name of the file in a run's directory.
const FILE: &str = "manifest.json";

/// The environment variables that may change a run: these, and those that begin like one of
/// [`PREFIXES`].
const VARIABLES: [&str; 7] = [
    "XLA_FLAGS",
    "CUDA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "SLURM_JOB_ID",
    "SLURM_PROCID",
    "NCCL_DEBUG",
    "NVIDIA_TF32_OVERRIDE",
];
const PREFIXES: [&str; 2] = ["TENSORPACK_", "OMPI_COMM_WORLD_"];

/// The parts of names of variables that hold secrets, such as `TENSORPACK_TOKEN`. They are left out.
const SECRET: [&str; 5] = ["TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "KEY"];

/// What a start of a run adds to its manifest.
pub(super) struct Started<'a> {
    /// The settings that checkpoints hold, too: seed, towers, device and others.
    pub(super) settings: &'a Map<String, Value>,
    /// The options of the command line and of its configuration file, if the program has
    /// `TrainArgs`.
    pub(super) options: &'a Value,
    /// The name and version of the plugin, if the device has one.
    pub(super) platform: Option<String>,
    /// The number of processes that train together.
    pub(super) processes: usize,
    /// The step at which the run continues; `None` if it is new.
    pub(super) resumed_at: Option<u64>,
    /// The directory of the run.
    pub(super) logdir: &'a Path,
}

/// Writes the manifest of a new run, or appends a start to that of a resumed one. The file is
/// replaced atomically. A run whose manifest cannot be written trains all the same.
pub(super) fn record(dir: &Path, start: &Value) {
    if let Err(e) = write(dir, start) {
        log::warn!("this start is not in the manifest of the run: {e}");
    }
}

fn write(dir: &Path, start: &Value) -> Result<()> {
    let path = dir.join(FILE);
    let mut starts = match start["resumed_at"].as_u64() {
        Some(_) => earlier_starts(&path)?,
        None => {
            move_aside(&path)?;
            Vec::new()
        }
    };
    starts.push(start.clone());
    let text = format!("{:#}\n", json!({"version": 1, "starts": starts}));
    write_atomically(&mut RealDisk, &path, &[Cow::Borrowed(text.as_bytes())])
}

/// Returns the starts in the manifest; none if there is no manifest, or one that cannot be parsed.
fn earlier_starts(path: &Path) -> Result<Vec<Value>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        // The run may be older than this file.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(failed("read", path)(e)),
    };
    let manifest: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
    Ok(manifest["starts"].as_array().cloned().unwrap_or_default())
}

/// Returns whether a manifest has this environment variable.
fn is_relevant(name: &str) -> bool {
    let is_named = VARIABLES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    is_named && !SECRET.iter().any(|part| name.contains(part))
}

/// Describes a start of a run.
pub(super) fn describe(started: &Started<'_>) -> Value {
    let mut arguments = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let environment: Map<String, Value> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .filter(|(name, _)| is_relevant(name))
        .map(|(name, value)| (name, value.into()))
        .collect();
    json!({
        "time": logger::utc(SystemTime::now()),
        "resumed_at": started.resumed_at,
        "program": arguments.next(),
        "arguments": arguments.collect::<Vec<_>>(),
        "executable": executable(),
        "options": started.options,
        "logdir": std::path::absolute(started.logdir).ok().map(|dir| dir.to_string_lossy().into_owned()),
        "directory": std::env::current_dir().ok().map(|dir| dir.to_string_lossy().into_owned()),
        "git": git(),
        "versions": {
            "tensorpack": env!("CARGO_PKG_VERSION"),
            "rustc": env!("TENSORPACK_RUSTC_VERSION"),
            "platform": started.platform,
            "driver": started.platform.is_some().then(driver).flatten(),
        },
        "host": {
            "name": crate::io::host(),
            "system": format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            "threads": std::thread::available_parallelism().ok().map(usize::from),
            "available_memory": available_memory(),
            "process": std::process::id(),
        },
        "processes": started.processes,
        "settings": started.settings,
        "data": tensorpack_dataflow::dataset::used_files(),
        "environment": environment,
    })
}

/// Returns the file of this program, and what tells one build from another.
fn executable() -> Value {
    let Ok(path) = std::env::current_exe() else { return Value::Null };
    let about = std::fs::metadata(&path).ok();
    let modified = about.as_ref().and_then(|about| about.modified().ok());
    let modified = modified.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
    json!({
        "path": path.to_string_lossy(),
        "bytes": about.map(|about| about.len()),
        "modified": modified.map(|at| at.as_secs()),
    })
}

/// Returns the version of the kernel's driver for GPUs, if it has one.
fn driver() -> Option<String> {
    let version = |module: &str| {
        let text = std::fs::read_to_string(format!("/sys/module/{module}/version")).ok()?;
        Some(format!("{module} {}", text.trim()))
    };
    version("nvidia").or_else(|| version("amdgpu"))
}

/// Returns the commit of the checkout in which the program runs, and whether tracked files differ
/// from it; `Null` outside of one, or without git.
fn git() -> Value {
    // A process that trains several times asks once.
    static GIT: OnceLock<Value> = OnceLock::new();
    GIT.get_or_init(ask_git).clone()
}

fn ask_git() -> Value {
    let run = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.args(arguments).env("GIT_OPTIONAL_LOCKS", "0").stdin(Stdio::null()).stderr(Stdio::null());
        let output = git.output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let Some(commit) = run(&["rev-parse", "HEAD"]) else { return Value::Null };
    let changed = run(&["status", "--porcelain", "--untracked-files=no"]);
    json!({"commit": commit, "dirty": changed.map(|changed| !changed.is_empty())})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_stay_out_of_the_manifest() {
        for name in ["XLA_FLAGS", "TENSORPACK_LOG", "CUDA_VISIBLE_DEVICES"] {
            assert!(is_relevant(name), "{name}");
        }
        for name in ["TENSORPACK_TOKEN", "HOME", "PATH", "TENSORPACK_HUB_PASSWORD", "AWS_SECRET_ACCESS_KEY"] {
            assert!(!is_relevant(name), "{name}");
        }
    }
}
