//! Feeds that are uploaded before the run that uses them.

use super::target::Target;
use crate::runtime::staging::Stage;
use std::sync::{Arc, Mutex, PoisonError};
use tensorpack_pjrt as pjrt;
use tensorpack_tensor::{HostTensor, Result};

/// Feeds that were uploaded and that no run has used yet.
pub(super) struct StagedFeeds {
    target: Target,
    values: Mutex<Vec<StagedFeed>>,
}

struct StagedFeed {
    value: HostTensor,
    tower: usize,
    buffer: Arc<pjrt::Buffer>,
}

impl StagedFeeds {
    pub(super) fn new(target: &Target) -> Arc<StagedFeeds> {
        Arc::new(StagedFeeds { target: target.clone(), values: Mutex::default() })
    }

    /// Returns the buffer of this value, if it is staged.
    pub(super) fn find(&self, value: &HostTensor, tower: usize) -> Option<Arc<pjrt::Buffer>> {
        let values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let found = values.iter().find(|w| w.tower == tower && w.value.shares_elements(value));
        found.map(|w| w.buffer.clone())
    }

    /// Releases the feeds of a run, including those that it did not read.
    pub(super) fn release(&self, feeds: &[&HostTensor]) {
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        values.retain(|w| !feeds.iter().any(|fed| w.value.shares_elements(fed)));
    }
}

impl Stage for StagedFeeds {
    fn send(&self, value: &HostTensor, tower: usize) -> Result<()> {
        let buffer = Arc::new(self.target.upload(value, tower)?);
        let staged = StagedFeed { value: value.clone(), tower, buffer };
        self.values.lock().unwrap_or_else(PoisonError::into_inner).push(staged);
        Ok(())
    }

    fn holds(&self, value: &HostTensor, tower: usize) -> bool {
        self.find(value, tower).is_some()
    }
}
