//! The few things that saving asks of a disk, so that tests can let each of them fail.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// What a file is made of: pieces one after the other, so that tensors are written from where they lie.
pub type Parts<'a> = [Cow<'a, [u8]>];

/// A disk that checkpoints are written to. Each call is done when it returns, or it is an error.
pub trait Disk: Send {
    /// Makes a directory and those above it. One that exists is fine.
    fn create_dir(&mut self, path: &Path) -> io::Result<()>;
    /// Writes a file, replacing one of this name, and waits until the device has it.
    fn write(&mut self, path: &Path, parts: &Parts<'_>) -> io::Result<()>;
    /// Renames a file or directory, replacing a file of the new name.
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;
    /// Waits until the device has a directory's entries.
    fn sync_dir(&mut self, path: &Path) -> io::Result<()>;
    /// Removes a file, or a directory with all in it.
    fn remove(&mut self, path: &Path) -> io::Result<()>;
    /// How many bytes can still be written in a directory, where that can be known.
    fn free_space(&mut self, dir: &Path) -> io::Result<Option<u64>>;
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
        // Elsewhere a directory cannot be opened, and renames need no help.
        if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
    }

    fn free_space(&mut self, dir: &Path) -> io::Result<Option<u64>> {
        free_space(dir)
    }
}

#[cfg(target_os = "linux")]
#[allow(clippy::unnecessary_cast, reason = "the fields are smaller on 32-bit machines")]
fn free_space(dir: &Path) -> io::Result<Option<u64>> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(dir.as_os_str().as_bytes())?;
    let mut about = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends with a zero byte, and `about` is room for what is written.
    if unsafe { libc::statvfs(path.as_ptr(), about.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it has filled the structure.
    let about = unsafe { about.assume_init() };
    Ok(Some((about.f_bavail as u64).saturating_mul(about.f_frsize as u64)))
}

#[cfg(not(target_os = "linux"))]
fn free_space(_: &Path) -> io::Result<Option<u64>> {
    Ok(None)
}

/// How many bytes a file takes.
pub(super) fn length(parts: &Parts<'_>) -> u64 {
    parts.iter().map(|p| p.len() as u64).sum()
}

/// Names of what is not finished begin with this. Whoever finds one may remove it.
pub(super) const UNFINISHED: &str = ".tmp-";

/// Writes a file so that, whenever the machine stops, either the old one or all of the new one is there.
pub(super) fn write_whole(disk: &mut dyn Disk, path: &Path, parts: &Parts<'_>) -> Result<()> {
    let Some(name) = path.file_name() else {
        return Err(Error::argument(format!("{} names no file to write", path.display())));
    };
    let unfinished = path.with_file_name(format!("{UNFINISHED}{}", name.to_string_lossy()));
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let written = disk
        .write(&unfinished, parts)
        .and_then(|()| disk.rename(&unfinished, path))
        .and_then(|()| disk.sync_dir(dir));
    written.map_err(|e| {
        // It may not be there, and a second error says nothing new.
        let _ = disk.remove(&unfinished);
        failed("write", path)(e)
    })
}

/// Says what could not be done to which file.
pub(crate) fn failed(what: &str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let context = format!("cannot {what} {}", path.display());
    move |e| Error::new(ErrorKind::Io, e.to_string()).within(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        for text in ["first", "second"] {
            write_whole(&mut RealDisk, &path, &[Cow::Borrowed(text.as_bytes()), Cow::Borrowed(b"!")])
                .unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("{text}!"));
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let e = write_whole(&mut RealDisk, &dir.path().join("no/such/dir"), &[]).unwrap_err();
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
