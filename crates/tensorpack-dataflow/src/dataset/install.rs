//! Puts a data set's files in their place.

use super::checksum::Checksum;
use super::client::Origin;
use super::folder::folder;
use crate::format::Contents;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// A data set as files.
pub(super) struct Files {
    /// Its name, and that of its folder.
    pub(super) name: &'static str,
    pub(super) files: &'static [Piece],
    /// Where it can be had, the first that works.
    pub(super) sources: &'static [Source],
}

/// One file: its name, its size and its checksum.
pub(super) struct Piece(pub(super) &'static str, pub(super) u64, pub(super) Checksum);

/// A place the data set comes from.
pub(super) struct Source {
    pub(super) origin: Origin,
    /// What the download must be, before anything in it is read; the files' own checksums are looked at in any case.
    pub(super) checksum: Option<Checksum>,
    /// Makes the files, in order, out of what was fetched.
    pub(super) unpack: fn(&[Contents]) -> Result<Vec<Vec<u8>>>,
}

impl Files {
    /// The paths of the files, which are fetched if they are not there. Processes that do so at once wait for each
    /// other, and one that is killed leaves nothing half-done under a file's name.
    pub(super) fn ready(&self) -> Result<Vec<PathBuf>> {
        self.ready_in(&folder()?)
    }

    fn ready_in(&self, root: &Path) -> Result<Vec<PathBuf>> {
        let home = root.join(self.name);
        if !self.complete(&home) {
            fs::create_dir_all(&home).map_err(|e| Error::from(e).within(home.display()))?;
            let lock = home.join(".lock");
            let lock = File::create(&lock).map_err(|e| Error::from(e).within(lock.display()))?;
            // Where files cannot be locked, each is still renamed into place whole.
            let _held = lock.lock();
            if !self.complete(&home) {
                self.fetch(&home)?;
            }
        }
        Ok(self.paths(&home))
    }

    fn paths(&self, home: &Path) -> Vec<PathBuf> {
        self.files.iter().map(|Piece(name, ..)| home.join(name)).collect()
    }

    fn complete(&self, home: &Path) -> bool {
        let there =
            |Piece(name, size, _): &Piece| fs::metadata(home.join(name)).is_ok_and(|m| m.len() == *size);
        self.files.iter().all(there)
    }

    fn fetch(&self, home: &Path) -> Result<()> {
        let mut tried = Vec::new();
        for source in self.sources {
            match self.fetch_from(source, home) {
                Ok(()) => return Ok(()),
                Err(e) => tried.push(e.message().to_string()),
            }
        }
        let mut error = Error::new(ErrorKind::Io, format!("the data set {} could not be fetched", self.name));
        for why in tried {
            error = error.note(format!("tried: {why}"));
        }
        error = error.note(format!("without a network, put these files into {} by hand:", home.display()));
        for Piece(name, size, _) in self.files {
            error = error.note(format!("  {name} ({size} bytes)"));
        }
        Err(error.note("or name the folder above it in the environment variable TENSORPACK_DATASET"))
    }

    fn fetch_from(&self, source: &Source, home: &Path) -> Result<()> {
        let partial = Partial::create(home)?;
        let mut fetched = Vec::new();
        for path in source.origin.fetch(&partial.0)? {
            let contents = Contents::open(&path)?;
            if let Some(checksum) = source.checksum {
                check(&path, checksum, &contents.read_all()?)?;
            }
            fetched.push(contents);
        }
        let made = (source.unpack)(&fetched)?;
        for (Piece(name, _, checksum), bytes) in self.files.iter().zip(&made) {
            check(Path::new(name), *checksum, bytes)?;
        }
        for (Piece(name, ..), bytes) in self.files.iter().zip(&made) {
            put(&partial.0.join("whole"), &home.join(name), bytes)?;
        }
        match self.files.len() == made.len() {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Io, "the download does not hold all files")),
        }
    }
}

fn check(path: &Path, checksum: Checksum, bytes: &[u8]) -> Result<()> {
    match checksum.fits(bytes) {
        true => Ok(()),
        false => {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let why = format!("what came as {name} is not the file that was meant: its checksum differs");
            Err(Error::new(ErrorKind::Io, why))
        }
    }
}

/// Writes a file whole: first under the name `partial`, on the same disk.
fn put(partial: &Path, path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(partial, bytes)
        .and_then(|()| File::open(partial)?.sync_all())
        .and_then(|()| fs::rename(partial, path))
        .map_err(|e| Error::from(e).within(path.display()))
}

/// A folder for what is on its way, gone when dropped. One that a killed process left behind is emptied.
struct Partial(PathBuf);

impl Partial {
    fn create(home: &Path) -> Result<Partial> {
        let path = home.join(".partial");
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).map_err(|e| Error::from(e).within(path.display()))?;
        Ok(Partial(path))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABC: Checksum = Checksum::Md5("900150983cd24fb0d6963f7d28e17f72");

    /// A data set whose download is a file of this machine.
    fn letters(source: &'static [Source]) -> Files {
        Files { name: "letters", files: &[Piece("abc", 3, ABC)], sources: source }
    }

    const NOWHERE: Origin = Origin::Web { base: "file:///no/such/folder/", files: &["abc"] };

    #[test]
    fn files_that_are_there_are_not_fetched() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("letters")).unwrap();
        fs::write(dir.path().join("letters/abc"), b"abc").unwrap();
        assert_eq!(letters(&[]).ready_in(dir.path()).unwrap(), [dir.path().join("letters/abc")]);
    }

    #[test]
    fn the_error_says_what_was_tried_and_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let sources = &[Source { origin: NOWHERE, checksum: None, unpack: |_| Ok(vec![]) }];
        let text = letters(sources).ready_in(dir.path()).unwrap_err().to_string();
        assert!(
            text.starts_with("the data set letters could not be fetched\n  tried: file:///no/such"),
            "{text}"
        );
        assert!(text.contains("letters by hand:\n    abc (3 bytes)\n"), "{text}");
        assert!(!dir.path().join("letters/abc").exists());
        assert!(!dir.path().join("letters/.partial").exists());
    }

    #[cfg(unix)]
    #[test]
    fn wrong_bytes_never_get_a_files_name() {
        // An origin that always works: the machine's own list of shells, users or hosts.
        const HERE: Origin = Origin::Web { base: "file:///etc/", files: &["passwd"] };
        let dir = tempfile::tempdir().unwrap();
        let wrong = &[Source { origin: HERE, checksum: None, unpack: |_| Ok(vec![b"abd".to_vec()]) }];
        let text = letters(wrong).ready_in(dir.path()).unwrap_err().to_string();
        assert!(text.contains("its checksum differs") || text.contains("not on this machine"), "{text}");
        assert!(!dir.path().join("letters/abc").exists());
    }

    #[test]
    fn a_file_is_put_whole() {
        let dir = tempfile::tempdir().unwrap();
        let (partial, path) = (dir.path().join("partial"), dir.path().join("abc"));
        put(&partial, &path, b"abc").unwrap();
        assert!(!partial.exists());
        assert_eq!(fs::read(path).unwrap(), b"abc");
    }
}
