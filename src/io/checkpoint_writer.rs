//! Writes checkpoints while training goes on, one at a time.
//!
//! Training captures its state at a commit point and hands it over. A thread then downloads what is
//! still on a device, writes the checkpoint, and only then reports it as saved. All operations of a
//! save are those of [`CheckpointStore::save`] in the same order, so a crash leaves what it would
//! leave if training had waited.

use super::{CapturedCheckpoint, Checkpoint, CheckpointStore};
use std::collections::HashMap;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// The checkpoints of a run, written behind its training loop. At most one copy of the state exists:
/// a save waits for the one before it.
pub(crate) struct CheckpointWriter {
    /// `None` while a checkpoint is being written: its thread has the store.
    store: Option<CheckpointStore>,
    writing: Option<JoinHandle<Written>>,
    /// The tensors of the last checkpoint. The next one is copied into their memory.
    spare: HashMap<String, HostTensor>,
}

/// What the thread of a save returns.
struct Written {
    store: CheckpointStore,
    tensors: Vec<(String, HostTensor)>,
    saved: Result<()>,
}

impl CheckpointWriter {
    pub(crate) fn new(store: CheckpointStore) -> CheckpointWriter {
        CheckpointWriter { store: Some(store), writing: None, spare: HashMap::new() }
    }

    /// Returns the newest valid checkpoint and its folder: see [`CheckpointStore::latest`]. Waits for
    /// a checkpoint that is being written.
    pub(crate) fn latest(&mut self) -> Result<Option<(PathBuf, Checkpoint)>> {
        self.join()?;
        self.store.as_ref().ok_or_else(lost)?.latest()
    }

    /// Returns the memory of a variable in the last checkpoint, for its value in the next one. Call
    /// it only after [`CheckpointWriter::join`].
    pub(crate) fn spare(&mut self, name: &str) -> Option<HostTensor> {
        self.spare.remove(name)
    }

    /// Starts to write a checkpoint, with these tags. Waits for the one before it, and returns its
    /// error if that failed.
    pub(crate) fn begin(&mut self, captured: CapturedCheckpoint, tags: Vec<String>) -> Result<()> {
        self.join()?;
        let store = self.store.take().ok_or_else(lost)?;
        let thread = thread::Builder::new().name("checkpoint writer".into());
        let started = thread.spawn(move || write(store, captured, &tags)).map_err(|e| {
            Error::new(ErrorKind::Io, format!("cannot start the thread that writes checkpoints: {e}"))
        })?;
        self.writing = Some(started);
        Ok(())
    }

    /// Writes a checkpoint and waits until it is complete.
    pub(crate) fn save(&mut self, checkpoint: Checkpoint, tags: Vec<String>) -> Result<()> {
        self.begin(checkpoint.into(), tags)?;
        let saved = self.join();
        // The next one is not copied into this memory.
        self.spare.clear();
        saved
    }

    /// Returns the error of the checkpoint that was being written, if it is known to have failed.
    /// Does not wait.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.writing.as_ref().is_some_and(JoinHandle::is_finished) {
            true => self.join(),
            false => Ok(()),
        }
    }

    /// Waits until the checkpoint that is being written is complete. Returns its error if it failed.
    pub(crate) fn join(&mut self) -> Result<()> {
        let Some(writing) = self.writing.take() else { return Ok(()) };
        let Written { store, tensors, saved } = writing.join().map_err(|_| {
            Error::new(ErrorKind::Engine, "the thread that writes checkpoints panicked")
                .note("earlier checkpoints are unchanged")
        })?;
        self.store = Some(store);
        self.spare = tensors.into_iter().collect();
        saved
    }
}

/// A run that panics ends with a complete checkpoint, too, and keeps its lock until then.
impl Drop for CheckpointWriter {
    fn drop(&mut self) {
        if let Err(e) = self.join() {
            log::error!("{e}");
        }
    }
}

fn write(mut store: CheckpointStore, captured: CapturedCheckpoint, tags: &[String]) -> Written {
    let _span = tensorpack_timeline::static_span("checkpoint", "write a checkpoint");
    // Values from a device are downloaded into memory of their own.
    let is_reused = captured.is_on_host();
    let checkpoint = match captured.into_host() {
        Ok(checkpoint) => checkpoint,
        Err(e) => return Written { store, tensors: Vec::new(), saved: Err(e) },
    };
    let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
    let saved = store.save(&checkpoint, &tags);
    let saved = saved.map(|folder| log::info!("saved {}", folder.display()));
    Written { store, tensors: if is_reused { checkpoint.tensors } else { Vec::new() }, saved }
}

/// The error of a save after a panic, which has ended the run already.
fn lost() -> Error {
    Error::new(ErrorKind::Engine, "no checkpoint can be written: an earlier save panicked")
}
