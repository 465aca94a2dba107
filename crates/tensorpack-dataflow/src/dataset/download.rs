//! Downloading and verifying the files of a data set.

use super::checksum::Checksum;
use super::data_dir::data_dir;
use super::lock_file::lock_file;
use super::package_client::Origin;
use super::verified_files::{VerifiedFiles, note_used};
use crate::format::ByteSource;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// A data set that consists of `N` files.
pub(super) struct DatasetFiles<const N: usize> {
    /// The name of the data set and of its directory.
    pub(super) name: &'static str,
    pub(super) files: [DatasetFile; N],
    /// Where to download it, tried in order.
    pub(super) mirrors: &'static [Mirror],
}

/// A file name, size and checksum.
pub(super) struct DatasetFile(pub(super) &'static str, pub(super) u64, pub(super) Checksum);

/// A place to download a data set from.
pub(super) struct Mirror {
    pub(super) origin: Origin,
    /// Checksum of the download, verified before it is parsed. The checksums of the extracted files
    /// are verified in any case.
    pub(super) checksum: Option<Checksum>,
    /// Extracts the files, in order, from the download.
    pub(super) extract: fn(&[ByteSource]) -> Result<Vec<Vec<u8>>>,
}

impl<const N: usize> DatasetFiles<N> {
    /// Returns the paths of the files, downloading them if necessary. Concurrent processes wait for
    /// each other, and a killed one leaves no partial file under a final name.
    pub(super) fn ensure_downloaded(&self) -> Result<[PathBuf; N]> {
        self.ensure_downloaded_in(&data_dir()?)
    }

    fn ensure_downloaded_in(&self, root: &Path) -> Result<[PathBuf; N]> {
        let dataset_dir = root.join(self.name);
        if !self.is_complete(&dataset_dir)? {
            fs::create_dir_all(&dataset_dir).map_err(|e| Error::from(e).within(dataset_dir.display()))?;
            let _lock = lock_file(&dataset_dir.join(".lock"), &format!("download {}", self.name))?;
            if !self.is_complete(&dataset_dir)? {
                self.fetch(&dataset_dir)?;
            }
        }
        for DatasetFile(file, _, checksum) in &self.files {
            note_used(self.name, file, *checksum);
        }
        Ok(self.files.each_ref().map(|DatasetFile(name, ..)| dataset_dir.join(name)))
    }

    /// Returns whether all files are present and have the right contents. The contents of each are
    /// read once; see [`VerifiedFiles`].
    fn is_complete(&self, dataset_dir: &Path) -> Result<bool> {
        let mut verified = VerifiedFiles::load(dataset_dir);
        for DatasetFile(name, size, checksum) in &self.files {
            if !verified.matches(name, *size, *checksum)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn fetch(&self, dataset_dir: &Path) -> Result<()> {
        let mut errors = Vec::new();
        for mirror in self.mirrors {
            match self.fetch_from(mirror, dataset_dir) {
                Ok(()) => return Ok(()),
                Err(e) => errors.push(e.to_string().replace("\n  ", "; ")),
            }
        }
        let mut error = Error::new(ErrorKind::Io, format!("cannot download data set {}", self.name));
        for why in errors {
            error = error.note(format!("attempt: {why}"));
        }
        error =
            error.note(format!("to install it manually, place these files in {}:", dataset_dir.display()));
        for DatasetFile(name, size, checksum) in &self.files {
            let is =
                if dataset_dir.join(name).exists() { "; the present file may be another one" } else { "" };
            error = error.note(format!("  {name} ({size} bytes, {checksum}){is}"));
        }
        Err(error.note("or set TENSORPACK_DATASET to the directory that contains it"))
    }

    fn fetch_from(&self, mirror: &Mirror, dataset_dir: &Path) -> Result<()> {
        let partial = PartialDir::create(dataset_dir)?;
        let mut fetched = Vec::new();
        for path in mirror.origin.fetch(self.name, &partial.0)? {
            let source = ByteSource::open(&path)?;
            if let Some(checksum) = mirror.checksum {
                check(&path, checksum, &source.read_all()?)?;
            }
            fetched.push(source);
        }
        let extracted = (mirror.extract)(&fetched)?;
        if extracted.len() != N {
            return Err(Error::new(ErrorKind::Io, format!("expected {N} files, got {}", extracted.len())));
        }
        for (DatasetFile(name, _, checksum), bytes) in self.files.iter().zip(&extracted) {
            check(Path::new(name), *checksum, bytes)?;
        }
        for (DatasetFile(name, ..), bytes) in self.files.iter().zip(&extracted) {
            write_atomically(&partial.0.join("whole"), &dataset_dir.join(name), bytes)?;
        }
        Ok(())
    }
}

fn check(path: &Path, checksum: Checksum, bytes: &[u8]) -> Result<()> {
    match checksum.matches(bytes) {
        true => Ok(()),
        false => {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let why = format!("checksum mismatch of {name}");
            Err(Error::new(ErrorKind::Io, why))
        }
    }
}

/// Writes a file atomically, through a temporary file `partial` on the same disk.
fn write_atomically(partial: &Path, path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(partial, bytes)
        .and_then(|()| File::open(partial)?.sync_all())
        .and_then(|()| fs::rename(partial, path))
        .map_err(|e| Error::from(e).within(path.display()))
}

/// A temporary directory, removed on drop. Leftovers of a killed process are deleted first.
struct PartialDir(PathBuf);

impl PartialDir {
    fn create(dataset_dir: &Path) -> Result<PartialDir> {
        let path = dataset_dir.join(".partial");
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).map_err(|e| Error::from(e).within(path.display()))?;
        Ok(PartialDir(path))
    }
}

impl Drop for PartialDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const ABC: Checksum = Checksum("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");

    fn abc_dataset(mirrors: &'static [Mirror]) -> DatasetFiles<1> {
        DatasetFiles { name: "letters", files: [DatasetFile("abc", 3, ABC)], mirrors }
    }

    const UNAVAILABLE: Mirror = Mirror {
        origin: Origin::Fixture(None),
        checksum: None,
        extract: |_| unreachable!("nothing was downloaded"),
    };
    const VALID: Mirror = Mirror {
        origin: Origin::Fixture(Some(b"abc")),
        checksum: Some(ABC),
        extract: |f| Ok(vec![f[0].read_all()?]),
    };
    const CORRUPT: Mirror = Mirror { origin: Origin::Fixture(Some(b"abd")), checksum: None, ..VALID };

    #[test]
    fn existing_files_are_not_downloaded() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("letters")).unwrap();
        fs::write(dir.path().join("letters/abc"), b"abc").unwrap();
        assert_eq!(
            abc_dataset(&[]).ensure_downloaded_in(dir.path()).unwrap(),
            [dir.path().join("letters/abc")]
        );
        assert_eq!(super::super::used_files()["letters/abc"], ABC.to_string());
    }

    #[test]
    fn files_with_the_right_size_and_the_wrong_contents_are_downloaded_again() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("letters")).unwrap();
        fs::write(dir.path().join("letters/abc"), b"abd").unwrap();
        let [abc] = abc_dataset(&[VALID]).ensure_downloaded_in(dir.path()).unwrap();
        assert_eq!(fs::read(abc).unwrap(), b"abc");
    }

    #[test]
    fn only_https_is_used() {
        const PLAIN: Mirror =
            Mirror { origin: Origin::Web { base: "http://localhost:9/", files: &["abc"] }, ..VALID };
        let dir = tempfile::tempdir().unwrap();
        let e = abc_dataset(&[PLAIN]).ensure_downloaded_in(dir.path()).unwrap_err();
        assert!(e.to_string().contains("https"), "{e}");
    }

    #[test]
    fn first_mirror_with_a_matching_checksum_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let [abc] = abc_dataset(&[UNAVAILABLE, CORRUPT, VALID]).ensure_downloaded_in(dir.path()).unwrap();
        assert_eq!(fs::read(abc).unwrap(), b"abc");
    }

    #[test]
    fn error_lists_attempts_and_remedies() {
        let dir = tempfile::tempdir().unwrap();
        let text =
            abc_dataset(&[UNAVAILABLE, CORRUPT]).ensure_downloaded_in(dir.path()).unwrap_err().to_string();
        let terms = [
            "data set letters",
            "no fixture",
            "checksum mismatch of abc",
            "letters:\n    abc (3 bytes, sha256:ba78",
        ];
        for term in terms {
            assert!(text.contains(term), "{term:?} is missing:\n{text}");
        }
        assert!(!dir.path().join("letters/abc").exists() && !text.contains("present file"));
        fs::write(dir.path().join("letters/abc"), b"abd").unwrap();
        let e = abc_dataset(&[UNAVAILABLE]).ensure_downloaded_in(dir.path()).unwrap_err();
        assert!(e.to_string().contains("present file"), "{e}");
        assert!(!dir.path().join("letters/.partial").exists());
    }

    #[test]
    fn leftovers_of_a_killed_process_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("letters/.partial/deep")).unwrap();
        fs::write(dir.path().join("letters/.partial/whole"), b"ab").unwrap();
        fs::write(dir.path().join("letters/abc"), b"ab").unwrap();
        let [abc] = abc_dataset(&[VALID]).ensure_downloaded_in(dir.path()).unwrap();
        assert_eq!(fs::read(abc).unwrap(), b"abc");
        assert!(!dir.path().join("letters/.partial").exists());
    }

    #[test]
    fn concurrent_callers_download_once() {
        static FETCHED: AtomicUsize = AtomicUsize::new(0);
        const SLOW: Mirror = Mirror {
            extract: |f| {
                FETCHED.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(std::time::Duration::from_millis(50));
                (VALID.extract)(f)
            },
            ..VALID
        };
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            let ready = || abc_dataset(&[SLOW]).ensure_downloaded_in(dir.path()).unwrap();
            let all: Vec<_> = (0..4).map(|_| scope.spawn(ready)).collect();
            for one in all {
                assert_eq!(fs::read(&one.join().unwrap()[0]).unwrap(), b"abc");
            }
        });
        assert_eq!(FETCHED.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn write_is_atomic() {
        let dir = tempfile::tempdir().unwrap();
        let (partial, path) = (dir.path().join("partial"), dir.path().join("abc"));
        write_atomically(&partial, &path, b"abc").unwrap();
        assert!(!partial.exists());
        assert_eq!(fs::read(path).unwrap(), b"abc");
    }
}
