//! A file lock that serializes downloads and installations across processes.

use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// How long to wait before printing a message.
const ANNOUNCE_AFTER: Duration = Duration::from_secs(5);
/// How long to wait before giving up. A download that makes no progress fails much earlier and
/// releases the lock.
const DEADLINE: Duration = Duration::from_secs(3600);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Creates and locks the file at `path`. The lock is released when the returned file is dropped.
///
/// Waits while another process holds the lock. After 5 seconds it prints to standard error what it
/// waits for (`task`, such as "download mnist"); after an hour it returns
/// [`ErrorKind::Deadline`]. On file systems without locks the file is returned unlocked.
#[doc(hidden)]
pub fn lock_file(path: &Path, task: &str) -> Result<File> {
    let file = File::create(path).map_err(|e| Error::from(e).within(path.display()))?;
    wait_for_lock(&file, path, task, ANNOUNCE_AFTER, DEADLINE)?;
    Ok(file)
}

fn wait_for_lock(
    file: &File,
    path: &Path,
    task: &str,
    announce_after: Duration,
    deadline: Duration,
) -> Result<()> {
    let (started, mut announced) = (Instant::now(), false);
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {}
            // Not every file system has locks. Without one, results are still renamed into place.
            Ok(()) | Err(TryLockError::Error(_)) => return Ok(()),
        }
        let waited = started.elapsed();
        if waited > deadline {
            let (path, minutes) = (path.display(), waited.as_secs() / 60);
            let why =
                format!("cannot {task}: another process has held the lock {path} for {minutes} minutes");
            return Err(Error::new(ErrorKind::Deadline, why).note("stop that process and try again"));
        }
        if waited > announce_after && !announced {
            announced = true;
            let path = path.display();
            // The message is best effort; ignore write errors.
            let _ = writeln!(std::io::stderr(), "waiting for another process to {task} (lock {path})");
        }
        thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_the_lock_or_the_deadline() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".lock");
        let held = lock_file(&path, "download x").unwrap();
        let file = File::create(&path).unwrap();
        let wait = |deadline| wait_for_lock(&file, &path, "download x", deadline / 2, deadline);
        let started = Instant::now();
        let e = wait(Duration::from_millis(100)).unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(5), "{e}");
        assert_eq!(e.kind(), ErrorKind::Deadline);
        assert!(e.message().contains("download x") && e.message().contains(".lock"), "{e}");
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(100));
                drop(held);
            });
            wait(Duration::from_secs(60)).unwrap();
        });
    }
}
