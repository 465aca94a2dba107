//! Gzip decompression with a size limit.

use super::ByteSource;
use flate2::read::MultiGzDecoder;
use std::io::{BufReader, Read};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The default limit on decompressed data: 4 GiB.
#[doc(alias = "MAX_UNPACKED")]
pub const MAX_DECOMPRESSED: u64 = 1 << 32;

/// Decompresses a gzip file; other files are returned unchanged.
///
/// A file that decompresses to more than `max` bytes is an error, and no more than that is ever
/// held in memory.
#[doc(alias = "unpack")]
pub fn decompress(source: ByteSource, max: u64) -> Result<ByteSource> {
    if !is_gzip(&source)? {
        return Ok(source);
    }
    let compressed = BufReader::with_capacity(1 << 16, source.reader_at(0));
    let mut bytes = Vec::new();
    let decompressed = MultiGzDecoder::new(compressed).take(max.saturating_add(1)).read_to_end(&mut bytes);
    decompressed.map_err(|e| {
        Error::new(ErrorKind::Data, format!("cannot decompress {}: {e}", source.name()))
            .note("the file is corrupt or truncated; download or create it again")
    })?;
    if bytes.len() as u64 > max {
        let why = format!("{} decompresses to more than the limit of {max} bytes", source.name());
        return Err(Error::new(ErrorKind::Memory, why).note("decompress it with gunzip and read the result"));
    }
    Ok(ByteSource::from_bytes(source.name(), bytes))
}

/// Like [`decompress`], for one of several files that share a limit: `left` is reduced by what the
/// file decompresses to.
pub(crate) fn decompress_within(source: ByteSource, left: &mut u64) -> Result<ByteSource> {
    let is_compressed = is_gzip(&source)?;
    let source = decompress(source, *left)?;
    if is_compressed {
        *left -= source.len();
    }
    Ok(source)
}

fn is_gzip(source: &ByteSource) -> Result<bool> {
    Ok(source.read(0, source.len().min(2))? == [0x1f, 0x8b])
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    fn compress(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn decompresses_all_members_and_passes_plain_files_through() {
        let two = [compress(b"one "), compress(b"two")].concat();
        let decompressed = decompress(ByteSource::from_bytes("x.gz", two), 7).unwrap();
        assert_eq!(decompressed.read_all().unwrap(), b"one two");
        let plain = decompress(ByteSource::from_bytes("x", b"plain".to_vec()), 0).unwrap();
        assert_eq!(plain.read_all().unwrap(), b"plain");
    }

    #[test]
    fn rejects_bombs_and_corrupt_data() {
        let bomb = compress(&vec![0; 1 << 20]);
        let e = decompress(ByteSource::from_bytes("bomb.gz", bomb.clone()), 1 << 10).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Memory);
        for cut in [3, bomb.len() / 2, bomb.len() - 1] {
            let cut = bomb[..cut].to_vec();
            assert!(decompress(ByteSource::from_bytes("cut.gz", cut), MAX_DECOMPRESSED).is_err());
        }
        let mut flipped = bomb;
        let crc = flipped.len() - 8;
        flipped[crc] ^= 1;
        assert!(decompress(ByteSource::from_bytes("flipped.gz", flipped), MAX_DECOMPRESSED).is_err());
    }
}
