//! The bytes of a file, read at any offset.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The bytes of a file, or bytes in memory that stand for one. Reading needs no position, so that threads can share
/// it, and never allocates more than the file holds. Cloning shares the file.
#[doc(alias = "Contents")]
#[doc(alias = "RandomAccessFile")]
#[derive(Clone, Debug)]
pub struct ByteSource {
    name: Arc<str>,
    len: u64,
    storage: Arc<Storage>,
}

#[derive(Debug)]
enum Storage {
    File(File),
    Memory(Vec<u8>),
}

impl ByteSource {
    /// The file at `path`. How long it is now is how long it stays: what is appended later is not seen.
    pub fn open(path: impl AsRef<Path>) -> Result<ByteSource> {
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
        Ok(ByteSource { name, len: meta.len(), storage: Arc::new(Storage::File(file)) })
    }

    /// `bytes`, called `name` in errors.
    #[doc(alias = "memory")]
    pub fn from_bytes(name: impl Into<String>, bytes: Vec<u8>) -> ByteSource {
        let len = bytes.len() as u64;
        ByteSource { name: name.into().into(), len, storage: Arc::new(Storage::Memory(bytes)) }
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
            return Err(self.error_at(offset, format!("{len} bytes should follow, but {left} are left")));
        }
        let mut bytes = Vec::new();
        let capacity = usize::try_from(len).ok().filter(|&n| bytes.try_reserve_exact(n).is_ok());
        let Some(capacity) = capacity else {
            let why = format!("{len} bytes at {offset} do not fit into memory");
            return Err(Error::new(ErrorKind::Memory, why).within(&self.name));
        };
        bytes.resize(capacity, 0);
        self.read_exact_at_offset(offset, &mut bytes)
            .map_err(|e| Error::from(e).within(format!("{}, byte {offset}", self.name)))?;
        Ok(bytes)
    }

    /// All bytes.
    pub fn read_all(&self) -> Result<Vec<u8>> {
        self.read(0, self.len)
    }

    /// The bytes from `offset` on, one after the other.
    pub fn reader_at(&self, offset: u64) -> ByteSourceReader {
        ByteSourceReader { source: self.clone(), offset }
    }

    /// An error that what stands at `offset` is not what it should be.
    #[doc(alias = "error")]
    pub fn error_at(&self, offset: u64, why: impl AsRef<str>) -> Error {
        Error::new(ErrorKind::Data, format!("{}, byte {offset}: {}", self.name, why.as_ref()))
    }

    fn read_exact_at_offset(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        match &*self.storage {
            Storage::File(file) => read_exact_at(file, bytes, offset),
            Storage::Memory(all) => {
                // The range was checked against the length, which is that of the vector.
                bytes.copy_from_slice(&all[offset as usize..][..bytes.len()]);
                Ok(())
            }
        }
    }
}

/// Reads [`ByteSource`] from front to back.
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
        self.source.read_exact_at_offset(self.offset, &mut buffer[..n])?;
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
            assert!(source.read(u64::MAX, 2).is_err());
            let e = source.read(8, 1 << 60).unwrap_err();
            assert!(e.message().ends_with("byte 8: 1152921504606846976 bytes should follow, but 2 are left"));
            let mut rest = Vec::new();
            source.reader_at(7).read_to_end(&mut rest).unwrap();
            assert_eq!(rest, b"789");
        }
    }

    #[test]
    fn open_errors_name_the_path() {
        let dir = tempfile::tempdir().unwrap();
        assert!(ByteSource::open(dir.path()).unwrap_err().message().ends_with("is not a file"));
        let missing = dir.path().join("missing");
        assert!(ByteSource::open(missing).unwrap_err().message().contains("missing: "));
    }
}
