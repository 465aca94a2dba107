//! Periods in steps and epochs.

use super::Progress;
use tensorpack_tensor::{Error, Result};

/// A period in steps, in epochs, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Period {
    pub(super) steps: Option<u64>,
    pub(super) epochs: Option<u64>,
}

impl Period {
    /// Checks that no period is 0.
    pub(super) fn check(self) -> Result<()> {
        match self {
            Period { steps: Some(0), .. } => Err(Error::argument("a period of 0 steps: use 1 or more")),
            Period { epochs: Some(0), .. } => Err(Error::argument("a period of 0 epochs: use 1 or more")),
            _ => Ok(()),
        }
    }

    /// Returns whether the number of finished steps is a multiple of the period.
    pub(super) fn due_by_step(self, at: &Progress) -> bool {
        self.steps.is_some_and(|k| at.global_step.is_multiple_of(k))
    }

    /// Returns whether the epoch number is a multiple of the period.
    pub(super) fn due_by_epoch(self, at: &Progress) -> bool {
        self.epochs.is_some_and(|k| at.epoch_num.is_multiple_of(k))
    }
}
