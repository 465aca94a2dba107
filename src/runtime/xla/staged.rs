//! What was sent to devices before the run that takes it.

use super::target::Target;
use crate::runtime::staging::Stage;
use std::sync::{Arc, Mutex, PoisonError};
use tensorpack_pjrt as pjrt;
use tensorpack_tensor::{HostTensor, Result};

/// Values on their way to devices, or there already, that no run was fed with yet.
pub(super) struct Staged {
    target: Target,
    values: Mutex<Vec<Waiting>>,
}

struct Waiting {
    value: HostTensor,
    tower: usize,
    buffer: Arc<pjrt::Buffer>,
}

impl Staged {
    pub(super) fn new(target: &Target) -> Arc<Staged> {
        Arc::new(Staged { target: target.clone(), values: Mutex::default() })
    }

    /// What was sent for this value, if it was.
    pub(super) fn find(&self, value: &HostTensor, tower: usize) -> Option<Arc<pjrt::Buffer>> {
        let values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let found = values.iter().find(|w| w.tower == tower && w.value.shares_elements(value));
        found.map(|w| w.buffer.clone())
    }

    /// Lets go of what a run was fed with, whether it needed it or not.
    pub(super) fn taken(&self, feeds: &[&HostTensor]) {
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        values.retain(|w| !feeds.iter().any(|fed| w.value.shares_elements(fed)));
    }
}

impl Stage for Staged {
    fn send(&self, value: &HostTensor, tower: usize) -> Result<()> {
        let buffer = Arc::new(self.target.upload(value, tower)?);
        let waiting = Waiting { value: value.clone(), tower, buffer };
        self.values.lock().unwrap_or_else(PoisonError::into_inner).push(waiting);
        Ok(())
    }

    fn holds(&self, value: &HostTensor, tower: usize) -> bool {
        self.find(value, tower).is_some()
    }
}
