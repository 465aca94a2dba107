//! Sending what will be fed to its device before the run that takes it.

use std::fmt;
use std::sync::Arc;
use tensorpack_tensor::{HostTensor, Result};

/// The way to a device's memory for values that runs will be fed with, while an earlier run still computes. A run that is
/// fed with a value that was sent, or with a clone of it, finds it there. May be used from any thread.
#[derive(Clone)]
pub struct Staging(Arc<dyn Stage>);

/// What an engine offers whose devices have memory of their own.
pub trait Stage: Send + Sync {
    /// Starts to copy a value to the device of a tower.
    fn send(&self, value: &HostTensor, tower: usize) -> Result<()>;
    /// Whether it was sent, and no run has taken it yet.
    fn holds(&self, value: &HostTensor, tower: usize) -> bool;
}

impl Staging {
    /// That of an engine.
    pub fn new(stage: Arc<dyn Stage>) -> Staging {
        Staging(stage)
    }

    /// Starts to copy a value to the device of a tower.
    pub fn send(&self, value: &HostTensor, tower: usize) -> Result<()> {
        self.0.send(value, tower)
    }

    /// Whether it was sent there, and no run has taken it yet.
    pub fn holds(&self, value: &HostTensor, tower: usize) -> bool {
        self.0.holds(value, tower)
    }
}

impl fmt::Debug for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the way to a device's memory")
    }
}
