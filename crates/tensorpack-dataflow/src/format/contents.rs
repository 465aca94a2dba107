//! The bytes of a file, read at any offset.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The bytes of a file, or bytes in memory that stand for one. Reading needs no position, so that threads can share
/// it, and never allocates more than the file holds. Cloning shares the file.
#[derive(Clone, Debug)]
pub struct Contents {
    name: Arc<str>,
    len: u64,
    place: Arc<Place>,
}

#[derive(Debug)]
enum Place {
    File(File),
    Memory(Vec<u8>),
}

impl Contents {
    /// The file at `path`. How long it is now is how long it stays: what is appended later is not seen.
    pub fn open(path: impl AsRef<Path>) -> Result<Contents> {
        let path = path.as_ref();
        let name: Arc<str> = path.display().to_string().into();
        let opened = File::open(path).and_then(|file| {
            let meta = file.metadata()?;
            Ok((file, meta))
        });
        let (file, meta) = opened.map_err(|e| Error::from(e).within(&name))?;
        if !meta.is_file() {
            return Err(Error::argument(format!("{name} is not a file")));
        }
        Ok(Contents { name, len: meta.len(), place: Arc::new(Place::File(file)) })
    }

    /// `bytes`, called `name` in errors.
    pub fn memory(name: impl Into<String>, bytes: Vec<u8>) -> Contents {
        let len = bytes.len() as u64;
        Contents { name: name.into().into(), len, place: Arc::new(Place::Memory(bytes)) }
    }

    /// The file's name, as it was opened.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many bytes there are.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The `len` bytes from `offset` on.
    pub fn read(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            let left = self.len.saturating_sub(offset);
            return Err(self.error(offset, format!("{len} bytes should follow, but {left} are left")));
        }
        let mut bytes = Vec::new();
        let room = usize::try_from(len).ok().filter(|&n| bytes.try_reserve_exact(n).is_ok());
        let Some(room) = room else {
            let why = format!("{len} bytes at {offset} do not fit into memory");
            return Err(Error::new(ErrorKind::Memory, why).within(&self.name));
        };
        bytes.resize(room, 0);
        self.fill(offset, &mut bytes)
            .map_err(|e| Error::from(e).within(format!("{}, byte {offset}", self.name)))?;
        Ok(bytes)
    }

    /// All bytes.
    pub fn read_all(&self) -> Result<Vec<u8>> {
        self.read(0, self.len)
    }

    /// The bytes from `offset` on, one after the other.
    pub fn reader_at(&self, offset: u64) -> ContentsReader {
        ContentsReader { contents: self.clone(), offset }
    }

    /// An error that what stands at `offset` is not what it should be.
    pub fn error(&self, offset: u64, why: impl AsRef<str>) -> Error {
        Error::new(ErrorKind::Data, format!("{}, byte {offset}: {}", self.name, why.as_ref()))
    }

    fn fill(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        match &*self.place {
            Place::File(file) => read_exact_at(file, bytes, offset),
            Place::Memory(all) => {
                // The range was checked against the length, which is that of the vector.
                bytes.copy_from_slice(&all[offset as usize..][..bytes.len()]);
                Ok(())
            }
        }
    }
}

/// Reads [`Contents`] from front to back.
#[derive(Debug)]
pub struct ContentsReader {
    contents: Contents,
    offset: u64,
}

impl Read for ContentsReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.contents.len.saturating_sub(self.offset);
        let n = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.contents.fill(self.offset, &mut buffer[..n])?;
        self.offset += n as u64;
        Ok(n)
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let n = std::os::windows::fs::FileExt::seek_read(file, bytes, offset)?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        (bytes, offset) = (&mut bytes[n..], offset + n as u64);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_and_memory_read_alike() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bytes");
        std::fs::write(&path, b"0123456789").unwrap();
        for contents in [Contents::open(&path).unwrap(), Contents::memory("bytes", b"0123456789".to_vec())] {
            assert_eq!(contents.len(), 10);
            assert_eq!(contents.read(3, 4).unwrap(), b"3456");
            assert_eq!(contents.read(10, 0).unwrap(), b"");
            assert!(contents.read(u64::MAX, 2).is_err());
            let e = contents.read(8, 1 << 60).unwrap_err();
            assert!(e.message().ends_with("byte 8: 1152921504606846976 bytes should follow, but 2 are left"));
            let mut rest = Vec::new();
            contents.reader_at(7).read_to_end(&mut rest).unwrap();
            assert_eq!(rest, b"789");
        }
    }

    #[test]
    fn what_is_no_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Contents::open(dir.path()).unwrap_err().message().ends_with("is not a file"));
        let missing = dir.path().join("missing");
        assert!(Contents::open(missing).unwrap_err().message().contains("missing: "));
    }
}
