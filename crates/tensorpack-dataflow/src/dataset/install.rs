//! Puts a data set's files in their place.

use super::checksum::Checksum;
use super::client::Origin;
use super::folder::folder;
use crate::format::Contents;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// A data set as `N` files.
pub(super) struct Files<const N: usize> {
    /// Its name, and that of its folder.
    pub(super) name: &'static str,
    pub(super) files: [Piece; N],
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

impl<const N: usize> Files<N> {
    /// The paths of the files, which are fetched if they are not there. Processes that do so at once wait for each
    /// other, and one that is killed leaves nothing half-done under a file's name.
    pub(super) fn ready(&self) -> Result<[PathBuf; N]> {
        self.ready_in(&folder()?)
    }

    fn ready_in(&self, root: &Path) -> Result<[PathBuf; N]> {
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
        Ok(self.files.each_ref().map(|Piece(name, ..)| home.join(name)))
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
        for Piece(name, size, _) in &self.files {
            error = error.note(format!("  {name} ({size} bytes)"));
        }
        Err(error.note("or name the folder above it in the environment variable TENSORPACK_DATASET"))
    }

    fn fetch_from(&self, source: &Source, home: &Path) -> Result<()> {
        let partial = Partial::create(home)?;
        let mut fetched = Vec::new();
        for path in source.origin.fetch(self.name, &partial.0)? {
            let contents = Contents::open(&path)?;
            if let Some(checksum) = source.checksum {
                check(&path, checksum, &contents.read_all()?)?;
            }
            fetched.push(contents);
        }
        let made = (source.unpack)(&fetched)?;
        if made.len() != N {
            return Err(Error::new(ErrorKind::Io, format!("{} files came, not {N}", made.len())));
        }
        for (Piece(name, _, checksum), bytes) in self.files.iter().zip(&made) {
            check(Path::new(name), *checksum, bytes)?;
        }
        for (Piece(name, ..), bytes) in self.files.iter().zip(&made) {
            put(&partial.0.join("whole"), &home.join(name), bytes)?;
        }
        Ok(())
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    const ABC: Checksum = Checksum::Md5("900150983cd24fb0d6963f7d28e17f72");

    fn letters(sources: &'static [Source]) -> Files<1> {
        Files { name: "letters", files: [Piece("abc", 3, ABC)], sources }
    }

    const NOWHERE: Source = Source {
        origin: Origin::Given(None),
        checksum: None,
        unpack: |_| unreachable!("nothing was fetched"),
    };
    const RIGHT: Source = Source {
        origin: Origin::Given(Some(b"abc")),
        checksum: Some(ABC),
        unpack: |f| Ok(vec![f[0].read_all()?]),
    };
    const WRONG: Source = Source { origin: Origin::Given(Some(b"abd")), checksum: None, ..RIGHT };

    #[test]
    fn files_that_are_there_are_not_fetched() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("letters")).unwrap();
        fs::write(dir.path().join("letters/abc"), b"abc").unwrap();
        assert_eq!(letters(&[]).ready_in(dir.path()).unwrap(), [dir.path().join("letters/abc")]);
    }

    #[test]
    fn the_first_source_that_has_the_right_bytes_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let [abc] = letters(&[NOWHERE, WRONG, RIGHT]).ready_in(dir.path()).unwrap();
        assert_eq!(fs::read(abc).unwrap(), b"abc");
    }

    #[test]
    fn the_error_says_what_was_tried_and_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let text = letters(&[NOWHERE, WRONG]).ready_in(dir.path()).unwrap_err().to_string();
        let start = "the data set letters could not be fetched\n  tried: nothing is given\n  tried: what came as abc is not";
        assert!(text.starts_with(start), "{text}");
        assert!(text.contains("letters by hand:\n    abc (3 bytes)\n"), "{text}");
        assert!(!dir.path().join("letters/abc").exists());
        assert!(!dir.path().join("letters/.partial").exists());
    }

    #[test]
    fn what_a_killed_process_left_is_no_hindrance() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("letters/.partial/deep")).unwrap();
        fs::write(dir.path().join("letters/.partial/whole"), b"ab").unwrap();
        fs::write(dir.path().join("letters/abc"), b"ab").unwrap();
        let [abc] = letters(&[RIGHT]).ready_in(dir.path()).unwrap();
        assert_eq!(fs::read(abc).unwrap(), b"abc");
        assert!(!dir.path().join("letters/.partial").exists());
    }

    #[test]
    fn those_who_come_at_once_fetch_once() {
        static FETCHED: AtomicUsize = AtomicUsize::new(0);
        const SLOW: Source = Source {
            unpack: |f| {
                FETCHED.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(std::time::Duration::from_millis(50));
                (RIGHT.unpack)(f)
            },
            ..RIGHT
        };
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            let ready = || letters(&[SLOW]).ready_in(dir.path()).unwrap();
            let all: Vec<_> = (0..4).map(|_| scope.spawn(ready)).collect();
            for one in all {
                assert_eq!(fs::read(&one.join().unwrap()[0]).unwrap(), b"abc");
            }
        });
        assert_eq!(FETCHED.load(Ordering::SeqCst), 1);
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
