//! Where a run is, as checkpoints keep it.

use crate::callback::Progress;
use serde_json::{Value, json};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Between which two moments a checkpoint was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) epoch_num: u64,
    /// Steps of this epoch that are finished.
    pub(super) steps: u64,
    pub(super) global_step: u64,
    /// Whether `before_epoch` of this epoch was called.
    pub(super) begun: bool,
    /// Whether the end of this epoch, with all its triggers, is done.
    pub(super) ended: bool,
}

impl Position {
    /// Before the first epoch.
    pub(super) fn start(starting_epoch: u64) -> Position {
        Position { epoch_num: starting_epoch - 1, steps: 0, global_step: 0, begun: true, ended: true }
    }

    /// After a step.
    pub(super) fn within(progress: &Progress, steps: u64) -> Position {
        let Progress { epoch_num, global_step, .. } = *progress;
        Position { epoch_num, steps, global_step, begun: true, ended: false }
    }

    pub(super) fn to_json(self) -> Value {
        json!({
            "epoch_num": self.epoch_num,
            "steps": self.steps,
            "global_step": self.global_step,
            "begun": self.begun,
            "ended": self.ended,
        })
    }

    pub(super) fn from_json(saved: &Value) -> Result<Position> {
        let number = |key: &str| saved[key].as_u64();
        let read = || {
            Some(Position {
                epoch_num: number("epoch_num")?,
                steps: number("steps")?,
                global_step: number("global_step")?,
                begun: saved["begun"].as_bool()?,
                ended: saved["ended"].as_bool()?,
            })
        };
        read().ok_or_else(|| Error::new(ErrorKind::Io, format!("{saved} is no position in a run")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_come_back() {
        let p = Position { epoch_num: 3, steps: 7, global_step: 107, begun: true, ended: false };
        assert_eq!(Position::from_json(&p.to_json()).unwrap(), p);
        assert!(Position::from_json(&Value::Null).is_err());
    }
}
