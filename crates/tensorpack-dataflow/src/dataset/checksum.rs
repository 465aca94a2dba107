//! Checksums of downloaded files.

use md5::Md5;
use sha2::{Digest, Sha256};

/// A published checksum in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checksum {
    /// Not collision-resistant, but what the authors of older data sets published.
    Md5(&'static str),
    Sha256(&'static str),
}

impl Checksum {
    pub(super) fn matches(self, bytes: &[u8]) -> bool {
        match self {
            Checksum::Md5(sum) => hex(&Md5::digest(bytes)) == sum,
            Checksum::Sha256(sum) => hex(&Sha256::digest(bytes)) == sum,
        }
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
        assert!(Checksum::Md5("900150983cd24fb0d6963f7d28e17f72").matches(b"abc"));
        let sha = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert!(Checksum::Sha256(sha).matches(b"abc"));
        assert!(!Checksum::Sha256(sha).matches(b"abd"));
    }
}
