//! Checks that a program that learns to play a game ends with the same bits if it is interrupted.

use crate::games::Rules;
use std::path::Path;
use tensorpack::io::Checkpoint;

/// Returns the last checkpoint of a run.
pub(crate) fn last_checkpoint(dir: &Path) -> Checkpoint {
    let latest = std::fs::read_to_string(dir.join("checkpoints/latest")).unwrap();
    Checkpoint::load(dir.join("checkpoints").join(latest.trim())).unwrap()
}

/// Runs `train`, which trains until this epoch and returns its last checkpoint, for three epochs at once
/// and one after another. Returns the last checkpoint, which must be the same.
pub(crate) fn check(rules: Rules, train: impl Fn(Rules, &Path, u64) -> Checkpoint) -> Checkpoint {
    let dir = tempfile::tempdir().unwrap();
    let [at_once, in_parts] = ["at_once", "in_parts"].map(|name| dir.path().join(name));
    let expected = train(rules, &at_once, 3);
    for epochs in 1..3 {
        train(rules, &in_parts, epochs);
    }
    let resumed = train(rules, &in_parts, 3);
    assert_eq!(resumed.input_tensors, expected.input_tensors, "{rules:?}");
    assert_eq!(resumed.tensors, expected.tensors, "{rules:?}");
    assert_eq!(resumed.state["input"], expected.state["input"], "{rules:?}");
    expected
}
