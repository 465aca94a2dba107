//! Zip archives, as far as `.npz` files and Python's packages use them: entries stored or deflated,
//! of any size.
//!
//! Nothing in an archive is believed: a size is checked against the file and against what deflate
//! can reach before memory is taken, and an entry's checksum before it is handed out.

use super::ByteSource;
use super::atomic_file::AtomicFile;
use flate2::Crc;
use flate2::read::DeflateDecoder;
use std::io::Read;
use std::path::Path;
use tensorpack_tensor::{Error, ErrorKind, Result};

const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
const END_64: u32 = 0x0606_4b50;
const LOCATOR_64: u32 = 0x0706_4b50;
/// The extra field with sizes that do not fit into 32 bits.
const EXTRA_64: u16 = 1;
const STORED: u16 = 0;
const DEFLATED: u16 = 8;
/// Deflate makes at most this many bytes of one.
const MAX_RATIO: u64 = 1032;

/// An archive's entries.
pub(crate) struct Zip {
    source: ByteSource,
    entries: Vec<Entry>,
}

/// What the archive's directory says of an entry.
pub(crate) struct Entry {
    pub(crate) name: String,
    method: u16,
    encrypted: bool,
    crc: u32,
    compressed: u64,
    size: u64,
    /// Where its local header is.
    offset: u64,
}

impl Zip {
    pub(crate) fn parse(source: ByteSource) -> Result<Zip> {
        let (offset, size) = find_directory(&source)?;
        let directory = source.read(offset, size)?;
        let mut rest = Fields { bytes: &directory };
        let mut entries = Vec::new();
        while !rest.bytes.is_empty() {
            let at = offset + size - rest.bytes.len() as u64;
            let entry = Entry::parse(&mut rest)
                .ok_or_else(|| source.error_at(at, "the zip archive's directory is damaged"))?;
            entries.push(entry);
        }
        Ok(Zip { source, entries })
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// What an entry holds, if that is at most `max` bytes.
    pub(crate) fn read(&self, entry: &Entry, max: u64) -> Result<Vec<u8>> {
        let name = &entry.name;
        let damaged = |why: &str| self.source.error_at(entry.offset, format!("{name}: {why}"));
        if entry.encrypted {
            return Err(damaged("the entry is encrypted"));
        }
        if entry.size > max {
            let why = format!("{name} unpacks to {} bytes, of which {max} are allowed", entry.size);
            return Err(Error::new(ErrorKind::Memory, why).within(self.source.name()));
        }
        // The local header repeats the name, and has extra fields of its own.
        let header = self.source.read(entry.offset, 30)?;
        let mut fields = Fields { bytes: &header };
        let start = (|| {
            (fields.u32()? == LOCAL).then_some(())?;
            fields.skip(22)?;
            let (name, extra) = (fields.u16()?, fields.u16()?);
            Some(entry.offset + 30 + u64::from(name) + u64::from(extra))
        })();
        let start = start.ok_or_else(|| damaged("the entry is not where the archive's directory says"))?;
        let compressed = self.source.read(start, entry.compressed)?;
        let bytes = match entry.method {
            STORED if entry.compressed == entry.size => compressed,
            STORED => return Err(damaged("its sizes stored and unpacked differ")),
            DEFLATED if entry.size > entry.compressed.saturating_mul(MAX_RATIO) => {
                return Err(damaged("it claims to unpack to more than is possible"));
            }
            DEFLATED => {
                let mut bytes = Vec::new();
                let decompressed =
                    DeflateDecoder::new(&compressed[..]).take(entry.size + 1).read_to_end(&mut bytes);
                decompressed.map_err(|e| damaged(&e.to_string()))?;
                bytes
            }
            other => return Err(damaged(&format!("packing method {other} is neither stored nor deflated"))),
        };
        let mut crc = Crc::new();
        crc.update(&bytes);
        if bytes.len() as u64 != entry.size || crc.sum() != entry.crc {
            return Err(damaged("its bytes do not agree with its size or checksum"));
        }
        Ok(bytes)
    }
}

/// Where the directory is, and how long: from the record at the archive's end, or its successor for
/// large archives.
fn find_directory(source: &ByteSource) -> Result<(u64, u64)> {
    const RECORD: u64 = 22;
    const MAX_COMMENT: u64 = 0xffff;
    let no_archive = || {
        let why = format!("{} is no zip archive, or is cut short", source.name());
        Error::new(ErrorKind::Data, why)
    };
    let tail = source.len().min(RECORD + MAX_COMMENT);
    let tail_at = source.len() - tail;
    let tail = source.read(tail_at, tail)?;
    // The record is the last place whose comment ends where the file ends.
    let at = (0..(tail.len() + 1).saturating_sub(RECORD as usize)).rev().find(|&at| {
        let comment = u16::from_le_bytes([tail[at + 20], tail[at + 21]]);
        tail[at..at + 4] == END.to_le_bytes() && at + RECORD as usize + usize::from(comment) == tail.len()
    });
    let at = at.ok_or_else(no_archive)?;
    let mut fields = Fields { bytes: &tail[at + 10..] };
    let (count, size, offset) = (fields.u16(), fields.u32(), fields.u32());
    let (Some(count), Some(size), Some(offset)) = (count, size, offset) else { return Err(no_archive()) };
    if count != u16::MAX && size != u32::MAX && offset != u32::MAX {
        return Ok((u64::from(offset), u64::from(size)));
    }
    let locator_at = (tail_at + at as u64).checked_sub(20).ok_or_else(no_archive)?;
    let locator = source.read(locator_at, 20)?;
    let mut fields = Fields { bytes: &locator };
    if fields.u32() != Some(LOCATOR_64) {
        return Ok((u64::from(offset), u64::from(size)));
    }
    fields.skip(4);
    let record = source.read(fields.u64().ok_or_else(no_archive)?, 56)?;
    let mut fields = Fields { bytes: &record };
    let signed = fields.u32() == Some(END_64);
    fields.skip(36);
    match (signed, fields.u64(), fields.u64()) {
        (true, Some(size), Some(offset)) => Ok((offset, size)),
        _ => Err(no_archive()),
    }
}

impl Entry {
    fn parse(fields: &mut Fields<'_>) -> Option<Entry> {
        (fields.u32()? == CENTRAL).then_some(())?;
        fields.skip(4)?;
        let (flags, method) = (fields.u16()?, fields.u16()?);
        fields.skip(4)?;
        let (crc, compressed, size) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let (name, extra, comment) = (fields.u16()?, fields.u16()?, fields.u16()?);
        fields.skip(8)?;
        let offset = fields.u32()?;
        let name = String::from_utf8_lossy(fields.take(name.into())?).into_owned();
        let mut extra = Fields { bytes: fields.take(extra.into())? };
        fields.skip(comment.into())?;
        let (mut compressed, mut size, mut offset) =
            (u64::from(compressed), u64::from(size), u64::from(offset));
        while !extra.bytes.is_empty() {
            let (kind, length) = (extra.u16()?, extra.u16()?);
            let mut field = Fields { bytes: extra.take(length.into())? };
            if kind == EXTRA_64 {
                // Only those numbers are there that did not fit.
                for number in [&mut size, &mut compressed, &mut offset] {
                    if *number == u64::from(u32::MAX) {
                        *number = field.u64()?;
                    }
                }
            }
        }
        Some(Entry { name, method, encrypted: flags & 1 == 1, crc, compressed, size, offset })
    }
}

/// Little-endian numbers, one after the other.
struct Fields<'a> {
    bytes: &'a [u8],
}

impl<'a> Fields<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(n)?;
        self.bytes = rest;
        Some(taken)
    }

    fn skip(&mut self, n: usize) -> Option<()> {
        self.take(n).map(|_| ())
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|b| u16::from_le_bytes(b.try_into().expect("two bytes")))
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4).map(|b| u32::from_le_bytes(b.try_into().expect("four bytes")))
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8).map(|b| u64::from_le_bytes(b.try_into().expect("eight bytes")))
    }
}

/// Writes an archive of stored entries. All sizes are written with 64 bits: one form for small and
/// large ones.
pub(crate) struct ZipWriter {
    file: AtomicFile,
    at: u64,
    directory: Vec<u8>,
    count: u64,
}

impl ZipWriter {
    pub(crate) fn create(path: impl AsRef<Path>) -> Result<ZipWriter> {
        Ok(ZipWriter { file: AtomicFile::create(path)?, at: 0, directory: Vec::new(), count: 0 })
    }

    pub(crate) fn add(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let length = u16::try_from(name.len()).map_err(|_| Error::argument("an entry's name is too long"))?;
        let mut crc = Crc::new();
        crc.update(bytes);
        let size = (bytes.len() as u64).to_le_bytes();
        // Version 4.5, no flags, stored, midnight of 1980-01-01; the sizes are in the extra field.
        let mut common = Vec::new();
        common.extend([45, 0, 0, 0, 0, 0, 0, 0, 0x21, 0]);
        common.extend(crc.sum().to_le_bytes());
        common.extend([0xff; 8]);
        common.extend(length.to_le_bytes());
        let extra = |fields: &[[u8; 8]]| {
            let mut extra = EXTRA_64.to_le_bytes().to_vec();
            extra.extend((8 * fields.len() as u16).to_le_bytes());
            extra.extend(fields.as_flattened());
            extra
        };

        let local_extra = extra(&[size, size]);
        let mut local = LOCAL.to_le_bytes().to_vec();
        local.extend(&common);
        local.extend((local_extra.len() as u16).to_le_bytes());
        local.extend(name.as_bytes());
        local.extend(local_extra);

        let central_extra = extra(&[size, size, self.at.to_le_bytes()]);
        self.directory.extend(CENTRAL.to_le_bytes());
        self.directory.extend([45, 0]);
        self.directory.extend(&common);
        self.directory.extend((central_extra.len() as u16).to_le_bytes());
        // No comment, first disk, no attributes.
        self.directory.extend([0; 10]);
        self.directory.extend([0xff; 4]);
        self.directory.extend(name.as_bytes());
        self.directory.extend(central_extra);

        self.count += 1;
        self.at += (local.len() + bytes.len()) as u64;
        self.file.write(&local)?;
        self.file.write(bytes)
    }

    pub(crate) fn finish(mut self) -> Result<()> {
        let size = self.directory.len() as u64;
        let mut end = END_64.to_le_bytes().to_vec();
        end.extend(44u64.to_le_bytes());
        end.extend([45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        for number in [self.count, self.count, size, self.at] {
            end.extend(number.to_le_bytes());
        }
        end.extend(LOCATOR_64.to_le_bytes());
        end.extend([0; 4]);
        end.extend((self.at + size).to_le_bytes());
        end.extend([1, 0, 0, 0]);
        end.extend(END.to_le_bytes());
        end.extend([0; 4]);
        end.extend([0xff; 12]);
        end.extend([0; 2]);
        self.file.write(&self.directory)?;
        self.file.write(&end)?;
        self.file.finish()
    }
}
