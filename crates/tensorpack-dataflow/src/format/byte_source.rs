//! Positioned reads from a file or from memory.

use super::open_regular_file;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The bytes of a file or of a buffer in memory, readable at any offset.
///
/// Reads take an explicit offset, so threads can share a source, and never allocate more than the
/// file holds. Clones share the file.
#[doc(alias = "Contents")]
#[doc(alias = "RandomAccessFile")]
#[derive(Clone)]
pub struct ByteSource {
    name: Arc<str>,
    len: u64,
    storage: Arc<Storage>,
}

enum Storage {
    File(File),
    Memory(Vec<u8>),
}

// Without the bytes, which may be gigabytes.
impl fmt::Debug for ByteSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByteSource").field("name", &self.name).field("len", &self.len).finish()
    }
}

impl ByteSource {
    /// Opens the file at `path`, which must be a regular file. Its length is fixed at this point;
    /// bytes appended later are not seen.
    pub fn open(path: impl AsRef<Path>) -> Result<ByteSource> {
        let path = path.as_ref();
        let name: Arc<str> = path.display().to_string().into();
        let (file, meta) = open_regular_file(path).map_err(|e| match e.kind() {
            io::ErrorKind::InvalidInput => Error::argument(format!("{name} is {e}")),
            _ => Error::from(e).within(&name),
        })?;
        Ok(ByteSource { name, len: meta.len(), storage: Arc::new(Storage::File(file)) })
    }

    /// Creates a source from `bytes`. Errors refer to it as `name`.
    #[doc(alias = "memory")]
    pub fn from_bytes(name: impl Into<String>, bytes: Vec<u8>) -> ByteSource {
        let len = bytes.len() as u64;
        ByteSource { name: name.into().into(), len, storage: Arc::new(Storage::Memory(bytes)) }
    }

    /// Returns the name used in errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the source is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads `len` bytes at `offset`.
    pub fn read(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        self.check_range(offset, len)?;
        let mut bytes = Vec::new();
        let capacity = usize::try_from(len).ok().filter(|&n| bytes.try_reserve_exact(n).is_ok());
        let Some(capacity) = capacity else {
            let why = format!("cannot allocate {len} bytes for the data at offset {offset}");
            return Err(Error::new(ErrorKind::Memory, why).within(&self.name));
        };
        bytes.resize(capacity, 0);
        self.read_into(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Fills `bytes` with those at `offset`.
    pub fn read_into(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.check_range(offset, bytes.len() as u64)?;
        self.read_exact_at_offset(offset, bytes)
            .map_err(|e| Error::from(e).within(format!("{}, byte {offset}", self.name)))
    }

    /// Checks that there are `len` bytes at `offset`.
    fn check_range(&self, offset: u64, len: u64) -> Result<()> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            let left = self.len.saturating_sub(offset);
            return Err(self.error_at(offset, format!("expected {len} more bytes, but only {left} remain")));
        }
        Ok(())
    }

    /// Reads everything.
    pub fn read_all(&self) -> Result<Vec<u8>> {
        self.read(0, self.len)
    }

    /// Returns a sequential reader starting at `offset`.
    pub fn reader_at(&self, offset: u64) -> ByteSourceReader {
        ByteSourceReader { source: self.clone(), offset }
    }

    /// Creates a data error that names this source and `offset`.
    #[doc(alias = "error")]
    pub fn error_at(&self, offset: u64, why: impl AsRef<str>) -> Error {
        Error::new(ErrorKind::Data, format!("{}, byte {offset}: {}", self.name, why.as_ref()))
    }

    fn read_exact_at_offset(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        match &*self.storage {
            Storage::File(file) => read_exact_at(file, bytes, offset),
            Storage::Memory(all) => {
                // `read_into` checked the range against `len`, which is the length of this vector.
                bytes.copy_from_slice(&all[offset as usize..][..bytes.len()]);
                Ok(())
            }
        }
    }
}

/// Reads a [`ByteSource`] sequentially.
#[doc(alias = "ContentsReader")]
#[derive(Debug)]
pub struct ByteSourceReader {
    source: ByteSource,
    offset: u64,
}

impl Read for ByteSourceReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.source.len.saturating_sub(self.offset);
        let n = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        // A seek may have gone past the end.
        if n == 0 {
            return Ok(0);
        }
        self.source.read_exact_at_offset(self.offset, &mut buffer[..n])?;
        self.offset += n as u64;
        Ok(n)
    }
}

impl Seek for ByteSourceReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(delta) => self.source.len.checked_add_signed(delta),
            SeekFrom::Current(delta) => self.offset.checked_add_signed(delta),
        };
        self.offset = target
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "seek to a negative position"))?;
        Ok(self.offset)
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
    fn file_and_memory_sources_agree() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bytes");
        std::fs::write(&path, b"0123456789").unwrap();
        for source in
            [ByteSource::open(&path).unwrap(), ByteSource::from_bytes("bytes", b"0123456789".to_vec())]
        {
            assert_eq!(source.len(), 10);
            assert_eq!(source.read(3, 4).unwrap(), b"3456");
            assert_eq!(source.read(10, 0).unwrap(), b"");
            let mut four = [0; 4];
            source.read_into(6, &mut four).unwrap();
            assert_eq!(&four, b"6789");
            assert_eq!(source.read_into(7, &mut four).unwrap_err().kind(), ErrorKind::Data);
            assert!(source.read(u64::MAX, 2).is_err());
            let e = source.read(8, 1 << 60).unwrap_err();
            assert!(e.kind() == ErrorKind::Data && e.message().contains("byte 8"), "{e}");
            let mut rest = Vec::new();
            source.reader_at(7).read_to_end(&mut rest).unwrap();
            assert_eq!(rest, b"789");
            let mut reader = source.reader_at(0);
            assert_eq!((reader.seek(SeekFrom::End(-2)).unwrap(), reader.read(&mut [0; 4]).unwrap()), (8, 2));
            assert_eq!(reader.seek(SeekFrom::Current(90)).unwrap(), 100);
            assert_eq!(reader.read(&mut [0; 4]).unwrap(), 0);
            assert!(reader.seek(SeekFrom::Current(-101)).is_err());
        }
    }

    #[test]
    fn open_errors_name_the_path() {
        let dir = tempfile::tempdir().unwrap();
        assert!(ByteSource::open(dir.path()).unwrap_err().message().contains("not a regular file"));
        let missing = dir.path().join("missing");
        assert!(ByteSource::open(missing).unwrap_err().message().contains("missing: "));
    }
}
