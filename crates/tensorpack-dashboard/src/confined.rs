//! Opens files below the folders that the user gave, and nothing else.

use std::fs::File;
use std::io::{self, Error, ErrorKind};
use std::path::{Path, PathBuf};

/// The folders whose files may be read, with all symbolic links in their paths resolved.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roots {
    dirs: Vec<PathBuf>,
}

impl Roots {
    /// Resolves the folders. One that does not exist is an error.
    pub(crate) fn new(dirs: &[PathBuf]) -> io::Result<Roots> {
        let mut resolved: Vec<PathBuf> = Vec::new();
        for dir in dirs {
            let dir = dir.canonicalize()?;
            if !dir.is_dir() {
                return Err(Error::new(ErrorKind::NotADirectory, "not a directory"));
            }
            if !resolved.contains(&dir) {
                resolved.push(dir);
            }
        }
        Ok(Roots { dirs: resolved })
    }

    /// Returns the folders.
    pub(crate) fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    /// Resolves a path, and returns an error if it is outside of the folders.
    pub(crate) fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        let path = path.canonicalize()?;
        if self.dirs.iter().any(|dir| path.starts_with(dir)) {
            Ok(path)
        } else {
            Err(Error::new(ErrorKind::PermissionDenied, "outside of the folders that are shown"))
        }
    }

    /// Opens a regular file inside of the folders for reading. Pipes, devices and links that lead
    /// out of the folders are errors.
    pub(crate) fn open(&self, path: &Path) -> io::Result<File> {
        let path = self.resolve(path)?;
        let file = open_without_links(&path)?;
        if file.metadata()?.is_file() {
            Ok(file)
        } else {
            Err(Error::new(ErrorKind::InvalidInput, "not a regular file"))
        }
    }
}

/// Opens a file whose last component is not a link, as it was not when the path was resolved. A
/// pipe does not wait for a writer.
#[cfg(unix)]
fn open_without_links(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

#[cfg(not(unix))]
fn open_without_links(path: &Path) -> io::Result<File> {
    File::open(path)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn nothing_outside_of_the_folders_is_opened() {
        let temp = tempfile::tempdir().unwrap();
        let (inside, outside) = (temp.path().join("in"), temp.path().join("in-not"));
        fs::create_dir_all(inside.join("run")).unwrap();
        fs::create_dir_all(&outside).unwrap();
        fs::write(inside.join("run/log.log"), "here").unwrap();
        fs::write(outside.join("secret"), "secret").unwrap();
        symlink(outside.join("secret"), inside.join("run/stats.jsonl")).unwrap();
        symlink(&outside, inside.join("folder")).unwrap();
        symlink(inside.join("run"), inside.join("again")).unwrap();
        let roots = Roots::new(std::slice::from_ref(&inside)).unwrap();
        roots.open(&inside.join("run/log.log")).unwrap();
        roots.open(&inside.join("again/log.log")).unwrap();
        for path in ["run/stats.jsonl", "folder/secret", "../in-not/secret", "run/../../in-not/secret"] {
            let e = roots.open(&inside.join(path)).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{path}");
        }
        assert!(roots.open(&inside.join("run")).is_err(), "a directory");
        let made = std::process::Command::new("mkfifo").arg(inside.join("pipe")).status();
        if made.is_ok_and(|s| s.success()) {
            assert_eq!(roots.open(&inside.join("pipe")).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
    }
}
