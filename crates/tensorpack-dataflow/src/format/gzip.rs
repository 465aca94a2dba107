//! Files packed with gzip.

use super::Contents;
use flate2::read::MultiGzDecoder;
use std::io::{BufReader, Read};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// How much a packed file may hold unless a caller says otherwise: 4 GiB.
pub const MAX_UNPACKED: u64 = 1 << 32;

/// What a file holds: unpacked if it is a gzip file, as it is otherwise. One that unpacks to more than `max` bytes is
/// refused, and no more than that is ever kept.
pub fn unpack(contents: Contents, max: u64) -> Result<Contents> {
    let magic = contents.read(0, contents.len().min(2))?;
    if magic != [0x1f, 0x8b] {
        return Ok(contents);
    }
    let packed = BufReader::with_capacity(1 << 16, contents.reader_at(0));
    let mut bytes = Vec::new();
    let unpacked = MultiGzDecoder::new(packed).take(max.saturating_add(1)).read_to_end(&mut bytes);
    unpacked.map_err(|e| {
        Error::new(ErrorKind::Data, format!("{} cannot be unpacked: {e}", contents.name()))
            .note("it is damaged or cut short: fetch or make it again")
    })?;
    if bytes.len() as u64 > max {
        let why = format!("{} unpacks to more than the {max} bytes that are allowed", contents.name());
        return Err(Error::new(ErrorKind::Memory, why).note("unpack it with gunzip, and read the result"));
    }
    Ok(Contents::memory(contents.name(), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    fn pack(bytes: &[u8]) -> Vec<u8> {
        let mut packer = GzEncoder::new(Vec::new(), Compression::best());
        packer.write_all(bytes).unwrap();
        packer.finish().unwrap()
    }

    #[test]
    fn unpacks_all_members_and_passes_plain_files_on() {
        let two = [pack(b"one "), pack(b"two")].concat();
        let unpacked = unpack(Contents::memory("x.gz", two), 7).unwrap();
        assert_eq!(unpacked.read_all().unwrap(), b"one two");
        let plain = unpack(Contents::memory("x", b"plain".to_vec()), 0).unwrap();
        assert_eq!(plain.read_all().unwrap(), b"plain");
    }

    #[test]
    fn refuses_bombs_and_damage() {
        let bomb = pack(&vec![0; 1 << 20]);
        let e = unpack(Contents::memory("bomb.gz", bomb.clone()), 1 << 10).unwrap_err();
        assert_eq!(e.message(), "bomb.gz unpacks to more than the 1024 bytes that are allowed");
        for cut in [3, bomb.len() / 2, bomb.len() - 1] {
            let cut = bomb[..cut].to_vec();
            assert!(unpack(Contents::memory("cut.gz", cut), MAX_UNPACKED).is_err());
        }
        let mut flipped = bomb;
        let crc = flipped.len() - 8;
        flipped[crc] ^= 1;
        assert!(unpack(Contents::memory("flipped.gz", flipped), MAX_UNPACKED).is_err());
    }
}
