//! A thread that transfers samples to devices before the trainer needs them.

use super::prefetch::Read;
use crate::runtime::Staging;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use tensorpack_tensor::Result;
use tensorpack_timeline as timeline;

/// Starts a thread that transfers each sample to the device of the tower that takes it and passes
/// it on. It keeps the samples of `steps` steps ready.
pub(super) fn start(
    samples: Receiver<Read>,
    staging: Staging,
    towers: usize,
    steps: usize,
) -> Result<(Receiver<Read>, JoinHandle<()>)> {
    let (send, staged) = sync_channel(towers.max(1) * steps.max(1));
    let work = move || {
        for (i, read) in samples.into_iter().enumerate() {
            let tower = i % towers.max(1);
            let sending = timeline::static_span("input", "send a batch to its device");
            let sent = read.and_then(|(sample, state)| {
                sample.iter().try_for_each(|value| staging.send(value, tower))?;
                Ok((sample, state))
            });
            drop(sending);
            if send.send(sent).is_err() {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("staging".into()).spawn(work)?;
    Ok((staged, thread))
}
