//! The lock of a log directory: two processes that write to one run would corrupt it.

use super::disk::{RealDisk, create_dir_durably, failed};
use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
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

impl RunLock {
    /// Locks a directory, and creates it if necessary. If another process holds the lock, the error
    /// names that process and its host.
    pub fn acquire(dir: impl Into<PathBuf>) -> Result<RunLock> {
        let dir = dir.into();
        create_dir_durably(&mut RealDisk, &dir).map_err(failed("create the directory", &dir))?;
        let path = dir.join("lock");
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed("open", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(taken(&dir, &mut file)),
            Err(TryLockError::Error(e)) => return Err(failed("lock", &path)(e)),
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

fn taken(dir: &Path, file: &mut File) -> Error {
    let mut text = String::new();
    // Without a newline the holder is still writing.
    let read = file.take(512).read_to_string(&mut text).ok().and_then(|_| text.strip_suffix('\n'));
    let holder = match read.map(|line| line.split_once(' ').unwrap_or((line, "an unknown host"))) {
        Some((pid, host)) => format!("process {pid} on {host}"),
        None => "another process".into(),
    };
    Error::new(ErrorKind::Io, format!("{} is in use by {holder}", dir.display()))
        .note("stop that process, or choose another --logdir")
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
}
