//! The secret that the ranks of a run share, and the proof that a peer knows it.
//!
//! The token itself is never sent. Both sides prove that they know it with an HMAC of two nonces,
//! one from each side, so a recorded handshake is of no use. Messages after the handshake are
//! neither encrypted nor signed: an attacker who can change packets on the network between the
//! hosts can change them.

use sha2::{Digest, Sha256};
use std::env;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use tensorpack_tensor::{Error, Result};

/// The shortest token, in bytes.
const MIN_BYTES: usize = 16;
/// The longest token, in bytes.
const MAX_BYTES: usize = 4096;

/// The length of a [`nonce`].
pub(crate) const NONCE_BYTES: usize = 16;
/// The length of a [`Token::proof`].
pub(crate) const PROOF_BYTES: usize = 32;

/// A secret shared by all ranks of a run. Peers without it are refused.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// The environment variable that [`Token::from_env`] reads.
    pub const VARIABLE: &'static str = "TENSORPACK_TOKEN";

    /// Creates a token from 16 to 4096 bytes of text.
    pub fn new(text: impl Into<String>) -> Result<Token> {
        let text = text.into();
        match text.len() {
            MIN_BYTES..=MAX_BYTES => Ok(Token(text)),
            n => Err(Error::argument(format!(
                "a token has {n} bytes; it must have from {MIN_BYTES} to {MAX_BYTES}"
            ))),
        }
    }

    /// Returns the token in the environment variable `TENSORPACK_TOKEN`.
    pub fn from_env() -> Result<Token> {
        let advice =
            "set it to the same random text for all ranks, for example the output of: openssl rand -hex 32";
        match env::var(Token::VARIABLE) {
            Ok(text) => Token::new(text).map_err(|e| e.within(Token::VARIABLE).note(advice)),
            Err(e) => Err(Error::argument(e.to_string()).within(Token::VARIABLE).note(advice)),
        }
    }

    /// Creates a random token: 64 hexadecimal digits, made from 128 bits of the operating system's
    /// randomness. Used where one process can hand it to the others: by a launcher in the
    /// environment, or by rank 0 with an MPI broadcast.
    pub fn random() -> Token {
        let digest = Sha256::digest([nonce(), nonce()].concat());
        Token(digest.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Returns the token's text, for handing it to the other ranks.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The proof that its sender knows the token: an HMAC-SHA-256 of `parts`. Each part is
    /// preceded by its length, so that different parts never give the same bytes.
    pub(crate) fn proof(&self, parts: &[&[u8]]) -> [u8; PROOF_BYTES] {
        let mut message = Vec::new();
        for part in parts {
            message.extend_from_slice(&(part.len() as u64).to_le_bytes());
            message.extend_from_slice(part);
        }
        hmac_sha256(self.0.as_bytes(), &message)
    }
}

impl fmt::Debug for Token {
    /// Does not show the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Compares two proofs in a time that does not depend on where they differ.
pub(crate) fn constant_time_eq(a: &[u8; PROOF_BYTES], b: &[u8; PROOF_BYTES]) -> bool {
    // `black_box` keeps the compiler from returning at the first difference.
    let difference = a.iter().zip(b).fold(0, |difference, (a, b)| std::hint::black_box(difference | (a ^ b)));
    difference == 0
}

/// Returns bytes that nobody can predict, different for every call.
pub(crate) fn nonce() -> [u8; NONCE_BYTES] {
    // The keys of a `RandomState` come from the operating system, and SipHash is a keyed
    // pseudorandom function; the standard library offers no other source of randomness.
    let state = RandomState::new();
    let mut bytes = [0; NONCE_BYTES];
    for (i, half) in bytes.chunks_exact_mut(8).enumerate() {
        half.copy_from_slice(&state.hash_one((i, "tensorpack-rendezvous")).to_le_bytes());
    }
    bytes
}

/// HMAC (RFC 2104) with SHA-256.
fn hmac_sha256(key: &[u8], message: &[u8]) -> [u8; PROOF_BYTES] {
    const BLOCK: usize = 64;
    let mut block = [0; BLOCK];
    if key.len() > BLOCK {
        block[..PROOF_BYTES].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let hash = |pad: u8, message: &[u8]| {
        let mut hasher = Sha256::new();
        hasher.update(block.map(|byte| byte ^ pad));
        hasher.update(message);
        hasher.finalize()
    };
    hash(0x5c, &hash(0x36, message)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Test cases 2 and 6 of RFC 4231.
    #[test]
    fn hmac_matches_the_vectors_of_rfc_4231() {
        assert_eq!(
            hex(&hmac_sha256(b"Jefe", b"what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            hex(&hmac_sha256(&[0xaa; 131], b"Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }

    #[test]
    fn proofs_differ_by_token_part_and_division() {
        let (a, b) = (Token::new("a".repeat(16)).unwrap(), Token::new("b".repeat(16)).unwrap());
        let proof = a.proof(&[b"ab", b"c"]);
        assert!(constant_time_eq(&proof, &a.proof(&[b"ab", b"c"])));
        for other in [b.proof(&[b"ab", b"c"]), a.proof(&[b"a", b"bc"]), a.proof(&[b"ab", b"d"])] {
            assert!(!constant_time_eq(&proof, &other));
        }
        for byte in 0..PROOF_BYTES {
            let mut other = proof;
            other[byte] ^= 0x80;
            assert!(!constant_time_eq(&proof, &other), "byte {byte}");
        }
    }

    #[test]
    fn random_tokens_differ_and_are_not_shown() {
        let (a, b) = (Token::random(), Token::random());
        assert_ne!(a, b);
        assert_eq!(a.as_str().len(), 64);
        assert!(!format!("{a:?}").contains(&a.as_str()[..8]));
        assert_ne!(nonce(), nonce());
    }

    #[test]
    fn short_tokens_are_refused() {
        let error = Token::new("123456789012345").unwrap_err();
        assert!(error.message().contains("15"), "{error}");
        assert!(Token::new("x".repeat(4097)).is_err());
    }
}
