//! What happens to the programs of this process when another process of its group fails.
//!
//! A collective that waits for a process that is gone never completes. A thread watches the control
//! plane, which learns of the failure, and aborts the collectives, so that the waits for them end.
//! If they do not end soon, or the plugin cannot abort collectives, the waits end anyway.

use crate::distributed::ProcessGroup;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};
use tensorpack_pjrt::Client;
use tensorpack_rendezvous::Failure;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The interval at which the thread asks for failures.
const WATCH_INTERVAL: Duration = Duration::from_millis(20);
/// The time that collectives have to end after they were aborted.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time that the control plane has to learn of a failure that a device has noticed before. It
/// learns of the end of a process within milliseconds.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(3);
/// The ranks that an error names.
const NAMED_RANKS: usize = 4;

/// Watches the other processes of a group.
pub(super) struct PeerWatch {
    group: Weak<ProcessGroup>,
    abort_timeout: Duration,
    /// The first failure, and when this process learned of it.
    failed: Mutex<Option<(Failure, Instant)>>,
}

impl PeerWatch {
    /// Starts to watch the ranks of a group, and calls `abort` once when one fails, on a thread
    /// of its own. The thread ends when the group is gone.
    pub(super) fn start(
        group: &Arc<ProcessGroup>,
        abort: impl FnOnce(&Failure) + Send + 'static,
    ) -> Result<Arc<PeerWatch>> {
        PeerWatch::start_with(group, ABORT_TIMEOUT, abort)
    }

    fn start_with(
        group: &Arc<ProcessGroup>,
        abort_timeout: Duration,
        abort: impl FnOnce(&Failure) + Send + 'static,
    ) -> Result<Arc<PeerWatch>> {
        let group = Arc::downgrade(group);
        let watch = Arc::new(PeerWatch { group, abort_timeout, failed: Mutex::new(None) });
        let watching = watch.clone();
        let watching = move || {
            while watching.group.strong_count() > 0 {
                if let Some((failure, _)) = watching.failure() {
                    return abort(&failure);
                }
                thread::sleep(WATCH_INTERVAL);
            }
        };
        thread::Builder::new().name("peer-watch".into()).spawn(watching)?;
        Ok(watch)
    }

    /// Returns whether this watches the processes of `group`.
    pub(super) fn is_of(&self, group: &Arc<ProcessGroup>) -> bool {
        std::ptr::eq(self.group.as_ptr(), Arc::as_ptr(group))
    }

    /// Returns the first failure that this process knows of, and since when.
    fn failure(&self) -> Option<(Failure, Instant)> {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if failed.is_none() {
            let failure = self.group.upgrade().and_then(|group| group.rendezvous().failure());
            *failed = failure.map(|failure| (failure, Instant::now()));
        }
        failed.clone()
    }

    /// Returns an error if a process has failed.
    pub(super) fn check(&self) -> Result<()> {
        self.failure().map_or(Ok(()), |(failure, _)| Err(failure.to_error()))
    }

    /// Returns an error if a process has failed, and the collectives that wait for it have had time to
    /// end.
    pub(super) fn check_aborted(&self) -> Result<()> {
        match self.failure() {
            Some((failure, since)) if since.elapsed() >= self.abort_timeout => Err(failure.to_error()),
            _ => Ok(()),
        }
    }

    /// Returns the error of the process whose failure caused this error of a device, or else this
    /// error. In the first case the client is given up: its collectives have no defined state.
    pub(super) fn explain(&self, error: Error, client: &Client) -> Error {
        match error.kind() {
            ErrorKind::Engine | ErrorKind::Deadline | ErrorKind::Peer => {}
            _ => return error,
        }
        let begun = Instant::now();
        while self.failure().is_none()
            && error.kind() == ErrorKind::Engine
            && begun.elapsed() < NOTICE_TIMEOUT
        {
            thread::sleep(WATCH_INTERVAL);
        }
        match self.failure() {
            Some((failure, _)) => {
                client.abandon();
                let peer = failure.to_error();
                match error.kind() {
                    ErrorKind::Peer => peer,
                    _ => peer.note(error.message()),
                }
            }
            None if error.kind() == ErrorKind::Deadline => self.name_slowest(error),
            None => error,
        }
    }

    /// Adds what the ranks are doing that are the furthest behind: a wait that timed out without a
    /// failure is most likely a wait for them.
    fn name_slowest(&self, error: Error) -> Error {
        let Some(group) = self.group.upgrade() else { return error };
        let Ok(mut peers) = group.rendezvous().peers(NOTICE_TIMEOUT) else { return error };
        peers.retain(|peer| !peer.left);
        peers.sort_by_key(|peer| (peer.step, std::cmp::Reverse(peer.unchanged)));
        peers.iter().take(NAMED_RANKS).fold(error, |error, peer| error.note(peer.to_string()))
    }
}

impl fmt::Debug for PeerWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerWatch({:?})", self.failure().map(|(failure, _)| failure.rank))
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_ranks::join_all;
    use super::*;
    use std::sync::mpsc::channel;
    use tensorpack_pjrt::OptionValue;
    use tensorpack_tensor::HostTensor;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_dead_rank_aborts_collectives_and_then_ends_waits() {
        let mut ranks = join_all(3);
        let (send, aborted) = channel();
        let abort = move |failure: &Failure| send.send(failure.rank).unwrap();
        let watch = PeerWatch::start_with(&ranks[0], Duration::from_millis(300), abort).unwrap();
        watch.check().unwrap();
        drop(ranks.remove(2));
        assert_eq!(aborted.recv_timeout(LONG).unwrap(), 2);
        let e = watch.check().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Peer, "{e}");
        assert!(e.message().contains("rank 2"), "{e}");
        // The collectives have some time to end.
        watch.check_aborted().unwrap();
        let begun = Instant::now();
        while watch.check_aborted().is_ok() {
            assert!(begun.elapsed() < LONG);
            thread::sleep(Duration::from_millis(10));
        }
        assert!(aborted.recv_timeout(LONG).is_err(), "the thread has ended");
    }

    #[test]
    fn the_thread_ends_when_the_run_ends() {
        let mut ranks = join_all(1);
        let (send, ended) = channel::<()>();
        let watch = PeerWatch::start(&ranks[0], move |_| drop(send)).unwrap();
        let begun = Instant::now();
        let mut rank = ranks.remove(0);
        let rank = loop {
            assert!(begun.elapsed() < LONG, "the watch keeps the run alive");
            rank = match Arc::try_unwrap(rank) {
                Ok(rank) => break rank,
                Err(rank) => rank,
            };
        };
        rank.rendezvous().leave(LONG).unwrap();
        drop(rank);
        assert!(ended.recv_timeout(LONG).is_err());
        watch.check().unwrap();
    }

    #[test]
    fn errors_of_devices_become_those_of_the_dead_rank() {
        let Some(plugin) = tensorpack_testing::plugin_for_tests("cpu") else { return };
        let client = || Client::new(&plugin, &[("cpu_device_count", OptionValue::Int(1))]).unwrap();
        let mut ranks = join_all(2);
        let watch = PeerWatch::start(&ranks[0], |_| ()).unwrap();
        let alive = client();
        let memory = watch.explain(Error::new(ErrorKind::Memory, "out of memory"), &alive);
        assert_eq!(memory.kind(), ErrorKind::Memory);
        ranks[1].rendezvous().set_activity("reading its data");
        let late = || Error::new(ErrorKind::Deadline, "a device did not finish its work within 1 s");
        let begun = Instant::now();
        let late_of = loop {
            // The activity travels with the next heartbeat.
            let explained = watch.explain(late(), &alive);
            if explained.to_string().contains("reading its data") || begun.elapsed() > LONG {
                break explained;
            }
        };
        assert_eq!(late_of.kind(), ErrorKind::Deadline);
        assert!(late_of.to_string().contains("reading its data"), "{late_of}");
        let upload = || alive.upload(&HostTensor::scalar(1.0f32), &alive.devices()[0]);
        upload().expect("the client is not abandoned");
        // A device notices first: the error waits until the control plane knows.
        let dead = ranks.pop().unwrap();
        let dying = thread::spawn(move || {
            thread::sleep(Duration::from_millis(200));
            drop(dead);
        });
        let e = watch.explain(Error::new(ErrorKind::Engine, "XLA says INTERNAL: NCCL failed"), &alive);
        dying.join().unwrap();
        assert_eq!(e.kind(), ErrorKind::Peer, "{e}");
        let text = e.to_string();
        assert!(text.contains("rank 1") && text.contains("NCCL failed"), "{e}");
        let abandoned = upload().unwrap_err();
        assert!(abandoned.message().contains("abandoned"), "{abandoned}");
    }
}
