//! The key-value store of PJRT clients, kept by the run's coordinator.

use crate::distributed::ProcessGroup;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tensorpack_pjrt::KeyValueStore;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// A store over a rank's connection to the coordinator. Once a rank has failed, every call returns
/// an error that names it, and every wait ends at once.
pub(super) struct RendezvousStore {
    /// Weak, because clients live as long as the process, and a rank must be able to leave.
    group: Weak<ProcessGroup>,
    /// Keeps the keys of this store apart from all others.
    prefix: String,
}

impl RendezvousStore {
    /// Creates a store whose keys begin with `prefix` at the coordinator.
    pub(super) fn new(group: &Arc<ProcessGroup>, prefix: &str) -> RendezvousStore {
        RendezvousStore { group: Arc::downgrade(group), prefix: prefix.into() }
    }

    fn group(&self) -> Result<Arc<ProcessGroup>> {
        self.group.upgrade().ok_or_else(|| Error::new(ErrorKind::Peer, "this process has left the run"))
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }
}

impl KeyValueStore for RendezvousStore {
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        self.group()?.rendezvous().get(&self.key(key), timeout)
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.group()?.rendezvous().try_get(&self.key(key))
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<bool> {
        match self.group()?.rendezvous().put(&self.key(key), value) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::Name => Ok(false),
            Err(e) => Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_ranks::join_all;
    use super::*;
    use std::thread;
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn ranks_share_values_under_a_prefix() {
        let ranks = join_all(2);
        let [a, b] = [0, 1].map(|rank: usize| RendezvousStore::new(&ranks[rank], "xla/"));
        assert_eq!(a.try_get("id").unwrap(), None);
        assert!(a.put("id", &[0, 255]).unwrap());
        assert!(!b.put("id", &[1]).unwrap());
        assert_eq!(b.get("id", LONG).unwrap(), [0, 255]);
        assert_eq!(b.try_get("id").unwrap().unwrap(), [0, 255]);
        assert_eq!(ranks[1].rendezvous().try_get("id").unwrap(), None);
        assert_eq!(ranks[1].rendezvous().get("xla/id", LONG).unwrap(), [0, 255]);
        let e = a.get("never", Duration::from_millis(20)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Deadline, "{e}");
    }

    #[test]
    fn a_wait_ends_at_once_when_a_rank_dies() {
        let mut ranks = join_all(2);
        let store = RendezvousStore::new(&ranks[0], "");
        let begun = Instant::now();
        let wait = thread::spawn(move || store.get("never", Duration::from_secs(3600)).unwrap_err());
        thread::sleep(Duration::from_millis(50));
        // Without leaving: this rank is dead.
        drop(ranks.pop());
        let e = wait.join().unwrap();
        assert_eq!(e.kind(), ErrorKind::Peer, "{e}");
        assert!(e.message().contains("rank 1"), "{e}");
        assert!(begun.elapsed() < LONG);
    }

    #[test]
    fn after_leaving_calls_are_errors() {
        let mut ranks = join_all(1);
        let store = RendezvousStore::new(&ranks[0], "");
        assert!(store.put("k", b"v").unwrap());
        let rank = Arc::into_inner(ranks.remove(0)).expect("the store does not keep the run alive");
        rank.rendezvous().leave(LONG).unwrap();
        drop(rank);
        for e in [store.try_get("k").unwrap_err(), store.put("l", b"").unwrap_err()] {
            assert_eq!(e.kind(), ErrorKind::Peer, "{e}");
        }
    }
}
