//! The messages between a rank and the coordinator, and their encoding.
//!
//! A message is one byte that names its kind, followed by its fields: integers in little endian,
//! texts and bytes with a 32-bit length before them, an optional integer with a byte 0 or 1 before
//! it. Every length is checked against what is left of the message before anything is copied, and
//! a message with bytes left over is malformed. [`VERSION`] is part of the first message in each
//! direction; all else may change with it.

use crate::failure::{Failure, PeerStatus};
use crate::token::{NONCE_BYTES, PROOF_BYTES};
use std::time::Duration;

/// The version of the protocol. Ranks of different versions refuse each other.
pub(crate) const VERSION: u16 = 1;
/// The beginning of the first message in each direction.
const MAGIC: [u8; 4] = *b"TPRZ";

/// The largest number of ranks.
pub const MAX_RANKS: u32 = 16_384;
/// The longest key and the longest name of a barrier, in bytes.
pub const MAX_KEY_BYTES: usize = 1024;
/// The largest value in the key-value store, in bytes.
pub const MAX_VALUE_BYTES: usize = 16 << 20;
/// Longer descriptions of what a rank is doing are cut.
pub(crate) const MAX_ACTIVITY_BYTES: usize = 256;
/// Longer messages and places of failures are cut.
pub(crate) const MAX_TEXT_BYTES: usize = 8192;
/// Longer host names are cut.
pub(crate) const MAX_HOST_BYTES: usize = 255;
/// The largest message before a peer has proved that it knows the token.
pub(crate) const MAX_HANDSHAKE_BYTES: usize = 1024;
/// The largest message after that.
pub(crate) const MAX_MESSAGE_BYTES: usize = MAX_VALUE_BYTES + MAX_KEY_BYTES + 64;

/// A message from a rank to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Opens a connection.
    Hello {
        version: u16,
        nonce: [u8; NONCE_BYTES],
    },
    /// Answers the coordinator's challenge.
    Join {
        rank: u32,
        size: u32,
        host: String,
        proof: [u8; PROOF_BYTES],
    },
    Put {
        id: u64,
        key: String,
        value: Vec<u8>,
    },
    Get {
        id: u64,
        key: String,
        timeout: Duration,
    },
    TryGet {
        id: u64,
        key: String,
    },
    Remove {
        id: u64,
        key: String,
    },
    Barrier {
        id: u64,
        name: String,
        timeout: Duration,
    },
    /// Sent at a fixed interval, and before anything that may be the rank's last message.
    Heartbeat {
        step: Option<u64>,
        activity: String,
    },
    Fail {
        step: Option<u64>,
        place: String,
        message: String,
    },
    /// Asks for an agreement on the last step.
    Stop,
    /// The rank begins no step after `last` until the last step is agreed on.
    Promise {
        last: Option<u64>,
    },
    Peers {
        id: u64,
    },
    Leave {
        id: u64,
    },
}

/// A message from the coordinator to a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Answers [`Request::Hello`].
    Challenge {
        version: u16,
        nonce: [u8; NONCE_BYTES],
        proof: [u8; PROOF_BYTES],
    },
    /// The peer may not join, and the connection is closed.
    Refused {
        reason: String,
    },
    /// All ranks have joined.
    Welcome {
        hosts: Vec<String>,
    },
    Done {
        id: u64,
    },
    Value {
        id: u64,
        value: Vec<u8>,
    },
    NotFound {
        id: u64,
    },
    Exists {
        id: u64,
    },
    /// A wait passed its deadline; `missing` says what it waited for.
    TimedOut {
        id: u64,
        missing: String,
    },
    /// A request that the coordinator rejects.
    Rejected {
        id: u64,
        reason: String,
    },
    Peers {
        id: u64,
        peers: Vec<PeerStatus>,
    },
    /// Answers a heartbeat, with the progress of rank 0.
    Alive {
        step: Option<u64>,
        activity: String,
    },
    /// The first failure of the run.
    Failed(Failure),
    /// Asks for [`Request::Promise`].
    ProposeStop,
    /// The last step of the run.
    StopAfter {
        last: Option<u64>,
    },
}

impl Request {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Encoder(Vec::new());
        match self {
            Request::Hello { version, nonce } => {
                out.kind(0).raw(&MAGIC).raw(&version.to_le_bytes()).raw(nonce);
            }
            Request::Join { rank, size, host, proof } => {
                out.kind(1).u32(*rank).u32(*size).text(host, MAX_HOST_BYTES).raw(proof);
            }
            Request::Put { id, key, value } => {
                out.kind(2).u64(*id).text(key, MAX_KEY_BYTES).bytes(value);
            }
            Request::Get { id, key, timeout } => {
                out.kind(3).u64(*id).text(key, MAX_KEY_BYTES).duration(*timeout);
            }
            Request::TryGet { id, key } => {
                out.kind(4).u64(*id).text(key, MAX_KEY_BYTES);
            }
            Request::Barrier { id, name, timeout } => {
                out.kind(5).u64(*id).text(name, MAX_KEY_BYTES).duration(*timeout);
            }
            Request::Heartbeat { step, activity } => {
                out.kind(6).option(*step).text(activity, MAX_ACTIVITY_BYTES);
            }
            Request::Fail { step, place, message } => {
                out.kind(7).option(*step).text(place, MAX_TEXT_BYTES).text(message, MAX_TEXT_BYTES);
            }
            Request::Stop => {
                out.kind(8);
            }
            Request::Promise { last } => {
                out.kind(9).option(*last);
            }
            Request::Peers { id } => {
                out.kind(10).u64(*id);
            }
            Request::Leave { id } => {
                out.kind(11).u64(*id);
            }
            Request::Remove { id, key } => {
                out.kind(12).u64(*id).text(key, MAX_KEY_BYTES);
            }
        }
        out.0
    }

    /// Returns `None` if the bytes are no message of this version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Request> {
        let mut d = Decoder(bytes);
        let request = match d.u8()? {
            0 => {
                d.magic()?;
                Request::Hello { version: u16::from_le_bytes(d.array()?), nonce: d.array()? }
            }
            1 => Request::Join {
                rank: d.u32()?,
                size: d.u32()?,
                host: d.text(MAX_HOST_BYTES)?,
                proof: d.array()?,
            },
            2 => Request::Put { id: d.u64()?, key: d.text(MAX_KEY_BYTES)?, value: d.value()? },
            3 => Request::Get { id: d.u64()?, key: d.text(MAX_KEY_BYTES)?, timeout: d.duration()? },
            4 => Request::TryGet { id: d.u64()?, key: d.text(MAX_KEY_BYTES)? },
            5 => Request::Barrier { id: d.u64()?, name: d.text(MAX_KEY_BYTES)?, timeout: d.duration()? },
            6 => Request::Heartbeat { step: d.option()?, activity: d.text(MAX_ACTIVITY_BYTES)? },
            7 => Request::Fail {
                step: d.option()?,
                place: d.text(MAX_TEXT_BYTES)?,
                message: d.text(MAX_TEXT_BYTES)?,
            },
            8 => Request::Stop,
            9 => Request::Promise { last: d.option()? },
            10 => Request::Peers { id: d.u64()? },
            11 => Request::Leave { id: d.u64()? },
            12 => Request::Remove { id: d.u64()?, key: d.text(MAX_KEY_BYTES)? },
            _ => return None,
        };
        d.0.is_empty().then_some(request)
    }
}

impl Reply {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Encoder(Vec::new());
        match self {
            Reply::Challenge { version, nonce, proof } => {
                out.kind(0).raw(&MAGIC).raw(&version.to_le_bytes()).raw(nonce).raw(proof);
            }
            Reply::Refused { reason } => {
                out.kind(1).text(reason, MAX_HANDSHAKE_BYTES / 2);
            }
            Reply::Welcome { hosts } => {
                out.kind(2).u32(hosts.len() as u32);
                for host in hosts {
                    out.text(host, MAX_HOST_BYTES);
                }
            }
            Reply::Done { id } => {
                out.kind(3).u64(*id);
            }
            Reply::Value { id, value } => {
                out.kind(4).u64(*id).bytes(value);
            }
            Reply::NotFound { id } => {
                out.kind(5).u64(*id);
            }
            Reply::Exists { id } => {
                out.kind(6).u64(*id);
            }
            Reply::TimedOut { id, missing } => {
                out.kind(7).u64(*id).text(missing, MAX_TEXT_BYTES);
            }
            Reply::Rejected { id, reason } => {
                out.kind(8).u64(*id).text(reason, MAX_TEXT_BYTES);
            }
            Reply::Peers { id, peers } => {
                out.kind(9).u64(*id).u32(peers.len() as u32);
                for peer in peers {
                    out.u32(peer.rank).text(&peer.host, MAX_HOST_BYTES).option(peer.step);
                    out.text(&peer.activity, MAX_ACTIVITY_BYTES);
                    out.duration(peer.unchanged).duration(peer.silent).kind(u8::from(peer.left));
                }
            }
            Reply::Alive { step, activity } => {
                out.kind(10).option(*step).text(activity, MAX_ACTIVITY_BYTES);
            }
            Reply::Failed(failure) => {
                out.kind(11).u32(failure.rank).text(&failure.host, MAX_HOST_BYTES).option(failure.step);
                out.text(&failure.place, MAX_TEXT_BYTES).text(&failure.message, MAX_TEXT_BYTES);
            }
            Reply::ProposeStop => {
                out.kind(12);
            }
            Reply::StopAfter { last } => {
                out.kind(13).option(*last);
            }
        }
        out.0
    }

    /// Returns `None` if the bytes are no message of this version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Reply> {
        let mut d = Decoder(bytes);
        let reply = match d.u8()? {
            0 => {
                d.magic()?;
                let version = u16::from_le_bytes(d.array()?);
                Reply::Challenge { version, nonce: d.array()?, proof: d.array()? }
            }
            1 => Reply::Refused { reason: d.text(MAX_HANDSHAKE_BYTES / 2)? },
            2 => Reply::Welcome { hosts: d.list(|d| d.text(MAX_HOST_BYTES))? },
            3 => Reply::Done { id: d.u64()? },
            4 => Reply::Value { id: d.u64()?, value: d.value()? },
            5 => Reply::NotFound { id: d.u64()? },
            6 => Reply::Exists { id: d.u64()? },
            7 => Reply::TimedOut { id: d.u64()?, missing: d.text(MAX_TEXT_BYTES)? },
            8 => Reply::Rejected { id: d.u64()?, reason: d.text(MAX_TEXT_BYTES)? },
            9 => Reply::Peers { id: d.u64()?, peers: d.list(Decoder::peer)? },
            10 => Reply::Alive { step: d.option()?, activity: d.text(MAX_ACTIVITY_BYTES)? },
            11 => Reply::Failed(Failure {
                rank: d.u32()?,
                host: d.text(MAX_HOST_BYTES)?,
                step: d.option()?,
                place: d.text(MAX_TEXT_BYTES)?,
                message: d.text(MAX_TEXT_BYTES)?,
            }),
            12 => Reply::ProposeStop,
            13 => Reply::StopAfter { last: d.option()? },
            _ => return None,
        };
        d.0.is_empty().then_some(reply)
    }
}

/// The beginning of `text`, of at most `limit` bytes, cut at a character.
pub(crate) fn cut(text: &str, limit: usize) -> &str {
    let end = (0..=limit.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
}

struct Encoder(Vec<u8>);

impl Encoder {
    fn kind(&mut self, kind: u8) -> &mut Encoder {
        self.raw(&[kind])
    }

    fn raw(&mut self, bytes: &[u8]) -> &mut Encoder {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u32(&mut self, value: u32) -> &mut Encoder {
        self.raw(&value.to_le_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Encoder {
        self.raw(&value.to_le_bytes())
    }

    fn option(&mut self, value: Option<u64>) -> &mut Encoder {
        match value {
            Some(value) => self.kind(1).u64(value),
            None => self.kind(0),
        }
    }

    /// In microseconds: more than half a million years fit.
    fn duration(&mut self, value: Duration) -> &mut Encoder {
        self.u64(value.as_micros().try_into().unwrap_or(u64::MAX))
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Encoder {
        self.u32(bytes.len() as u32).raw(bytes)
    }

    fn text(&mut self, text: &str, limit: usize) -> &mut Encoder {
        self.bytes(cut(text, limit).as_bytes())
    }
}

/// What is left of a message.
struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn magic(&mut self) -> Option<()> {
        (self.take(MAGIC.len())? == MAGIC).then_some(())
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn option(&mut self) -> Option<Option<u64>> {
        match self.flag()? {
            true => self.u64().map(Some),
            false => Some(None),
        }
    }

    fn duration(&mut self) -> Option<Duration> {
        self.u64().map(Duration::from_micros)
    }

    fn bytes(&mut self, limit: usize) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        if len > limit { None } else { self.take(len) }
    }

    fn value(&mut self) -> Option<Vec<u8>> {
        self.bytes(MAX_VALUE_BYTES).map(<[u8]>::to_vec)
    }

    fn text(&mut self, limit: usize) -> Option<String> {
        std::str::from_utf8(self.bytes(limit)?).ok().map(str::to_owned)
    }

    /// A list, which takes memory only for the items that are there.
    fn list<T>(&mut self, item: impl Fn(&mut Decoder<'a>) -> Option<T>) -> Option<Vec<T>> {
        let len = self.u32()?;
        if len > MAX_RANKS {
            return None;
        }
        let mut items = Vec::new();
        for _ in 0..len {
            items.push(item(self)?);
        }
        Some(items)
    }

    fn peer(&mut self) -> Option<PeerStatus> {
        Some(PeerStatus {
            rank: self.u32()?,
            host: self.text(MAX_HOST_BYTES)?,
            step: self.option()?,
            activity: self.text(MAX_ACTIVITY_BYTES)?,
            unchanged: self.duration()?,
            silent: self.duration()?,
            left: self.flag()?,
        })
    }
}

/// Messages of every kind, encoded: what a fuzzer starts from.
#[doc(hidden)]
pub fn sample_messages() -> Vec<Vec<u8>> {
    let (requests, replies) = samples();
    requests.iter().map(Request::encode).chain(replies.iter().map(Reply::encode)).collect()
}

/// Decodes bytes as both kinds of message, and checks that what was decoded is encoded to the same
/// bytes.
///
/// # Panics
/// If it is not.
#[doc(hidden)]
pub fn check_decoding(bytes: &[u8]) {
    if let Some(request) = Request::decode(bytes) {
        assert_eq!(request.encode(), bytes);
    }
    if let Some(reply) = Reply::decode(bytes) {
        assert_eq!(reply.encode(), bytes);
    }
}

/// One message of every kind.
fn samples() -> (Vec<Request>, Vec<Reply>) {
    let (nonce, proof, id) = ([7; NONCE_BYTES], [9; PROOF_BYTES], 5);
    let (timeout, text) = (Duration::from_millis(1500), || "größer".to_owned());
    let peer = PeerStatus {
        rank: 1,
        host: "node1".into(),
        step: None,
        activity: "forward".into(),
        unchanged: timeout,
        silent: Duration::ZERO,
        left: true,
    };
    let failure = Failure { rank: 1, host: text(), step: Some(3), place: text(), message: text() };
    let requests = vec![
        Request::Hello { version: VERSION, nonce },
        Request::Join { rank: 1, size: 2, host: text(), proof },
        Request::Put { id, key: text(), value: vec![0, 255, 1] },
        Request::Get { id, key: text(), timeout },
        Request::TryGet { id, key: text() },
        Request::Barrier { id, name: text(), timeout },
        Request::Heartbeat { step: Some(u64::MAX), activity: text() },
        Request::Fail { step: None, place: text(), message: text() },
        Request::Stop,
        Request::Promise { last: Some(4) },
        Request::Peers { id },
        Request::Leave { id },
        Request::Remove { id, key: text() },
    ];
    let replies = vec![
        Reply::Challenge { version: VERSION, nonce, proof },
        Reply::Refused { reason: text() },
        Reply::Welcome { hosts: vec![text(), String::new()] },
        Reply::Done { id },
        Reply::Value { id, value: Vec::new() },
        Reply::NotFound { id },
        Reply::Exists { id },
        Reply::TimedOut { id, missing: text() },
        Reply::Rejected { id, reason: text() },
        Reply::Peers { id, peers: vec![peer] },
        Reply::Alive { step: None, activity: text() },
        Reply::Failed(failure),
        Reply::ProposeStop,
        Reply::StopAfter { last: None },
    ];
    (requests, replies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tensorpack_testing::test_cases;

    #[test]
    fn every_message_survives_encoding() {
        let (requests, replies) = samples();
        for request in &requests {
            assert_eq!(Request::decode(&request.encode()).as_ref(), Some(request));
        }
        for reply in &replies {
            assert_eq!(Reply::decode(&reply.encode()).as_ref(), Some(reply));
        }
        let mut kinds: Vec<u8> = requests.iter().map(|m| m.encode()[0]).collect();
        assert_eq!(kinds, (0..13).collect::<Vec<u8>>());
        kinds = replies.iter().map(|m| m.encode()[0]).collect();
        assert_eq!(kinds, (0..14).collect::<Vec<u8>>());
    }

    #[test]
    fn no_beginning_of_a_message_is_a_message() {
        let (requests, replies) = samples();
        let not_whole = |bytes: Vec<u8>| {
            let beginnings = (0..bytes.len()).map(|len| bytes[..len].to_vec()).collect::<Vec<_>>();
            beginnings.into_iter().chain([[&bytes[..], &[0]].concat()])
        };
        for bytes in requests.iter().flat_map(|request| not_whole(request.encode())) {
            assert_eq!(Request::decode(&bytes), None);
        }
        for bytes in replies.iter().flat_map(|reply| not_whole(reply.encode())) {
            assert_eq!(Reply::decode(&bytes), None);
        }
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        let activity = "ä".repeat(MAX_ACTIVITY_BYTES);
        let encoded = Request::Heartbeat { step: None, activity }.encode();
        let Some(Request::Heartbeat { activity, .. }) = Request::decode(&encoded) else { panic!() };
        assert_eq!(activity, "ä".repeat(MAX_ACTIVITY_BYTES / 2));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(test_cases(2000)))]

        /// Random bytes, and messages with random changes, neither panic nor decode to something
        /// else than they encode.
        #[test]
        fn mutated_messages_decode_to_what_they_encode(
            sample in 0..26usize,
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            random in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            check_decoding(&random);
            let mut bytes = sample_messages()[sample].clone();
            for (index, byte) in changes {
                let index = index.index(bytes.len());
                bytes[index] = byte;
            }
            check_decoding(&bytes);
        }
    }
}
