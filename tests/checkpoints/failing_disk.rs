//! A disk on which one operation fails.

use crate::crash_disk::{CrashDisk, Leaves};
use std::borrow::Cow;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tensorpack::io::{DirEntry, Disk, OpenFile, Parts, RealDisk};

/// The fault at the n-th operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// The device is full: half of a file is written.
    Full,
    /// The operation is refused and has no effect. Reads fail, too.
    Denied,
    /// A file can be opened, but only its first half can be read. Other operations are refused.
    ReadsHalf,
    /// The operation takes effect but reports an error.
    Late,
    /// The machine stops: half of a file is written, and nothing after it happens.
    Crash,
}

/// The disk of a test, which is opened again after a crash.
pub(crate) trait Medium: Disk + Clone + 'static {
    /// Starts the machine again after a crash.
    fn restart(&self, leaves: Leaves);
}

impl Medium for RealDisk {
    /// Only the process was killed.
    fn restart(&self, _: Leaves) {}
}

impl Medium for CrashDisk {
    fn restart(&self, leaves: Leaves) {
        self.crash(leaves);
    }
}

/// Another disk, whose operation number `fails_at` fails.
pub(crate) struct FailingDisk<D> {
    pub(crate) inner: D,
    pub(crate) done: Arc<AtomicU64>,
    pub(crate) fails_at: u64,
    pub(crate) fault: Fault,
}

impl<D: Disk> FailingDisk<D> {
    /// Counts an operation. Returns its error if it fails without an effect.
    fn begin(&self) -> io::Result<()> {
        let n = self.done.fetch_add(1, Ordering::Relaxed);
        let fails = n == self.fails_at && self.fault != Fault::Late;
        if fails || (n > self.fails_at && self.fault == Fault::Crash) { Err(self.error()) } else { Ok(()) }
    }

    /// Returns the error of an operation that had its effect.
    fn end<T>(&self, result: T) -> io::Result<T> {
        if self.fails_now() { Err(self.error()) } else { Ok(result) }
    }

    fn error(&self) -> io::Error {
        match self.fault {
            Fault::Full | Fault::Crash => io::ErrorKind::StorageFull.into(),
            Fault::Denied | Fault::ReadsHalf | Fault::Late => io::Error::from_raw_os_error(libc::EIO),
        }
    }

    /// Returns whether the current operation is the one that fails.
    fn fails_now(&self) -> bool {
        self.done.load(Ordering::Relaxed) == self.fails_at + 1
    }
}

/// A reader that fails.
struct Broken;

impl Read for Broken {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(libc::EIO))
    }
}

impl<D: Disk> Disk for FailingDisk<D> {
    fn create_dir(&mut self, path: &Path) -> io::Result<()> {
        self.begin()?;
        self.inner.create_dir(path)?;
        self.end(())
    }

    fn write(&mut self, path: &Path, parts: &Parts<'_>) -> io::Result<()> {
        if let Err(e) = self.begin() {
            if matches!(self.fault, Fault::Full | Fault::Crash) && self.fails_now() {
                let whole = parts.concat();
                self.inner.write(path, &[Cow::Borrowed(&whole[..whole.len() / 2])])?;
            }
            return Err(e);
        }
        self.inner.write(path, parts)?;
        self.end(())
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.begin()?;
        self.inner.rename(from, to)?;
        self.end(())
    }

    fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        self.begin()?;
        self.inner.sync_dir(path)?;
        self.end(())
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        if let Err(e) = self.begin() {
            // A folder goes file by file, so it may be half gone.
            if self.fault == Fault::Crash
                && self.fails_now()
                && let Some(file) = self.inner.entries(path).ok().and_then(|files| files.into_iter().next())
            {
                self.inner.remove(&path.join(file.name))?;
            }
            return Err(e);
        }
        self.inner.remove(path)?;
        self.end(())
    }

    fn free_space(&mut self, _: &Path) -> io::Result<Option<u64>> {
        self.begin()?;
        self.end(None)
    }

    fn open(&self, path: &Path) -> io::Result<OpenFile> {
        if let Err(e) = self.begin() {
            if self.fault != Fault::ReadsHalf {
                return Err(e);
            }
            let OpenFile { length, contents } = self.inner.open(path)?;
            return Ok(OpenFile { length, contents: Box::new(contents.take(length / 2).chain(Broken)) });
        }
        let done = self.inner.open(path)?;
        self.end(done)
    }

    fn entries(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.begin()?;
        let done = self.inner.entries(dir)?;
        self.end(done)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.begin()?;
        let done = self.inner.exists(path)?;
        self.end(done)
    }
}
