//! The position of a run, as checkpoints store it.

use serde_json::{Value, json};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The commit point at which a checkpoint was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) epoch_num: u64,
    /// Steps of this epoch that are finished.
    pub(crate) steps: u64,
    pub(crate) global_step: u64,
    /// Whether the boundary of this epoch, with all its triggers, is done. If not, a resumed run does it.
    pub(crate) ended: bool,
}

impl Position {
    pub(crate) fn to_json(self) -> Value {
        json!({
            "epoch_num": self.epoch_num,
            "steps": self.steps,
            "global_step": self.global_step,
            // Version 0.1 reads this field. Every commit point lies after `before_epoch`.
            "begun": true,
            "ended": self.ended,
        })
    }

    pub(crate) fn from_json(saved: &Value) -> Result<Position> {
        let number = |key: &str| saved[key].as_u64();
        let read = || {
            Some(Position {
                epoch_num: number("epoch_num")?,
                steps: number("steps")?,
                global_step: number("global_step")?,
                ended: saved["ended"].as_bool()?,
            })
        };
        read().ok_or_else(|| Error::new(ErrorKind::Io, format!("{saved} is not a position in a run")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_round_trip() {
        let p = Position { epoch_num: 3, steps: 7, global_step: 107, ended: false };
        assert_eq!(Position::from_json(&p.to_json()).unwrap(), p);
        assert!(Position::from_json(&Value::Null).is_err());
    }
}
