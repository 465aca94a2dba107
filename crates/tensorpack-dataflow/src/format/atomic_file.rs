//! Atomic file creation.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use tensorpack_tensor::{Error, Result};

/// A file under construction. It has a temporary name until [`AtomicFile::finish`] renames it;
/// dropping it earlier removes it.
pub(crate) struct AtomicFile {
    path: PathBuf,
    partial: PathBuf,
    file: Option<BufWriter<File>>,
}

impl AtomicFile {
    /// Starts writing `path`, which must not exist.
    pub(crate) fn create(path: impl AsRef<Path>) -> Result<AtomicFile> {
        let path = path.as_ref().to_path_buf();
        let Some(name) = path.file_name() else {
            return Err(Error::argument(format!("{} is not a file name", path.display())));
        };
        if path.exists() {
            let why = format!("{} already exists and would be overwritten", path.display());
            return Err(Error::argument(why).note("remove it, or choose another path"));
        }
        let name = format!(".{}.{}.partial", name.to_string_lossy(), std::process::id());
        let partial = path.with_file_name(name);
        let file = File::create(&partial).map_err(|e| Error::from(e).within(partial.display()))?;
        Ok(AtomicFile { path, partial, file: Some(BufWriter::with_capacity(1 << 18, file)) })
    }

    fn file(&mut self) -> io::Result<&mut BufWriter<File>> {
        self.file.as_mut().ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }

    /// Appends `bytes`.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.write_all(bytes).map_err(|e| Error::from(e).within(self.path.display()))
    }

    /// Syncs the file to disk and renames it to its final name.
    pub(crate) fn finish(mut self) -> Result<()> {
        let Some(mut file) = self.file.take() else { return Ok(()) };
        file.flush()
            .and_then(|()| file.get_ref().sync_all())
            .and_then(|()| fs::rename(&self.partial, &self.path))
            .map_err(|e| Error::from(e).within(self.path.display()))
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file()?.flush()
    }
}

impl Seek for AtomicFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file()?.seek(to)
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        self.file = None;
        // After `finish` there is no such file, and an error in a destructor helps nobody.
        let _ = fs::remove_file(&self.partial);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_appears_only_when_complete() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let mut file = AtomicFile::create(&path).unwrap();
        file.append(b"half").unwrap();
        assert!(!path.exists());
        drop(file);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);

        let mut file = AtomicFile::create(&path).unwrap();
        file.append(b"whole").unwrap();
        file.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert!(AtomicFile::create(&path).is_err_and(|e| e.message().contains("already exists")));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
