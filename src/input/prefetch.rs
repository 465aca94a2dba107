//! A thread that reads a dataflow for the trainer, ahead of time or on demand.

use super::own_batches::OwnBatches;
use super::{OtherTowers, no_batch, stager};
use crate::runtime::{Interrupt, Staging};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tensorpack_dataflow::{DataFlow, Flow, Reader, Sample, Seed, State};
use tensorpack_tensor::{Error, ErrorKind, Result};
use tensorpack_timeline as timeline;

/// The time to wait for a sample before the wait fails.
const TIMEOUT: Duration = Duration::from_secs(300);
/// The interval at which a wait checks for an interrupt.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How far a [`Prefetcher`] reads ahead.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadAhead {
    /// The number of samples that are kept ready; 0 to read on demand.
    pub(super) samples: usize,
    /// The number of bytes that are kept ready. It does not apply to the first two samples.
    pub(super) bytes: usize,
}

/// The samples of a step that this process takes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Share {
    pub(super) others: OtherTowers,
    /// The number of towers of this process.
    pub(super) towers: usize,
}

impl Share {
    /// Returns the number of towers of all processes.
    pub(super) fn total(self) -> usize {
        self.others.before + self.towers + self.others.after
    }

    /// Returns whether other processes take batches, too.
    pub(super) fn is_shared(self) -> bool {
        self.others != OtherTowers::default()
    }
}

/// The samples that may exceed [`ReadAhead::bytes`]: with fewer, reading and computing would not
/// overlap.
const MIN_SAMPLES: usize = 2;

/// Batches that were read but not yet taken.
#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    /// Signaled when a sample is taken, and when reading must stop.
    changed: Condvar,
}

#[derive(Clone, Copy, Default)]
struct QueueState {
    samples: usize,
    bytes: usize,
    stopped: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, bytes: usize) {
        let mut state = self.lock();
        state.samples += 1;
        state.bytes += bytes;
    }

    fn remove(&self, bytes: usize) {
        let mut state = self.lock();
        state.samples -= 1;
        state.bytes -= bytes;
        self.changed.notify_all();
    }

    fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Waits until there is room for a sample of `next` bytes. Returns false if reading must stop.
    fn wait_for_room(&self, next: usize, max_bytes: usize) -> bool {
        let mut state = self.lock();
        while !state.stopped && state.samples >= MIN_SAMPLES && state.bytes.saturating_add(next) > max_bytes {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !state.stopped
    }
}

/// Returns the number of bytes that a sample takes; 0 for an error.
fn sample_bytes(read: &Read) -> usize {
    read.as_ref().map_or(0, |(sample, _)| sample.iter().map(|value| value.as_bytes().len()).sum())
}

/// A sample with the state after it, or the error that ended reading.
pub(super) type Read = Result<(Sample, State)>;

/// Reads samples on a background thread, ahead of the trainer or on demand.
pub(super) struct Prefetcher {
    samples: Receiver<Read>,
    /// Requests one sample; `None` if the thread reads ahead.
    requests: Option<SyncSender<()>>,
    /// The samples in the queue; also tells the thread to stop.
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
    interrupt: Interrupt,
    /// The position after the last sample taken.
    state: State,
}

impl Prefetcher {
    /// Starts a thread that keeps samples ready, or reads them on demand.
    pub(super) fn start(
        flow: &Flow,
        seed: u64,
        at: State,
        ahead: ReadAhead,
        share: Share,
        interrupt: &Interrupt,
    ) -> Result<Prefetcher> {
        let (send, samples) = sync_channel(ahead.samples.max(1));
        let (requests, requested) = sync_channel(1);
        let queue = Arc::new(Queue::default());
        let (flow, from, filled) = (flow.clone(), at.clone(), queue.clone());
        let on_demand = ahead.samples == 0;
        let work = move || {
            let mut opened: Option<Epochs> = None;
            // The next sample is expected to be as large as the last one.
            let mut bytes = 0;
            while {
                let _waiting = timeline::static_span("input", "wait for room in the queue");
                filled.wait_for_room(bytes, ahead.bytes) && (!on_demand || requested.recv().is_ok())
            } {
                let reading = timeline::static_span("input", "read a batch");
                // A user function may panic; report that like any other error.
                let read = catch_unwind(AssertUnwindSafe(|| {
                    let epochs = match &mut opened {
                        Some(epochs) => epochs,
                        None => opened.insert(Epochs::open(&flow, seed, &from, share)?),
                    };
                    epochs.read_share()
                }));
                let sample = read.unwrap_or_else(|panic| {
                    let text = panic.downcast_ref::<String>().cloned();
                    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
                    let text = text.unwrap_or_else(|| "no message".into());
                    let State { epoch, index, .. } = *opened.as_ref().map_or(&from, |epochs| &epochs.at);
                    let why = format!("sample {index} of epoch {epoch}: the dataflow panicked: {text}");
                    Err(Error::new(ErrorKind::Data, why))
                });
                let last = sample.is_err();
                bytes = sample_bytes(&sample);
                filled.add(bytes);
                drop(reading);
                let _waiting = timeline::static_span("input", "wait for room in the queue");
                if send.send(sample).is_err() || last {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("input".into()).spawn(work)?;
        let requests = on_demand.then_some(requests);
        Ok(Prefetcher {
            samples,
            requests,
            queue,
            threads: vec![thread],
            interrupt: interrupt.clone(),
            state: at,
        })
    }

    /// Adds a second thread that transfers the next samples to the devices of the towers that take
    /// them, in turn. It keeps those of `steps` steps ready.
    pub(super) fn staged(mut self, staging: &Staging, towers: usize, steps: usize) -> Result<Prefetcher> {
        let read = std::mem::replace(&mut self.samples, sync_channel(1).1);
        let (samples, thread) = stager::start(read, staging.clone(), towers, steps)?;
        self.samples = samples;
        self.threads.push(thread);
        Ok(self)
    }

    /// Returns the next sample, waiting for it if necessary.
    pub(super) fn take(&mut self) -> Result<Sample> {
        if let Some(requests) = &self.requests {
            // Ignore the error: a thread that ended has queued its error as the last message.
            let _ = requests.try_send(());
        }
        let _waiting = timeline::static_span("input", "wait for a batch");
        let start = Instant::now();
        loop {
            match self.samples.recv_timeout(POLL_INTERVAL) {
                Ok(read) => {
                    self.queue.remove(sample_bytes(&read));
                    let (sample, state) = read?;
                    self.state = state;
                    return Ok(sample);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::new(
                        ErrorKind::Data,
                        "the dataflow has already failed; see the first error",
                    ));
                }
                Err(RecvTimeoutError::Timeout) => self.interrupt.check()?,
            }
            if start.elapsed() > TIMEOUT {
                let State { epoch, index, .. } = &self.state;
                return Err(Error::new(
                    ErrorKind::Deadline,
                    format!("timed out after {TIMEOUT:?} waiting for sample {index} of epoch {epoch}"),
                ));
            }
        }
    }

    /// Returns the position after the last sample taken.
    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// Returns the number of samples that are ready.
    pub(super) fn ready(&self) -> usize {
        self.queue.lock().samples
    }
}

impl Drop for Prefetcher {
    fn drop(&mut self) {
        self.queue.stop();
        self.requests = None;
        // Without a receiver the thread ends, unless a user function does not return.
        drop(std::mem::replace(&mut self.samples, sync_channel(1).1));
        let start = Instant::now();
        for thread in self.threads.drain(..) {
            while !thread.is_finished() && start.elapsed() < Duration::from_secs(2) {
                std::thread::sleep(Duration::from_millis(1));
            }
            if thread.is_finished() {
                // The thread catches its own panics.
                let _ = thread.join();
            } else {
                log::warn!("a dataflow reader thread did not stop within 2 seconds; leaving it running");
            }
        }
    }
}

/// Reads a dataflow epoch after epoch.
struct Epochs {
    reader: Box<dyn Reader>,
    share: Share,
    /// The samples of this process, if those of others need not be read.
    own: Option<OwnBatches>,
    /// The number of samples that were read for this process; in order, of this step.
    read: usize,
    /// Whether the last read returned the end of an epoch.
    at_end: bool,
    /// The position of the sample being read.
    at: State,
}

impl Epochs {
    /// Opens a dataflow at `from`.
    fn open(flow: &Flow, seed: u64, from: &State, share: Share) -> Result<Epochs> {
        let own = OwnBatches::open(flow, seed, from, share)?;
        let reader = match &own {
            Some(own) => own.reader()?,
            None => flow.open(Seed::new(seed), from)?,
        };
        Ok(Epochs { reader, share, own, read: 0, at_end: false, at: from.clone() })
    }

    /// Reads the next sample of this process. Those of the others are not read if there is random
    /// access; otherwise they are read and dropped.
    fn read_share(&mut self) -> Result<(Sample, State)> {
        let Some(own) = &self.own else { return self.read_in_order() };
        let sample = self.reader.read()?.ok_or_else(no_batch)?;
        self.read += 1;
        self.at = own.state_after(self.read as u64 - 1);
        Ok((sample, self.at.clone()))
    }

    /// Reads the next sample of this process, and skips those of the others before it or, after the
    /// last sample of the step, those after it.
    fn read_in_order(&mut self) -> Result<(Sample, State)> {
        let Share { others: OtherTowers { before, after }, towers } = self.share;
        if self.read == 0 {
            for _ in 0..before {
                self.read()?;
            }
        }
        let (sample, mut state) = self.read()?;
        self.read += 1;
        if self.read >= towers {
            self.read = 0;
            for _ in 0..after {
                state = self.read()?.1;
            }
        }
        Ok((sample, state))
    }

    /// Reads the next sample of all processes.
    fn read(&mut self) -> Result<(Sample, State)> {
        loop {
            self.at = self.reader.state();
            match self.reader.read()? {
                Some(sample) => {
                    self.at_end = false;
                    return Ok((sample, self.reader.state()));
                }
                None if self.at_end => return Err(no_batch()),
                None => self.at_end = true,
            }
        }
    }
}

/// loom models of the queue. loom has no bounded channels, so an unbounded one stands for the
/// prefetcher's, and the loops of the two threads are shortened copies.
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::mpsc::channel;
    use loom::thread;

    const BYTES: usize = 8;

    /// Reads `count` samples, or until the queue is stopped; returns how many.
    fn read(queue: &Queue, count: usize, max_bytes: usize, mut send: impl FnMut(usize)) -> usize {
        for i in 0..count {
            if !queue.wait_for_room(if i == 0 { 0 } else { BYTES }, max_bytes) {
                return i;
            }
            queue.add(BYTES);
            send(i);
        }
        count
    }

    /// A reader that waits for room is woken by each sample taken, and the queue stays within its
    /// bounds.
    #[test]
    fn a_full_queue_continues_when_a_sample_is_taken() {
        loom::model(|| {
            let queue = Arc::new(Queue::default());
            let (send, samples) = channel();
            let filled = queue.clone();
            let reader = thread::spawn(move || read(&filled, 4, BYTES, |i| send.send(i).unwrap()));
            for i in 0..4 {
                assert_eq!(samples.recv(), Ok(i));
                let ready = *queue.lock();
                assert!(ready.samples <= MIN_SAMPLES && ready.bytes <= MIN_SAMPLES * BYTES);
                queue.remove(BYTES);
            }
            assert_eq!(reader.join().unwrap(), 4);
            assert_eq!(queue.lock().samples, 0);
        });
    }

    /// Stopping ends a reader, whether it waits for room or is about to.
    #[test]
    fn stopping_ends_the_reader() {
        loom::model(|| {
            let queue = Arc::new(Queue::default());
            let filled = queue.clone();
            let reader = thread::spawn(move || read(&filled, usize::MAX, BYTES, |_| ()));
            queue.stop();
            assert!(reader.join().unwrap() <= MIN_SAMPLES);
        });
    }
}
