//! Sends messages to a server from a thread of its own. Training never waits for the server: what
//! does not fit into the queue, or cannot be sent, is dropped and counted.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tensorpack_tensor::Result;

/// A message with the number of values in it, for the count of what is lost.
pub(super) struct Counted<M> {
    pub(super) message: M,
    pub(super) values: u64,
}

/// A bounded queue, and the thread that sends what is in it.
pub(super) struct RemoteQueue<M> {
    /// The name of the monitor.
    name: &'static str,
    /// `None` after the end.
    queue: Option<SyncSender<Counted<M>>>,
    shared: Arc<Shared<M>>,
    /// Receives an end when the thread has none left.
    done: Receiver<()>,
}

struct Shared<M> {
    /// The values of all messages.
    given: AtomicU64,
    /// The values that the server has.
    sent: AtomicU64,
    /// The values that did not fit into the queue, or could not be sent.
    dropped: AtomicU64,
    /// The message after all others.
    last: Mutex<Option<M>>,
    /// Whether nobody waits for the thread any more.
    given_up: AtomicBool,
    /// Whether a failure was logged.
    warned: AtomicBool,
}

/// Whether a sender should try again, because somebody still waits for it.
pub(super) struct Patience<'a>(&'a AtomicBool);

impl Patience<'_> {
    /// Waits before another attempt. Returns false if there should be none.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let begun = std::time::Instant::now();
        while begun.elapsed() < time && !self.0.load(Ordering::Relaxed) {
            std::thread::sleep(time.min(Duration::from_millis(20)));
        }
        !self.0.load(Ordering::Relaxed)
    }
}

impl<M: Send + 'static> RemoteQueue<M> {
    /// Starts a thread that sends messages with `send`, of which up to `capacity` wait. `name` is
    /// that of the monitor.
    pub(super) fn start(
        name: &'static str,
        capacity: usize,
        mut send: impl FnMut(M, &Patience<'_>) -> Result<()> + Send + 'static,
    ) -> Result<RemoteQueue<M>> {
        let (queue, messages) = sync_channel::<Counted<M>>(capacity);
        let (ended, done) = sync_channel(1);
        let shared = Arc::new(Shared {
            given: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            last: Mutex::new(None),
            given_up: AtomicBool::new(false),
            warned: AtomicBool::new(false),
        });
        let of_thread = shared.clone();
        let work = move || {
            let shared = of_thread;
            let mut deliver = |message: M, values: u64| {
                if shared.given_up.load(Ordering::Relaxed) {
                    return;
                }
                match send(message, &Patience(&shared.given_up)) {
                    Ok(()) => drop(shared.sent.fetch_add(values, Ordering::Relaxed)),
                    Err(e) => shared.drop_values(values, name, &e.to_string()),
                }
            };
            messages.into_iter().for_each(|Counted { message, values }| deliver(message, values));
            let last = shared.last.lock().unwrap_or_else(PoisonError::into_inner).take();
            last.into_iter().for_each(|message| deliver(message, 0));
            // Nobody may wait any more; ignore the error.
            let _ = ended.send(());
        };
        std::thread::Builder::new().name(name.into()).spawn(work)?;
        Ok(RemoteQueue { name, queue: Some(queue), shared, done })
    }

    /// Queues a message, or drops it if the queue is full.
    pub(super) fn push(&self, message: M, values: u64) {
        self.shared.given.fetch_add(values, Ordering::Relaxed);
        let Some(queue) = &self.queue else { return };
        if queue.try_send(Counted { message, values }).is_err() {
            self.shared.drop_values(values, self.name, "its server is too slow");
        }
    }

    /// Returns the number of values that are lost. After the end these are all that the server does
    /// not have.
    pub(super) fn lost(&self) -> u64 {
        let Shared { given, sent, dropped, .. } = &*self.shared;
        match self.queue {
            Some(_) => dropped.load(Ordering::Relaxed),
            None => given.load(Ordering::Relaxed).saturating_sub(sent.load(Ordering::Relaxed)),
        }
    }

    /// Sends what is queued, and then `last`, for at most this time. Does nothing the second time.
    pub(super) fn finish(&mut self, last: M, deadline: Duration) {
        let Some(queue) = self.queue.take() else { return };
        *self.shared.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(last);
        drop(queue);
        let _ = self.done.recv_timeout(deadline);
        self.shared.given_up.store(true, Ordering::Relaxed);
    }
}

impl<M> Shared<M> {
    /// Counts values that are lost, and logs the first failure.
    fn drop_values(&self, values: u64, name: &str, why: &str) {
        self.dropped.fetch_add(values, Ordering::Relaxed);
        // After the end the number of lost values is logged instead.
        if !self.given_up.load(Ordering::Relaxed) && !self.warned.swap(true, Ordering::Relaxed) {
            log::warn!("{name} drops statistics, and training goes on: {why}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use tensorpack_tensor::Error;

    #[test]
    fn a_queue_that_is_full_drops_and_counts() {
        let (go, wait) = channel::<()>();
        let (begun, entered) = channel();
        let send = move |_: u32, _: &Patience<'_>| {
            begun.send(()).unwrap();
            wait.recv().map_err(|_| Error::argument("the test has ended"))
        };
        let mut queue = RemoteQueue::start("test", 2, send).unwrap();
        queue.push(0, 1);
        entered.recv().unwrap();
        // One message is being sent, two wait, and two are dropped.
        (1..5).for_each(|i| queue.push(i, 10));
        assert_eq!(queue.lost(), 20);
        (0..4).for_each(|_| go.send(()).unwrap());
        queue.finish(9, Duration::from_secs(60));
        assert_eq!(queue.lost(), 20);
    }

    #[test]
    fn the_end_does_not_wait_for_a_server_that_hangs() {
        let (_never, wait) = channel::<()>();
        let send = move |_: u32, _: &Patience<'_>| wait.recv().map_err(|_| Error::argument("gone"));
        let mut queue = RemoteQueue::start("test", 2, send).unwrap();
        (0..2).for_each(|i| queue.push(i, 3));
        queue.finish(9, Duration::from_millis(50));
        assert_eq!(queue.lost(), 6);
    }

    #[test]
    fn messages_that_fail_are_counted_and_the_last_one_is_sent_last() {
        let (note, noted) = channel();
        let send = move |message: u32, _: &Patience<'_>| {
            note.send(message).unwrap();
            if message.is_multiple_of(2) { Ok(()) } else { Err(Error::argument("odd")) }
        };
        let mut queue = RemoteQueue::start("test", 10, send).unwrap();
        (0..4).for_each(|i| queue.push(i, 5));
        queue.finish(100, Duration::from_secs(60));
        assert_eq!(queue.lost(), 10);
        assert_eq!(noted.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 100]);
    }
}
