//! A thread that reads a dataflow for the trainer.

use super::stager;
use crate::runtime::{Interrupt, Staging};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tensorpack_dataflow::{DataFlow, Flow, Reader, Sample, Seed, State};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// How long to wait for a sample before that is an error.
const DEADLINE: Duration = Duration::from_secs(300);
/// How often a wait looks whether the process is to end.
const GLANCE: Duration = Duration::from_millis(20);

/// A sample with the state after it, or why there is none.
pub(super) type Read = Result<(Sample, State)>;

/// Reads ahead of the trainer, or only what it is asked for.
pub(super) struct Pump {
    samples: Receiver<Read>,
    /// Asks for one sample, where the thread reads only what it is asked for.
    asks: Option<SyncSender<()>>,
    waiting: Arc<AtomicUsize>,
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    interrupt: Interrupt,
    /// What was taken.
    state: State,
}

impl Pump {
    /// A thread that keeps `ahead` samples ready; with 0 it reads when asked.
    pub(super) fn start(
        flow: &Flow,
        seed: u64,
        at: State,
        ahead: usize,
        interrupt: &Interrupt,
    ) -> Result<Pump> {
        let (send, samples) = sync_channel(ahead.max(1));
        let (asks, asked) = sync_channel(1);
        let (waiting, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (flow, from) = (flow.clone(), at.clone());
        let (count, stop) = (waiting.clone(), ended.clone());
        let on_demand = ahead == 0;
        let work = move || {
            let mut passes = Passes::default();
            let mut reader = None;
            while !stop.load(Ordering::Relaxed) && (!on_demand || asked.recv().is_ok()) {
                // A user's function may panic; that is an error like any other.
                let read = catch_unwind(AssertUnwindSafe(|| passes.read(&flow, seed, &from, &mut reader)));
                let sample = read.unwrap_or_else(|panic| {
                    let text = panic.downcast_ref::<String>().cloned();
                    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
                    let text = text.unwrap_or_else(|| "no message".into());
                    let State { epoch, index, .. } = passes.at;
                    let why = format!("sample {index} of epoch {epoch}: the dataflow panicked: {text}");
                    Err(Error::new(ErrorKind::Data, why))
                });
                let last = sample.is_err();
                count.fetch_add(1, Ordering::Relaxed);
                if send.send(sample).is_err() || last {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("input".into()).spawn(work)?;
        let asks = on_demand.then_some(asks);
        Ok(Pump {
            samples,
            asks,
            waiting,
            ended,
            threads: vec![thread],
            interrupt: interrupt.clone(),
            state: at,
        })
    }

    /// With another thread, which sends the next samples to the devices of the towers that take them, in turn.
    pub(super) fn staged(mut self, staging: &Staging, towers: usize) -> Result<Pump> {
        let read = std::mem::replace(&mut self.samples, sync_channel(1).1);
        let (samples, thread) = stager::start(read, staging.clone(), towers)?;
        self.samples = samples;
        self.threads.push(thread);
        Ok(self)
    }

    /// The next sample.
    pub(super) fn take(&mut self) -> Result<Sample> {
        if let Some(asks) = &self.asks {
            // A thread that ended said why in its last message.
            let _ = asks.try_send(());
        }
        let begun = Instant::now();
        loop {
            match self.samples.recv_timeout(GLANCE) {
                Ok(read) => {
                    self.waiting.fetch_sub(1, Ordering::Relaxed);
                    let (sample, state) = read?;
                    self.state = state;
                    return Ok(sample);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::new(ErrorKind::Data, "the dataflow ended with an error before"));
                }
                Err(RecvTimeoutError::Timeout) => self.interrupt.check()?,
            }
            if begun.elapsed() > DEADLINE {
                let State { epoch, index, .. } = &self.state;
                return Err(Error::new(
                    ErrorKind::Deadline,
                    format!("no sample came for {DEADLINE:?}, after sample {index} of pass {epoch}"),
                ));
            }
        }
    }

    /// What was taken so far.
    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// Samples that are ready.
    pub(super) fn ready(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        self.asks = None;
        // With nobody to send to, the thread ends; unless it is inside a user's function that does not return.
        drop(std::mem::replace(&mut self.samples, sync_channel(1).1));
        let begun = Instant::now();
        for thread in self.threads.drain(..) {
            while !thread.is_finished() && begun.elapsed() < Duration::from_secs(2) {
                std::thread::sleep(Duration::from_millis(1));
            }
            if thread.is_finished() {
                // It caught its own panics.
                let _ = thread.join();
            } else {
                log::warn!("a dataflow's reader did not end within 2 seconds, and is left behind");
            }
        }
    }
}

/// Reads pass after pass.
#[derive(Default)]
struct Passes {
    /// Whether the last thing read was the end of a pass.
    between: bool,
    /// What is read.
    at: State,
}

impl Passes {
    fn read(
        &mut self,
        flow: &Flow,
        seed: u64,
        from: &State,
        reader: &mut Option<Box<dyn Reader>>,
    ) -> Result<(Sample, State)> {
        let reader = match reader {
            Some(reader) => reader,
            None => reader.insert(flow.open(Seed::new(seed), from)?),
        };
        loop {
            self.at = reader.state();
            match reader.read()? {
                Some(sample) => {
                    self.between = false;
                    return Ok((sample, reader.state()));
                }
                None if self.between => {
                    return Err(Error::new(ErrorKind::Data, "a pass over the dataflow has no sample"));
                }
                None => self.between = true,
            }
        }
    }
}
