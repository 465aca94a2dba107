//! Zip archives with size limits, on top of the crate `zip`.
//!
//! Archives are not trusted: an entry's size is checked against the caller's limit, the length of
//! the file and the maximum deflate ratio before memory is allocated, and its checksum before its
//! bytes are returned. Entries are listed one at a time, so a directory that claims billions of
//! entries costs no memory.

use super::atomic_file::AtomicFile;
use super::{ByteSource, ByteSourceReader};
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::path::Path;
use tensorpack_tensor::{Error, ErrorKind, Result};
use zip::read::{ArchiveOffset, Config, ZipFileEntry};
use zip::result::ZipError;
use zip::unstable::read::ZipIterable;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipReadOptions};

/// The maximum compression ratio of deflate.
const MAX_RATIO: u64 = 1032;
/// The length of the fixed part of a local file header.
const LOCAL_HEADER: usize = 30;

/// An entry of an archive whose contents have not been read.
pub struct ZipEntry<'a> {
    name: String,
    entry: ZipFileEntry<'static>,
    reader: &'a mut ByteSourceReader,
    source: &'a ByteSource,
}

/// The part of a file that holds an uncompressed entry of an archive.
#[derive(Clone, Copy, Debug)]
pub struct StoredEntry {
    /// The offset of the contents in the file.
    pub offset: u64,
    /// The number of bytes.
    pub len: u64,
    crc32: u32,
}

impl StoredEntry {
    /// Returns whether the checksum of the entry is that of `bytes`.
    pub fn matches(&self, bytes: &[u8]) -> bool {
        let mut crc = flate2::Crc::new();
        crc.update(bytes);
        crc.sum() == self.crc32
    }
}

/// Calls `visit` with every entry of an archive, until it breaks.
pub fn for_each_entry(
    source: &ByteSource,
    mut visit: impl FnMut(ZipEntry<'_>) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let invalid = |e: ZipError| {
        Error::new(ErrorKind::Data, format!("{}: invalid zip archive: {e}", source.name()))
            .note("the file is corrupt or truncated; download or create it again")
    };
    let config = Config { archive_offset: ArchiveOffset::Known(0) };
    let mut archive = ZipIterable::try_new(source.reader_at(0), config).map_err(invalid)?;
    let files = archive.files().map_err(invalid)?;
    while let Some(entry) = files.next() {
        let entry = entry.map_err(invalid)?;
        let name = String::from_utf8_lossy(entry.name_raw()).into_owned();
        let entry = ZipEntry { name, entry, reader: files.reader_mut(), source };
        if visit(entry)?.is_break() {
            break;
        }
    }
    Ok(())
}

impl ZipEntry<'_> {
    /// Returns the path of the entry in the archive.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Locates the contents of an uncompressed entry, so that the caller can read them without a
    /// copy. Returns an error if they are compressed or not inside the file.
    pub fn stored(&self) -> Result<StoredEntry> {
        let start = self.entry.header_start();
        let corrupt = |why: &str| self.source.error_at(start, format!("{}: {why}", self.name));
        if self.entry.encrypted() || self.entry.compression() != CompressionMethod::Stored {
            return Err(corrupt("the entry is compressed or encrypted"));
        }
        // The name and the extra field of the local header may differ from those of the directory.
        let mut header = [0; LOCAL_HEADER];
        self.source.read_into(start, &mut header)?;
        let [.., name_low, name_high, extra_low, extra_high] = header;
        let variable = [[name_low, name_high], [extra_low, extra_high]].map(u16::from_le_bytes);
        let offset = start + LOCAL_HEADER as u64 + variable.iter().map(|&n| u64::from(n)).sum::<u64>();
        let len = self.entry.size();
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.source.len());
        if !header.starts_with(b"PK\x03\x04") || len != self.entry.compressed_size() || !fits {
            return Err(corrupt("impossible size"));
        }
        Ok(StoredEntry { offset, len, crc32: self.entry.crc32() })
    }

    /// Reads the entry, or returns an error if it is larger than `max` bytes.
    pub fn read(self, max: u64) -> Result<Vec<u8>> {
        let ZipEntry { name, entry, reader, source } = self;
        let (size, compressed) = (entry.size(), entry.compressed_size());
        let start = entry.header_start();
        let corrupt = |why: &str| source.error_at(start, format!("{name}: {why}"));
        if size > max {
            let why = format!("{name} decompresses to {size} bytes, but only {max} are allowed");
            return Err(Error::new(ErrorKind::Memory, why).within(source.name()));
        }
        if entry.encrypted() {
            return Err(corrupt("the entry is encrypted"));
        }
        let plausible = match entry.compression() {
            CompressionMethod::Stored => size == compressed,
            CompressionMethod::Deflated => size <= compressed.saturating_mul(MAX_RATIO),
            other => return Err(corrupt(&format!("unsupported compression method {other}"))),
        };
        if !plausible || start.checked_add(compressed).is_none_or(|end| end > source.len()) {
            return Err(corrupt("impossible size"));
        }
        let mut bytes = Vec::new();
        // Stored entries are as large as their part of the file. Compressed ones grow as they are
        // read.
        if entry.compression() == CompressionMethod::Stored {
            let room = usize::try_from(size).ok().and_then(|n| bytes.try_reserve_exact(n).ok());
            room.ok_or_else(|| {
                let why = format!("{name}: cannot allocate {size} bytes");
                Error::new(ErrorKind::Memory, why).within(source.name())
            })?;
        }
        let mut file =
            entry.with_reader(reader, ZipReadOptions::new()).map_err(|e| corrupt(&e.to_string()))?;
        // One byte more than declared: the reader verifies the checksum when it reaches the end.
        let read = file.by_ref().take(size.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(|e| corrupt(&e.to_string()))?;
        match bytes.len() as u64 == size {
            true => Ok(bytes),
            false => Err(corrupt("the contents do not match the declared size")),
        }
    }
}

/// Writes an archive of uncompressed entries.
pub(crate) struct ZipWriter(zip::ZipWriter<AtomicFile>);

impl ZipWriter {
    pub(crate) fn create(path: impl AsRef<Path>) -> Result<ZipWriter> {
        Ok(ZipWriter(zip::ZipWriter::new(AtomicFile::create(path)?)))
    }

    pub(crate) fn add(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        // A fixed time stamp, so that equal contents give equal files.
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .last_modified_time(zip::DateTime::default())
            .large_file(bytes.len() as u64 >= u64::from(u32::MAX));
        self.0.start_file(name, options).map_err(|e| write_error(e).within(name))?;
        self.0.write_all(bytes).map_err(|e| Error::from(e).within(name))
    }

    pub(crate) fn finish(self) -> Result<()> {
        self.0.finish().map_err(write_error)?.finish()
    }
}

fn write_error(error: ZipError) -> Error {
    match error {
        ZipError::Io(e) => e.into(),
        other => Error::argument(format!("cannot write the zip archive: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An archive whose zip64 directory claims to have `count` entries.
    fn claiming_entries(count: u64, directory_size: u64) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 16];
        bytes[1 << 15..][..4].copy_from_slice(b"PK\x01\x02");
        let end = bytes.len() as u64;
        bytes.extend(b"PK\x06\x06");
        bytes.extend(44u64.to_le_bytes());
        bytes.extend([45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        for number in [count, count, directory_size, 1 << 15] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(b"PK\x06\x07\0\0\0\0");
        bytes.extend(end.to_le_bytes());
        bytes.extend([1, 0, 0, 0]);
        bytes.extend(b"PK\x05\x06\0\0\0\0");
        bytes.extend([0xff; 12]);
        bytes.extend([0; 2]);
        bytes
    }

    #[test]
    fn claimed_entry_counts_cost_no_memory() {
        for (count, directory_size) in [(1 << 60, 1 << 20), (1 << 15, 1 << 60), (1 << 60, u64::MAX)] {
            let source = ByteSource::from_bytes("a.zip", claiming_entries(count, directory_size));
            let e = for_each_entry(&source, |_| Ok(ControlFlow::Continue(()))).unwrap_err();
            assert!(e.kind() == ErrorKind::Data && e.message().contains("a.zip"), "{e}");
        }
    }

    #[test]
    fn names_appear_in_order_and_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.zip");
        let mut writer = ZipWriter::create(&path).unwrap();
        writer.add("b", b"second").unwrap();
        writer.add("a", b"").unwrap();
        assert_eq!(writer.add("b", b"again").unwrap_err().kind(), ErrorKind::Argument);
        writer.finish().unwrap();
        let mut found = Vec::new();
        let source = ByteSource::open(&path).unwrap();
        for_each_entry(&source, |entry| {
            let stored = entry.stored()?;
            let contents = source.read(stored.offset, stored.len)?;
            assert!(stored.matches(&contents) && !stored.matches(b"other"));
            found.push((entry.name().to_string(), entry.read(10)?));
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
        assert_eq!(found, [("b".into(), b"second".to_vec()), ("a".into(), Vec::new())]);
    }
}
