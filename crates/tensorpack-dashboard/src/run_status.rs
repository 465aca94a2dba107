//! Finds out whether a run is training, from the lock of its log directory and the end of its log.

use crate::confined::Roots;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// What a run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Status {
    /// A process holds the lock.
    Running,
    /// The log says that training reached its last epoch.
    Finished,
    /// A callback or a signal ended training, and it was saved.
    Stopped,
    /// The log ends with an error.
    Failed,
    /// No process holds the lock, and the log does not say why.
    Killed,
    /// There is no lock, or it belongs to another machine.
    #[default]
    Unknown,
}

impl Status {
    /// Returns the word that the page shows.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Status::Running => "running",
            Status::Finished => "finished",
            Status::Stopped => "stopped",
            Status::Failed => "failed",
            Status::Killed => "killed",
            Status::Unknown => "unknown",
        }
    }
}

/// The process in a lock file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// The process.
    pub(crate) pid: u32,
    /// Its machine.
    pub(crate) host: String,
}

/// A run of another machine whose files changed within this time is taken to be running.
const FRESH: Duration = Duration::from_secs(120);

/// Returns the process that wrote the lock file of a log directory, which may have terminated.
pub(crate) fn holder(roots: &Roots, dir: &Path) -> Option<Holder> {
    let mut text = String::new();
    roots.open(&dir.join("lock")).ok()?.take(512).read_to_string(&mut text).ok()?;
    // Without a newline the holder is still writing.
    let line = text.strip_suffix('\n')?;
    let (pid, host) = line.split_once(' ').unwrap_or((line, ""));
    Some(Holder { pid: pid.parse().ok()?, host: host.to_string() })
}

/// Returns what a run does. `changed` is when its files last changed.
pub(crate) fn status(roots: &Roots, dir: &Path, changed: Option<SystemTime>) -> Status {
    let Some(holder) = holder(roots, dir) else { return Status::Unknown };
    if holds_lock(&holder, &dir.join("lock")) {
        return Status::Running;
    }
    let ended = ending(roots, dir);
    if ended != Status::Killed || is_here(&holder) {
        return ended;
    }
    match changed.and_then(|t| t.elapsed().ok()) {
        Some(age) if age < FRESH => Status::Running,
        _ => Status::Unknown,
    }
}

/// Returns whether a process of this machine holds the lock. Nothing here takes the lock to find
/// out, because a program that starts at that moment would fail.
pub(crate) fn holds_lock(holder: &Holder, lock: &Path) -> bool {
    is_here(holder) && (has_open(holder.pid, lock) || is_listed(lock))
}

fn is_here(holder: &Holder) -> bool {
    holder.host.is_empty() || holder.host == host_name()
}

/// Returns the name of this machine, as the lock has it.
pub(crate) fn host_name() -> String {
    let name =
        fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| fs::read_to_string("/etc/hostname"));
    name.map(|n| n.trim().to_string()).unwrap_or_default()
}

/// Returns whether a process has a file open. Only those of the same user can be asked.
fn has_open(pid: u32, path: &Path) -> bool {
    let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    files.flatten().any(|f| fs::read_link(f.path()).is_ok_and(|target| target == path))
}

/// Returns whether the kernel lists a lock on a file. It does for processes of any user.
#[cfg(target_os = "linux")]
fn is_listed(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let (Ok(metadata), Ok(locks)) = (fs::metadata(path), fs::read_to_string("/proc/locks")) else {
        return false;
    };
    let (major, minor) = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
    let file = format!("{major:02x}:{minor:02x}:{}", metadata.ino());
    locks.lines().any(|l| l.contains("FLOCK") && l.split_whitespace().any(|word| word == file))
}

#[cfg(not(target_os = "linux"))]
fn is_listed(_: &Path) -> bool {
    false
}

/// Returns how the log says that training ended.
fn ending(roots: &Roots, dir: &Path) -> Status {
    let Ok(end) = roots.open(&dir.join("log.log")).and_then(|f| last_bytes(f, 4096)) else {
        return Status::Killed;
    };
    let end = String::from_utf8_lossy(&end);
    let last = |words: &str| end.rfind(words).map(|at| at + 1).unwrap_or(0);
    // A resumed run that is complete says so without an epoch.
    let finished = last("training finished");
    let stopped = last("training stopped").max(last("received signal"));
    let (began, failed) = (last(", global step "), last("] ERR "));
    match finished.max(stopped).max(began).max(failed) {
        0 => Status::Killed,
        at if at == finished => Status::Finished,
        at if at == stopped => Status::Stopped,
        at if at == failed => Status::Failed,
        _ => Status::Killed,
    }
}

/// Returns the end of a file.
pub(crate) fn last_bytes(mut file: File, bytes: u64) -> std::io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes)))?;
    let mut end = Vec::new();
    file.take(bytes).read_to_end(&mut end)?;
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_lock_says_whether_a_run_trains_and_the_log_how_it_ended() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().canonicalize().unwrap();
        let roots = Roots::new(std::slice::from_ref(&run)).unwrap();
        let status = || status(&roots, &run, None);
        assert_eq!(status(), Status::Unknown);
        let lock = run.join("lock");
        fs::write(&lock, format!("{} {}\n", std::process::id(), host_name())).unwrap();
        assert_eq!(status(), Status::Killed);
        let held = File::options().write(true).open(&lock).unwrap();
        held.lock().unwrap();
        assert_eq!(status(), Status::Running);
        assert!(is_listed(&lock), "/proc/locks does not list the lock");
        drop(held);
        let log = |text: &str| fs::write(run.join("log.log"), text).unwrap();
        log("epoch 1 of 2, global step 0\ntraining finished after epoch 2, step 8\n");
        assert_eq!(status(), Status::Finished);
        log("training finished after epoch 2, step 8\nepoch 3 of 4, global step 8\n");
        assert_eq!(status(), Status::Killed, "resumed, then killed");
        log("epoch 1 of 2, global step 0\n[1116 05:23:07 @lib.rs:1] ERR cost is NaN\n");
        assert_eq!(status(), Status::Failed);
        log("epoch 1 of 2, global step 0\nreceived signal 15: saving, then exiting\n");
        assert_eq!(status(), Status::Stopped);
        // The process of another machine cannot be asked.
        fs::write(&lock, "1 elsewhere\n").unwrap();
        log("epoch 1 of 2, global step 0\n");
        assert_eq!(super::status(&roots, &run, Some(SystemTime::now())), Status::Running);
        assert_eq!(super::status(&roots, &run, Some(SystemTime::UNIX_EPOCH)), Status::Unknown);
    }
}
