//! A record of files whose contents were verified, so that each version is read only once.

use super::checksum::Checksum;
use crate::format::open_regular_file;
use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::UNIX_EPOCH;
use tensorpack_tensor::{Error, Result};

/// The verified files of a directory, kept in its file `.verified`: one line per file, with its
/// stamp, its checksum and its name.
///
/// A stamp is the size, the time of the last change and, on Unix, the inode. A file that was
/// changed or replaced has another stamp and is verified again.
pub(super) struct VerifiedFiles {
    path: PathBuf,
    lines: BTreeMap<String, String>,
}

/// The files that this process uses: `mnist/train-images-idx3-ubyte` and their checksums.
static USED: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// Returns the files of data sets that this process has opened, by names such as
/// `mnist/train-images-idx3-ubyte.gz`, with their checksums, such as `sha256:1f0e..`. Only those of this
/// module: generated data has no file, and files of your own have no checksum.
pub fn used_files() -> BTreeMap<String, String> {
    USED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Notes that a file of a data set, whose contents were verified, is used.
pub(super) fn note_used(dataset: &str, file: &str, checksum: Checksum) {
    let mut used = USED.lock().unwrap_or_else(PoisonError::into_inner);
    used.insert(format!("{dataset}/{file}"), checksum.to_string());
}

/// The longest record that is read. A longer one counts as missing.
const MAX_RECORD: u64 = 1 << 16;

impl VerifiedFiles {
    /// Reads the record of a directory. A missing or unreadable one is empty.
    pub(super) fn load(folder: &Path) -> VerifiedFiles {
        let path = folder.join(".verified");
        let text = open_regular_file(&path).ok().filter(|(_, meta)| meta.len() <= MAX_RECORD);
        let text = text.and_then(|(file, _)| io::read_to_string(file).ok()).unwrap_or_default();
        let lines = text.lines().filter_map(|line| {
            let (stamp, name) = line.rsplit_once(' ')?;
            Some((name.to_string(), stamp.to_string()))
        });
        VerifiedFiles { lines: lines.collect(), path }
    }

    /// Returns whether a file has the size and the checksum. Reads it unless this version of it is
    /// in the record. A missing file does not match; one that cannot be read is an error.
    pub(super) fn matches(&mut self, name: &str, size: u64, checksum: Checksum) -> Result<bool> {
        let path = self.path.with_file_name(name);
        let within = |e: io::Error| Error::from(e).within(path.display());
        let (file, meta) = match open_regular_file(&path) {
            Ok(opened) => opened,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(within(e)),
        };
        if meta.len() != size {
            return Ok(false);
        }
        let stamp = format!("{} {checksum}", stamp(&meta));
        if self.lines.get(name) == Some(&stamp) {
            return Ok(true);
        }
        let matches = checksum.matches_reader(file).map_err(within)?;
        if matches {
            self.lines.insert(name.to_string(), stamp);
            self.save();
        }
        Ok(matches)
    }

    /// Writes the record. Without it, for example in a directory that is read-only, files are
    /// verified again the next time.
    fn save(&self) {
        let text: String = self.lines.iter().map(|(name, stamp)| format!("{stamp} {name}\n")).collect();
        let partial = self.path.with_file_name(format!(".verified.{}", std::process::id()));
        let written = fs::write(&partial, text).and_then(|()| fs::rename(&partial, &self.path));
        if written.is_err() {
            let _ = fs::remove_file(&partial);
        }
    }
}

fn stamp(meta: &Metadata) -> String {
    let changed = meta.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let nanoseconds = changed.map_or(0, |since| since.as_nanos());
    #[cfg(unix)]
    let inode = std::os::unix::fs::MetadataExt::ino(meta);
    #[cfg(not(unix))]
    let inode = 0;
    format!("{} {nanoseconds} {inode}", meta.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABC: Checksum = Checksum("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");

    #[test]
    fn contents_are_read_once_per_version() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("abc");
        let matches = || VerifiedFiles::load(dir.path()).matches("abc", 3, ABC).unwrap();
        assert!(!matches());
        fs::write(&path, "abd").unwrap();
        assert!(!matches(), "the size alone is not enough");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "abc").unwrap();
        assert!(matches());
        // A record of the version makes another read unnecessary.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "abd").unwrap();
        assert!(!matches(), "a replaced file is verified again");
        let stamp = stamp(&fs::metadata(&path).unwrap());
        fs::write(dir.path().join(".verified"), format!("{stamp} {ABC} abc\n")).unwrap();
        assert!(matches(), "the version is in the record");
        fs::write(dir.path().join(".verified"), "nonsense").unwrap();
        assert!(!matches());
    }
}
