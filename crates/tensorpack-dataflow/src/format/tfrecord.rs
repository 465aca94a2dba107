//! TFRecord files: a sequence of byte records with checksums.
//!
//! A record consists of its length (8 bytes), a checksum of the length (4), the data and a checksum
//! of the data (4). Checksums are masked CRC-32C. Opening a file scans all headers once; after that
//! any record can be read directly.

use super::atomic_file::AtomicFile;
use super::check_index::check_index;
use super::serialized::{Serialized, encode, for_each_sample};
use super::{ByteSource, RandomAccess};
use crate::{DataFlow, Sample};
use std::path::Path;
use std::sync::Arc;
use tensorpack_tensor::{Error, HostTensor, Result};

const HEADER: u64 = 12;
const FOOTER: u64 = 4;

/// The records of a TFRecord file. A sample is one component: the bytes of the record.
///
/// Data that does not match its checksum is an error that names the offset; later records can still
/// be read.
#[derive(Clone, Debug)]
pub struct TfRecord {
    source: ByteSource,
    /// The offset of every header, followed by the end of the last record.
    offsets: Arc<[u64]>,
}

impl TfRecord {
    /// Opens the file at `path`. A corrupt length or a truncated file is an error, since later
    /// records cannot be located.
    pub fn open(path: impl AsRef<Path>) -> Result<TfRecord> {
        TfRecord::parse(ByteSource::open(path)?)
    }

    /// Scans the records in `source`.
    pub fn parse(source: ByteSource) -> Result<TfRecord> {
        let (records, error) = TfRecord::index(source);
        error.map_or(Ok(records), |e| Err(e.note("use TfRecord::salvage to read the records before it")))
    }

    /// Opens the records before the first corrupt length or the truncation. Also returns the number
    /// of bytes lost after them, which is 0 for an intact file.
    pub fn salvage(path: impl AsRef<Path>) -> Result<(TfRecord, u64)> {
        let source = ByteSource::open(path)?;
        let len = source.len();
        let (records, _) = TfRecord::index(source);
        let end = records.offsets.last().copied().unwrap_or(0);
        Ok((records, len - end))
    }

    fn index(source: ByteSource) -> (TfRecord, Option<Error>) {
        // Headers are read through a small window, because short records share one.
        const WINDOW: u64 = 4096;
        let (mut offsets, mut at) = (vec![0], 0);
        let (mut window, mut window_at) = (Vec::new(), 0u64);
        let mut header_at = |at: u64| -> Result<u64> {
            if at < window_at || at + HEADER > window_at + window.len() as u64 {
                window = source.read(at, WINDOW.min(source.len() - at).max(HEADER))?;
                window_at = at;
            }
            let header = &window[(at - window_at) as usize..][..HEADER as usize];
            let (length, checksum) = header.split_at(8);
            if masked_crc(length) != u32::from_le_bytes(checksum.try_into().expect("four bytes")) {
                return Err(source.error_at(at, "the record length does not match its checksum"));
            }
            let length = u64::from_le_bytes(length.try_into().expect("eight bytes"));
            let left = source.len() - at;
            length.checked_add(HEADER + FOOTER).filter(|&n| n <= left).ok_or_else(|| {
                let why = format!("expected a record of {length} bytes, but only {left} bytes remain");
                source.error_at(at, why)
            })
        };
        let mut error = None;
        while at < source.len() && error.is_none() {
            match header_at(at) {
                Ok(length) => {
                    at += length;
                    offsets.push(at);
                }
                Err(e) => error = Some(e),
            }
        }
        (TfRecord { source, offsets: offsets.into() }, error)
    }
}

impl RandomAccess for TfRecord {
    fn len(&self) -> u64 {
        self.offsets.len() as u64 - 1
    }

    fn get(&self, index: u64) -> Result<Sample> {
        let i = check_index(index, self.offsets.len() - 1)?;
        let (start, end) = (self.offsets[i], self.offsets[i + 1]);
        let mut data = self.source.read(start + HEADER, end - start - HEADER)?;
        let checksum = data.split_off(data.len() - FOOTER as usize);
        if masked_crc(&data) != u32::from_le_bytes(checksum.try_into().expect("four bytes")) {
            let why = format!("the data of record {index} does not match its checksum");
            return Err(self.source.error_at(start, why));
        }
        Ok(vec![HostTensor::new([data.len()], data)?])
    }
}

/// Writes a TFRecord file. The file gets its name when [`finish`](TfRecordWriter::finish) is
/// called.
pub struct TfRecordWriter(AtomicFile);

impl TfRecordWriter {
    /// Creates a new file. Existing files are not overwritten.
    pub fn create(path: impl AsRef<Path>) -> Result<TfRecordWriter> {
        AtomicFile::create(path).map(TfRecordWriter)
    }

    /// Appends a record.
    pub fn write(&mut self, record: &[u8]) -> Result<()> {
        let (header, footer) = frame(record);
        self.0.append(&header)?;
        self.0.append(record)?;
        self.0.append(&footer)
    }

    /// Completes the file.
    pub fn finish(self) -> Result<()> {
        self.0.finish()
    }
}

/// Saves one pass of a dataflow to a new file, one record per sample, and returns the number of
/// samples.
#[doc(alias = "TFRecordSerializer")]
pub fn save(flow: &dyn DataFlow, path: impl AsRef<Path>) -> Result<u64> {
    let mut file = TfRecordWriter::create(path)?;
    let count = for_each_sample(flow, |sample| file.write(&encode(&sample)?))?;
    file.finish()?;
    Ok(count)
}

/// Opens samples written by [`save`].
pub fn load(path: impl AsRef<Path>) -> Result<Serialized<TfRecord>> {
    let records = TfRecord::open(path)?;
    let name = records.source.name().to_string();
    Ok(Serialized::new(records, name))
}

/// Returns the bytes that go before and after a record: its length with a checksum, and the
/// checksum of its data. TensorBoard event files use the same framing.
pub fn frame(record: &[u8]) -> ([u8; 12], [u8; 4]) {
    let length = (record.len() as u64).to_le_bytes();
    let mut header = [0; 12];
    header[..8].copy_from_slice(&length);
    header[8..].copy_from_slice(&masked_crc(&length).to_le_bytes());
    (header, masked_crc(record).to_le_bytes())
}

/// Returns the CRC-32C, masked because a CRC over data that contains CRCs
/// detects fewer errors.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{assert_round_trip, test_samples};
    use crate::{FromList, Seed, State};
    use tensorpack_tensor::ErrorKind;

    fn file(records: &[&[u8]]) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("records");
        let mut writer = TfRecordWriter::create(&path).unwrap();
        records.iter().for_each(|r| writer.write(r).unwrap());
        writer.finish().unwrap();
        std::fs::read(path).unwrap()
    }

    #[test]
    fn samples_round_trip() {
        assert_round_trip(save, load);
    }

    #[test]
    fn bytes_match_tensorflow() {
        // Written by tf.io.TFRecordWriter for the record b"abc".
        let expected = b"\x03\0\0\0\0\0\0\0\xb0\x99\x49\x0eabc\x6e\x57\xf1\x21";
        assert_eq!(file(&[b"abc"]), expected);
    }

    #[test]
    fn reading_continues_after_a_corrupt_record() {
        let mut bytes = file(&[b"first", b"second", b"third"]);
        bytes[21 + 12] ^= 1;
        let records = TfRecord::parse(ByteSource::from_bytes("r", bytes)).unwrap();
        let mut reader = records.open(Seed::new(0), &State::start()).unwrap();
        assert_eq!(reader.read().unwrap().unwrap()[0].as_slice::<u8>().unwrap(), b"first");
        let e = reader.read().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Data);
        assert!(e.message().starts_with("sample 1 of epoch 0: r, byte 21: "), "{e}");
        assert_eq!(reader.read().unwrap().unwrap()[0].as_slice::<u8>().unwrap(), b"third");
        assert!(reader.read().unwrap().is_none());

        let whole = records.skip_errors(1);
        let mut reader = whole.open(Seed::new(0), &State::start()).unwrap();
        assert!(reader.read().unwrap().is_some() && reader.read().unwrap().is_some());
        assert!(reader.read().unwrap().is_none());
        assert_eq!(whole.skipped(), 1);
    }

    #[test]
    fn corrupt_length_ends_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = file(&[b"first", b"second"]);
        let cut = bytes[..30].to_vec();
        bytes[21] ^= 1;
        for (name, bytes) in [("flipped", bytes), ("cut", cut)] {
            let path = dir.path().join(name);
            let len = bytes.len() as u64;
            std::fs::write(&path, bytes).unwrap();
            let e = TfRecord::open(&path).unwrap_err();
            assert!(e.message().contains(&format!("{name}, byte 21: ")), "{e}");
            let (records, lost) = TfRecord::salvage(&path).unwrap();
            assert_eq!((records.len(), lost), (1, len - 21));
        }
    }

    #[test]
    fn indexes_short_and_long_records() {
        let sizes: Vec<usize> = (0..200).map(|i| i * i * 7 % 5000).collect();
        let records: Vec<Vec<u8>> = sizes.iter().map(|&n| vec![n as u8; n]).collect();
        let bytes = file(&records.iter().map(|r| &r[..]).collect::<Vec<_>>());
        let read = TfRecord::parse(ByteSource::from_bytes("r", bytes)).unwrap();
        assert_eq!(read.len(), 200);
        for i in [199, 0, 77, 198] {
            assert_eq!(read.get(i).unwrap()[0].as_slice::<u8>().unwrap(), records[i as usize]);
        }
    }

    #[test]
    fn existing_files_are_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        std::fs::write(&path, b"mine").unwrap();
        assert!(save(&FromList::new(test_samples()), &path).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    }
}
