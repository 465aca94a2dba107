//! How often.

use super::Progress;
use tensorpack_tensor::{Error, Result};

/// Every so many steps, every so many epochs, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Period {
    pub(super) steps: Option<u64>,
    pub(super) epochs: Option<u64>,
}

impl Period {
    /// That each of them is a number of something.
    pub(super) fn check(self) -> Result<()> {
        match self {
            Period { steps: Some(0), .. } => Err(Error::argument("every 0 steps is never: give 1 or more")),
            Period { epochs: Some(0), .. } => Err(Error::argument("every 0 epochs is never: give 1 or more")),
            _ => Ok(()),
        }
    }

    /// Whether as many steps are done as it asks for.
    pub(super) fn due_by_step(self, at: &Progress) -> bool {
        self.steps.is_some_and(|k| at.global_step.is_multiple_of(k))
    }

    /// Whether this epoch is one it asks for.
    pub(super) fn due_by_epoch(self, at: &Progress) -> bool {
        self.epochs.is_some_and(|k| at.epoch_num.is_multiple_of(k))
    }
}
