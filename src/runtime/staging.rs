//! Uploading feeds to their device before the run that uses them.

use std::fmt;
use std::sync::Arc;
use tensorpack_tensor::{HostTensor, Result};

/// Uploads the feeds of later runs while an earlier run still computes. A run that is fed a staged
/// value, or a clone of it, does not upload it again. Can be used from any thread.
#[derive(Clone)]
pub struct Staging(Arc<dyn Stage>);

/// The staging area of an engine whose devices have their own memory.
pub trait Stage: Send + Sync {
    /// Starts to upload a value to the device of a tower.
    fn send(&self, value: &HostTensor, tower: usize) -> Result<()>;
    /// Whether the value is staged and no run has used it yet.
    fn holds(&self, value: &HostTensor, tower: usize) -> bool;
}

impl Staging {
    /// Wraps the staging area of an engine.
    pub fn new(stage: Arc<dyn Stage>) -> Staging {
        Staging(stage)
    }

    /// Starts to upload a value to the device of a tower.
    pub fn send(&self, value: &HostTensor, tower: usize) -> Result<()> {
        self.0.send(value, tower)
    }

    /// Whether the value is staged and no run has used it yet.
    pub fn holds(&self, value: &HostTensor, tower: usize) -> bool {
        self.0.holds(value, tower)
    }
}

impl fmt::Debug for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Staging")
    }
}
