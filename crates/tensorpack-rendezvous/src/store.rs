//! The key-value store, as the coordinator keeps it: values are written once, and a rank can wait
//! for one.

use crate::message::Reply;
use std::collections::HashMap;
use std::time::Instant;

/// The bytes that all keys and values together may take.
const MAX_BYTES: usize = 1 << 30;
/// The number of values that one rank may wait for at a time.
const MAX_WAITS_PER_RANK: usize = 4096;
/// What an entry takes apart from its key and value.
const ENTRY_BYTES: usize = 128;

/// Values by key, and who waits for which.
#[derive(Default)]
pub(crate) struct Store {
    values: HashMap<String, Vec<u8>>,
    bytes: usize,
    waits: Vec<Wait>,
}

struct Wait {
    rank: u32,
    id: u64,
    key: String,
    deadline: Instant,
}

/// A reply for a rank.
pub(crate) type ReplyTo = (u32, Reply);

impl Store {
    /// Stores a value, unless there is one with this key. Returns the replies to the caller and to
    /// the ranks that wait for it.
    pub(crate) fn put(&mut self, rank: u32, id: u64, key: String, value: Vec<u8>) -> Vec<ReplyTo> {
        let bytes = self.bytes + key.len() + value.len() + ENTRY_BYTES;
        if self.values.contains_key(&key) {
            return vec![(rank, Reply::Exists { id })];
        }
        if bytes > MAX_BYTES {
            let reason = format!("the key-value store is full ({MAX_BYTES} bytes)");
            return vec![(rank, Reply::Rejected { id, reason })];
        }
        let mut replies = vec![(rank, Reply::Done { id })];
        for wait in self.waits.extract_if(.., |wait| wait.key == key) {
            replies.push((wait.rank, Reply::Value { id: wait.id, value: value.clone() }));
        }
        self.bytes = bytes;
        self.values.insert(key, value);
        replies
    }

    /// Removes a value, if there is one.
    pub(crate) fn remove(&mut self, key: &str) {
        if let Some(value) = self.values.remove(key) {
            self.bytes -= key.len() + value.len() + ENTRY_BYTES;
        }
    }

    /// Returns the value, or `NotFound`.
    pub(crate) fn try_get(&self, rank: u32, id: u64, key: &str) -> ReplyTo {
        match self.values.get(key) {
            Some(value) => (rank, Reply::Value { id, value: value.clone() }),
            None => (rank, Reply::NotFound { id }),
        }
    }

    /// Returns the value, or waits for it.
    pub(crate) fn get(&mut self, rank: u32, id: u64, key: String, deadline: Instant) -> Option<ReplyTo> {
        match self.try_get(rank, id, &key) {
            (_, Reply::NotFound { .. }) => {}
            found => return Some(found),
        }
        if self.waits.iter().filter(|wait| wait.rank == rank).count() >= MAX_WAITS_PER_RANK {
            let reason = format!("rank {rank} waits for {MAX_WAITS_PER_RANK} values already");
            return Some((rank, Reply::Rejected { id, reason }));
        }
        self.waits.push(Wait { rank, id, key, deadline });
        None
    }

    /// Ends the waits whose time has passed.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<ReplyTo> {
        let expired = self.waits.extract_if(.., |wait| wait.deadline <= now);
        expired.map(|wait| (wait.rank, Reply::TimedOut { id: wait.id, missing: String::new() })).collect()
    }

    /// When [`expire`](Store::expire) will next have something to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.waits.iter().map(|wait| wait.deadline).min()
    }

    /// Forgets all waits.
    pub(crate) fn clear_waits(&mut self) {
        self.waits.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_value_is_written_once_and_wakes_those_who_wait() {
        let (mut store, later) = (Store::default(), Instant::now() + Duration::from_secs(60));
        assert_eq!(store.try_get(1, 1, "k"), (1, Reply::NotFound { id: 1 }));
        assert_eq!(store.get(1, 2, "k".into(), later), None);
        assert_eq!(store.get(2, 3, "k".into(), later), None);
        assert_eq!(store.get(2, 4, "other".into(), later), None);
        let value = vec![0, 1, 255];
        assert_eq!(
            store.put(0, 9, "k".into(), value.clone()),
            [
                (0, Reply::Done { id: 9 }),
                (1, Reply::Value { id: 2, value: value.clone() }),
                (2, Reply::Value { id: 3, value: value.clone() }),
            ]
        );
        assert_eq!(store.put(1, 5, "k".into(), vec![]), [(1, Reply::Exists { id: 5 })]);
        assert_eq!(store.get(1, 6, "k".into(), later), Some((1, Reply::Value { id: 6, value })));
    }

    #[test]
    fn a_value_that_is_removed_takes_no_memory() {
        let mut store = Store::default();
        store.put(0, 1, "a".into(), vec![0; 100]);
        let before = store.bytes;
        store.put(0, 2, "key".into(), vec![1; 1000]);
        store.remove("key");
        store.remove("never");
        assert_eq!(store.bytes, before);
        assert_eq!(store.try_get(1, 3, "key"), (1, Reply::NotFound { id: 3 }));
        assert_eq!(store.put(1, 4, "key".into(), vec![]), [(1, Reply::Done { id: 4 })]);
    }

    #[test]
    fn waits_end_at_their_deadlines() {
        let (mut store, now) = (Store::default(), Instant::now());
        let at = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(store.next_deadline(), None);
        store.get(1, 1, "a".into(), at(20));
        store.get(2, 2, "b".into(), at(10));
        assert_eq!(store.next_deadline(), Some(at(10)));
        assert_eq!(store.expire(at(9)), []);
        assert_eq!(store.expire(at(10)), [(2, Reply::TimedOut { id: 2, missing: String::new() })]);
        assert_eq!(store.put(0, 3, "b".into(), vec![]).len(), 1);
        assert_eq!(store.next_deadline(), Some(at(20)));
    }

    #[test]
    fn memory_and_waits_are_bounded() {
        let (mut store, later) = (Store::default(), Instant::now());
        store.bytes = MAX_BYTES - ENTRY_BYTES - 3;
        assert!(matches!(store.put(0, 1, "key".into(), vec![1])[..], [(0, Reply::Rejected { .. })]));
        assert_eq!(store.put(0, 1, "key".into(), vec![]), [(0, Reply::Done { id: 1 })]);
        for id in 0..MAX_WAITS_PER_RANK as u64 {
            assert_eq!(store.get(4, id, "x".into(), later), None);
        }
        assert!(matches!(store.get(4, 0, "x".into(), later), Some((4, Reply::Rejected { .. }))));
        assert_eq!(store.get(5, 0, "x".into(), later), None);
    }
}
