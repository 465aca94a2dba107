//! Checksums of downloaded files.

use sha2::{Digest, Sha256};
use std::fmt;
use std::io::{self, Read};

/// A SHA-256 checksum in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Checksum(pub(super) &'static str);

impl Checksum {
    pub(super) fn matches(self, bytes: &[u8]) -> bool {
        hex(&Sha256::digest(bytes)) == self.0
    }

    /// Like [`matches`](Checksum::matches), for everything that a reader returns.
    pub(super) fn matches_reader(self, mut from: impl Read) -> io::Result<bool> {
        let (mut hasher, mut buffer) = (Sha256::new(), vec![0; 1 << 18]);
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return Ok(hex(&hasher.finalize()) == self.0),
                Ok(n) => hasher.update(&buffer[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_known_digests() {
        let sum = Checksum("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert!(sum.matches(b"abc") && !sum.matches(b"abd"));
        assert!(sum.matches_reader(&b"abc"[..]).unwrap());
        assert!(!sum.matches_reader(&b"abcd"[..]).unwrap());
    }
}
