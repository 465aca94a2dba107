//! The file system operations of checkpoints, behind a trait so that tests can inject failures.

use std::borrow::Cow;
use std::collections::hash_map::RandomState;
use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use tensorpack_dataflow::format::open_regular_file;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The contents of a file in pieces, so that tensors are written without a copy.
pub type Parts<'a> = [Cow<'a, [u8]>];

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name in the directory.
    pub name: OsString,
    /// Whether it is a directory, or a symbolic link to one.
    pub is_dir: bool,
}

/// A file that is open for reading.
pub struct OpenFile {
    /// The length in bytes.
    pub length: u64,
    /// The contents from the beginning. Not buffered.
    pub contents: Box<dyn Read>,
}

/// A disk that checkpoints are written to and read from. Each operation is complete when the call
/// returns `Ok`; after an error it may have had all of its effect, a part, or none.
///
/// The operations that sync have `#[track_caller]`, so that a test can tell their call sites apart.
pub trait Disk: Send {
    /// Creates a directory and its parents. An existing directory is not an error.
    fn create_dir(&mut self, path: &Path) -> io::Result<()>;
    /// Writes a file, replacing an existing one, and syncs it to the device. The entry in the
    /// directory is durable only after [`Disk::sync_dir`].
    #[track_caller]
    fn write(&mut self, path: &Path, parts: &Parts<'_>) -> io::Result<()>;
    /// Renames a file or directory, replacing an existing file.
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;
    /// Syncs the entries of a directory to the device.
    #[track_caller]
    fn sync_dir(&mut self, path: &Path) -> io::Result<()>;
    /// Removes a file, or a directory with its contents.
    fn remove(&mut self, path: &Path) -> io::Result<()>;
    /// Returns the free space for a directory in bytes, or `None` if it is unknown.
    fn free_space(&mut self, dir: &Path) -> io::Result<Option<u64>>;
    /// Opens a file for reading.
    fn open(&self, path: &Path) -> io::Result<OpenFile>;
    /// Returns the entries of a directory, in any order.
    fn entries(&self, dir: &Path) -> io::Result<Vec<DirEntry>>;
    /// Returns whether a file or directory exists.
    fn exists(&self, path: &Path) -> io::Result<bool>;
}

/// The disk of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn create_dir(&mut self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn write(&mut self, path: &Path, parts: &Parts<'_>) -> io::Result<()> {
        let mut file = File::create(path)?;
        parts.iter().try_for_each(|part| file.write_all(part))?;
        file.sync_all()
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        // Other systems cannot open directories and need no sync after a rename.
        if !cfg!(unix) {
            return Ok(());
        }
        match File::open(path).and_then(|dir| dir.sync_all()) {
            // The directory may belong to someone else (`/home`), or the file system may not sync
            // directories. Nothing more can be done then.
            Err(e) if matches!(e.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput) => {
                Ok(())
            }
            synced => synced,
        }
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
    }

    fn free_space(&mut self, dir: &Path) -> io::Result<Option<u64>> {
        free_space(dir)
    }

    fn open(&self, path: &Path) -> io::Result<OpenFile> {
        let (file, about) = open_regular_file(path)?;
        Ok(OpenFile { length: about.len(), contents: Box::new(file) })
    }

    fn entries(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            // Links are followed: the folders of checkpoints may be on another disk. If that fails,
            // reading the entry will tell why.
            let is_dir = match entry.file_type() {
                Ok(kind) if !kind.is_symlink() => kind.is_dir(),
                _ => fs::metadata(entry.path()).is_ok_and(|about| about.is_dir()),
            };
            entries.push(DirEntry { name: entry.file_name(), is_dir });
        }
        Ok(entries)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }
}

/// Returns whether an error says that there is no such file. Any other error of a read may be
/// transient: too many open files, a failing network file system.
pub(super) fn is_missing(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(target_os = "linux")]
#[allow(clippy::unnecessary_cast, reason = "the fields are smaller on 32-bit machines")]
fn free_space(dir: &Path) -> io::Result<Option<u64>> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(dir.as_os_str().as_bytes())?;
    let mut about = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `CString` terminates the path with a zero byte, and `about` has the size of the
    // result.
    if unsafe { libc::statvfs(path.as_ptr(), about.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded (checked above), so it has initialized the structure.
    let about = unsafe { about.assume_init() };
    Ok(Some((about.f_bavail as u64).saturating_mul(about.f_frsize as u64)))
}

#[cfg(not(target_os = "linux"))]
fn free_space(_: &Path) -> io::Result<Option<u64>> {
    Ok(None)
}

/// Returns the total length of the parts in bytes.
pub(super) fn length(parts: &Parts<'_>) -> u64 {
    parts.iter().map(|p| p.len() as u64).sum()
}

/// Reads a file of at most `limit` bytes. The rest of a longer file is left out.
pub(super) fn read(disk: &dyn Disk, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    disk.open(path)?.contents.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The prefix of temporary files and folders. They may be removed by any process that holds the
/// lock.
pub(super) const UNFINISHED: &str = ".tmp-";

/// Returns a temporary name beside `path` that no other writer uses, in this process or another.
pub(super) fn unfinished(path: &Path) -> Result<PathBuf> {
    let Some(name) = path.file_name() else {
        return Err(Error::argument(format!("{} is not a file name", path.display())));
    };
    // `RandomState` has random keys, so the hash of nothing is a random number.
    let unique = RandomState::new().build_hasher().finish();
    Ok(path.with_file_name(format!("{UNFINISHED}{unique:016x}-{}", name.to_string_lossy())))
}

/// Returns the directory of a file.
pub(super) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

/// Creates a directory and its missing parents, and makes their entries durable.
pub(super) fn create_dir_durably(disk: &mut dyn Disk, dir: &Path) -> io::Result<()> {
    // The entry of `dir` is synced even if it exists: a process that created it may have been killed
    // before its own sync.
    let mut changed = vec![parent(dir)];
    while let Some(&above) = changed.last()
        && above.file_name().is_some()
        && !disk.exists(above)?
    {
        changed.push(parent(above));
    }
    disk.create_dir(dir)?;
    changed.into_iter().rev().try_for_each(|above| disk.sync_dir(above))
}

/// Writes a file atomically: after a crash, either the old file or the complete new one exists.
pub(crate) fn write_atomically(disk: &mut dyn Disk, path: &Path, parts: &Parts<'_>) -> Result<()> {
    let unfinished = unfinished(path)?;
    let written = disk
        .write(&unfinished, parts)
        .and_then(|()| disk.rename(&unfinished, path))
        .and_then(|()| disk.sync_dir(parent(path)));
    written.map_err(|e| {
        // The file may not exist; report the first error only.
        let _ = disk.remove(&unfinished);
        failed("write", path)(e)
    })
}

/// Returns a function that adds the failed operation and the path to an I/O error.
pub(crate) fn failed(what: &str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let context = format!("cannot {what} {}", path.display());
    move |e| Error::new(ErrorKind::Io, e.to_string()).within(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_atomically() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        for text in ["first", "second"] {
            write_atomically(&mut RealDisk, &path, &[Cow::Borrowed(text.as_bytes()), Cow::Borrowed(b"!")])
                .unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("{text}!"));
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let e = write_atomically(&mut RealDisk, &dir.path().join("no/such/dir"), &[]).unwrap_err();
        assert!(e.message().starts_with("cannot write "), "{e}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn free_space_is_known() {
        let dir = tempfile::tempdir().unwrap();
        assert!(RealDisk.free_space(dir.path()).unwrap().is_some_and(|n| n > 0));
        assert!(RealDisk.free_space(&dir.path().join("none")).is_err());
    }
}
