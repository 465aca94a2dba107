//! A thread that sends samples to devices before the trainer asks for them.

use super::pump::Read;
use crate::runtime::Staging;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use tensorpack_tensor::Result;

/// Hands on what comes, each sample sent to the device of the tower that takes it; so many as one step takes wait there.
pub(super) fn start(
    samples: Receiver<Read>,
    staging: Staging,
    towers: usize,
) -> Result<(Receiver<Read>, JoinHandle<()>)> {
    let (send, staged) = sync_channel(towers.max(1));
    let work = move || {
        for (i, read) in samples.into_iter().enumerate() {
            let tower = i % towers.max(1);
            let sent = read.and_then(|(sample, state)| {
                sample.iter().try_for_each(|value| staging.send(value, tower))?;
                Ok((sample, state))
            });
            if send.send(sent).is_err() {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("staging".into()).spawn(work)?;
    Ok((staged, thread))
}
