//! A file that records are appended to, on a device that may be full for a while.

use crate::io::failed;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use tensorpack_tensor::Result;

/// A file of whole records. If a write fails, because the device is full for example, the records
/// wait in memory, and every later flush tries again.
pub(super) struct AppendFile {
    path: PathBuf,
    file: File,
    /// The length of the file in bytes, which holds whole records only.
    written: u64,
    /// The length that is known to be on the device.
    synced: Option<u64>,
    /// The records that are not in the file yet.
    waiting: Vec<u8>,
    /// Whether the last write failed. The file may then end with a part of a record.
    failing: bool,
}

/// The maximum number of bytes that wait for a device that fails.
const MAX_WAITING: usize = 64 << 20;

impl AppendFile {
    /// Appends to `file`, which contains `written` bytes of whole records. Removes what follows them.
    pub(super) fn new(path: &Path, mut file: File, written: u64) -> io::Result<AppendFile> {
        file.set_len(written)?;
        file.seek(SeekFrom::Start(written))?;
        Ok(AppendFile { path: path.into(), file, written, synced: None, waiting: Vec::new(), failing: false })
    }

    /// Returns the path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the length of the file in bytes, without the records that wait.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Returns the records that are not in the file yet.
    pub(super) fn waiting(&self) -> &[u8] {
        &self.waiting
    }

    /// Adds a record. [`AppendFile::flush`] writes it.
    pub(super) fn append(&mut self, record: &[u8]) {
        self.waiting.extend_from_slice(record);
    }

    /// Writes the records that wait. A failure is logged once, and the next flush tries again; it is
    /// an error only if too many records wait.
    pub(super) fn flush(&mut self) -> Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        match self.write() {
            Ok(()) => {
                self.written += self.waiting.len() as u64;
                self.waiting.clear();
                if std::mem::take(&mut self.failing) {
                    log::info!("{} is complete again", self.path.display());
                }
            }
            Err(e) if self.waiting.len() > MAX_WAITING => return Err(failed("write", &self.path)(e)),
            Err(e) => self.warn(&e),
        }
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        if self.failing {
            self.remove_partial_record()?;
        }
        self.file.write_all(&self.waiting).inspect_err(|_| {
            // Readers cannot parse a part of a record. If this fails, the next write repeats it.
            let _ = self.remove_partial_record();
        })
    }

    fn remove_partial_record(&mut self) -> io::Result<()> {
        self.file.set_len(self.written)?;
        self.file.seek(SeekFrom::Start(self.written)).map(|_| ())
    }

    fn warn(&mut self, e: &io::Error) {
        if !std::mem::replace(&mut self.failing, true) {
            log::warn!("cannot write {}: {e}; every later write tries again", self.path.display());
        }
    }

    /// Writes the records that wait, and syncs the file to the device. A failure is logged.
    pub(super) fn sync(&mut self) -> Result<()> {
        self.flush()?;
        // A sync of a file that has not changed waits for the device all the same.
        if self.synced != Some(self.written) {
            match self.file.sync_data() {
                Ok(()) => self.synced = Some(self.written),
                Err(e) => self.warn(&e),
            }
        }
        Ok(())
    }
}

impl Drop for AppendFile {
    fn drop(&mut self) {
        // A run that panics does not finish its monitors. A failure is logged.
        let _ = self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    impl AppendFile {
        /// Replaces the device by a full one, or by a file.
        pub(crate) fn replace_device(&mut self, path: &str) {
            self.file = File::options().write(true).open(path).unwrap();
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn records_wait_for_a_full_device() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("records");
        let mut file = AppendFile::new(&path, File::create(&path).unwrap(), 0).unwrap();
        file.append(b"one,");
        file.flush().unwrap();
        file.replace_device("/dev/full");
        for record in [&b"two,"[..], b"three,"] {
            file.append(record);
            file.flush().unwrap();
            file.sync().unwrap();
        }
        assert_eq!((file.written(), file.waiting()), (4, &b"two,three,"[..]));
        // The part of a record that a failed write has left is removed.
        std::fs::write(&path, b"one,tw").unwrap();
        file.replace_device(path.to_str().unwrap());
        file.append(b"four,");
        file.flush().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"one,two,three,four,");
        assert_eq!((file.written(), file.waiting()), (19, &b""[..]));
    }

    #[test]
    fn a_dropped_file_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("records");
        let mut file = AppendFile::new(&path, File::create(&path).unwrap(), 0).unwrap();
        file.append(b"one,");
        drop(file);
        assert_eq!(std::fs::read(&path).unwrap(), b"one,");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn too_many_waiting_records_are_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("records");
        let mut file = AppendFile::new(&path, File::create(&path).unwrap(), 0).unwrap();
        file.replace_device("/dev/full");
        file.append(&vec![0; MAX_WAITING]);
        file.flush().unwrap();
        file.append(b"x");
        assert!(file.flush().unwrap_err().message().contains("records"));
    }
}
