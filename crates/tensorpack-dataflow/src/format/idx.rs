//! IDX files, the format of MNIST. Gzip-compressed files are decompressed on the fly.
//!
//! A file holds one array: two zero bytes, the type, the rank, the sizes (4 bytes each) and the
//! elements, all big-endian.

use super::endian::{Endian, byte_count, tensor_from_bytes};
use super::gzip::{MAX_DECOMPRESSED, decompress, decompress_within};
use super::{ByteSource, Rows};
use std::path::Path;
use tensorpack_tensor::{DType, HostTensor, Result};

/// Reads the array in the file at `path`.
pub fn read(path: impl AsRef<Path>) -> Result<HostTensor> {
    parse(ByteSource::open(path)?)
}

/// Reads several files, such as images and labels. Sample `i` is row `i` of each. Compressed files
/// may take 4 GiB decompressed, all together.
pub fn rows(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<Rows> {
    let mut left = MAX_DECOMPRESSED;
    let arrays = paths.into_iter().map(|path| {
        let source = ByteSource::open(path)?;
        parse_plain(decompress_within(source, &mut left)?)
    });
    Rows::new(arrays.collect::<Result<_>>()?)
}

/// Parses the array in `source`, compressed or not.
pub fn parse(source: ByteSource) -> Result<HostTensor> {
    parse_plain(decompress(source, MAX_DECOMPRESSED)?)
}

fn parse_plain(source: ByteSource) -> Result<HostTensor> {
    let header = source.read(0, 4)?;
    let [0, 0, kind, rank] = header[..] else {
        return Err(source.error_at(0, "not an IDX file: it does not start with two zero bytes"));
    };
    let dtype = match kind {
        0x08 => DType::U8,
        0x0c => DType::I32,
        0x0d => DType::F32,
        0x0e => DType::F64,
        0x09 => return Err(source.error_at(2, "unsupported element type i8")),
        0x0b => return Err(source.error_at(2, "unsupported element type i16")),
        other => return Err(source.error_at(2, format!("unknown element type {other:#04x}"))),
    };
    let sizes: Vec<usize> = source
        .read(4, 4 * u64::from(rank))?
        .chunks_exact(4)
        .map(|n| u32::from_be_bytes(n.try_into().expect("four bytes")) as usize)
        .collect();
    let start = 4 + 4 * u64::from(rank);
    let needed = byte_count(dtype, &sizes).map_err(|e| e.within(source.name()))? as u64;
    if source.len() - start != needed {
        let why = format!(
            "{dtype}{sizes:?} needs {needed} bytes, but {} follow; the file is corrupt or truncated",
            source.len() - start
        );
        return Err(source.error_at(start, why));
    }
    tensor_from_bytes(dtype, sizes, &source.read(start, needed)?, Endian::Big)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(bytes: &[u8]) -> Result<HostTensor> {
        parse(ByteSource::from_bytes("x-idx", bytes.to_vec()))
    }

    #[test]
    fn reads_every_element_type() {
        let bytes = b"\0\0\x08\x02\0\0\0\x02\0\0\0\x03abcdef";
        assert_eq!(parsed(bytes).unwrap(), HostTensor::new([2, 3], b"abcdef".to_vec()).unwrap());
        let ints = b"\0\0\x0c\x01\0\0\0\x01\xff\xff\xff\xfe";
        assert_eq!(parsed(ints).unwrap(), HostTensor::new([1], vec![-2i32]).unwrap());
        let float = b"\0\0\x0d\0\x3f\xc0\0\0";
        assert_eq!(parsed(float).unwrap(), HostTensor::scalar(1.5f32));
        let double = b"\0\0\x0e\x01\0\0\0\x01\x3f\xf8\0\0\0\0\0\0";
        assert_eq!(parsed(double).unwrap(), HostTensor::new([1], vec![1.5f64]).unwrap());
        assert!(parsed(b"\0\0\x09\0\x01").unwrap_err().message().contains("i8"));
    }

    #[test]
    fn wrong_length_is_an_error() {
        let e = parsed(b"\0\0\x08\x01\0\0\0\x03ab").unwrap_err();
        assert!(e.message().starts_with("x-idx, byte 8: u8[3]"), "{e}");
        assert!(
            parsed(b"\0\0\x0e\x04\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff").is_err()
        );
        assert!(parsed(b"\0\0\x08\xff").is_err());
        assert!(parsed(b"").is_err());
    }
}
