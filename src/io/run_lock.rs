//! The lock of a log directory: two processes that write to one run would corrupt it.

use super::disk::{RealDisk, create_dir_durably, failed};
use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// An exclusive lock on a log directory. The operating system releases it when the last clone is
/// dropped or the process terminates for any reason, so it never has to be removed by hand.
#[derive(Clone, Debug)]
pub struct RunLock {
    dir: PathBuf,
    _file: Arc<Locked>,
}

/// A file that is unlocked on drop. Closing is not enough: a forked child has the file open, too,
/// until it calls `exec`.
#[derive(Debug)]
struct Locked(File);

impl Drop for Locked {
    fn drop(&mut self) {
        // If this fails, the lock is released once every process has closed the file.
        let _ = self.0.unlock();
    }
}

/// How long to wait for a lock whose process is dead. A child of it that has not called `exec` yet
/// still has the file open.
const LONGEST_FORK: Duration = Duration::from_secs(5);

impl RunLock {
    /// Locks a directory, and creates it if necessary. If another process holds the lock, the error
    /// names that process and its host.
    pub fn acquire(dir: impl Into<PathBuf>) -> Result<RunLock> {
        RunLock::acquire_within(dir.into(), LONGEST_FORK)
    }

    /// Locks a directory. Waits at most `patience` for children of a dead process.
    fn acquire_within(dir: PathBuf, patience: Duration) -> Result<RunLock> {
        create_dir_durably(&mut RealDisk, &dir).map_err(failed("create the directory", &dir))?;
        let path = dir.join("lock");
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed("open", &path))?;
        let begun = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(e)) => return Err(failed("lock", &path)(e)),
            }
            // Read again each time: another process may take the lock first.
            let holder = Holder::read(&mut file);
            let is_dead = holder.as_ref().is_some_and(Holder::is_dead);
            if !is_dead || begun.elapsed() >= patience {
                return Err(taken(&dir, holder, is_dead));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{} {}", std::process::id(), host()))
            .map_err(failed("write", &path))?;
        Ok(RunLock { dir, _file: Arc::new(Locked(file)) })
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// The process that a lock file names.
struct Holder {
    pid: String,
    host: String,
}

impl Holder {
    fn read(file: &mut File) -> Option<Holder> {
        let mut text = String::new();
        file.rewind().ok()?;
        file.take(512).read_to_string(&mut text).ok()?;
        // Without a newline the holder is still writing.
        let line = text.strip_suffix('\n')?;
        let (pid, host) = line.split_once(' ').unwrap_or((line, "an unknown host"));
        Some(Holder { pid: pid.into(), host: host.into() })
    }

    /// Returns whether the process is known to be dead, which only a process of this machine can be.
    fn is_dead(&self) -> bool {
        self.host == host() && self.pid.parse().is_ok_and(is_dead)
    }
}

/// Returns whether there is no process with this number, or only a zombie.
#[cfg(unix)]
fn is_dead(pid: i32) -> bool {
    // Other numbers stand for groups of processes.
    if pid <= 0 {
        return false;
    }
    // SAFETY: signal 0 is not delivered; `kill` only says whether the process exists.
    if unsafe { libc::kill(pid, 0) } != 0 {
        return std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
    }
    // The state follows the name of the program, which may contain anything.
    let about = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    about.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with(['Z', 'X']))
}

/// Only `fork` leaves files open in a process of another number.
#[cfg(not(unix))]
fn is_dead(_: i32) -> bool {
    false
}

fn taken(dir: &Path, holder: Option<Holder>, is_dead: bool) -> Error {
    let name = match &holder {
        Some(Holder { pid, host }) => format!("process {pid} on {host}"),
        None => "another process".into(),
    };
    let e = Error::new(ErrorKind::Io, format!("{} is in use by {name}", dir.display()));
    if !is_dead {
        return e.note("stop that process, or choose another --logdir");
    }
    e.note("that process has ended, or runs in another container; a child of it may still have the lock open")
        .note(format!("stop what `fuser {}` shows, or choose another --logdir", dir.join("lock").display()))
}

/// Returns the name of this machine: a log directory may be shared by several.
pub(crate) fn host() -> String {
    let name =
        fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| fs::read_to_string("/etc/hostname"));
    let name = name.ok().map(|n| n.trim().to_string()).filter(|n| !n.is_empty());
    name.unwrap_or_else(|| "an unknown host".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_fails_and_names_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let first = RunLock::acquire(&run).unwrap();
        let again = first.clone();
        drop(first);
        let e = RunLock::acquire(&run).unwrap_err();
        let holder = format!("is in use by process {} on {}", std::process::id(), host());
        assert!(e.message().ends_with(&holder), "{e}");
        let written = fs::read_to_string(run.join("lock")).unwrap();
        assert_eq!(written, format!("{} {}\n", std::process::id(), host()));
        drop(again);
        RunLock::acquire(&run).unwrap();
    }

    #[test]
    fn the_lock_is_released_while_a_child_has_the_file_open() {
        let dir = tempfile::tempdir().unwrap();
        let first = RunLock::acquire(dir.path()).unwrap();
        // Like a fork.
        let held = first._file.0.try_clone().unwrap();
        drop(first);
        RunLock::acquire(dir.path()).unwrap();
        drop(held);
    }

    #[test]
    #[cfg(unix)]
    fn the_wait_for_children_of_a_dead_process_ends() {
        let dir = tempfile::tempdir().unwrap();
        let lock = RunLock::acquire(dir.path()).unwrap();
        let mut dead = std::process::Command::new("true").spawn().unwrap();
        dead.wait().unwrap();
        let refused = |holder: String, patience| {
            fs::write(dir.path().join("lock"), holder).unwrap();
            let begun = Instant::now();
            let e = RunLock::acquire_within(dir.path().into(), patience).unwrap_err();
            (e.to_string(), begun.elapsed() >= patience)
        };
        let (e, waited) = refused(format!("{} {}\n", dead.id(), host()), Duration::from_millis(50));
        assert!(e.contains("that process has ended") && e.contains("fuser"), "{e}");
        assert!(waited, "a dead process was not waited for");
        // Alive, on another machine, and not yet written.
        let (here, dead) = (std::process::id(), dead.id());
        for holder in
            [format!("{here} {}\n", host()), format!("{dead} elsewhere\n"), format!("{dead} {}", host())]
        {
            let (e, waited) = refused(holder.clone(), LONGEST_FORK);
            assert!(e.contains("stop that process"), "{e}");
            assert!(!waited, "{holder:?} was waited for");
        }
        drop(lock);
    }
}
