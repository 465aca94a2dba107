//! A run that is resumed with another batch size or other data says so in the log.

use crate::models::Line;
use crate::processes;
use std::path::Path;
use tensorpack::dataflow::{DataFlow, FromFn};
use tensorpack::prelude::*;

/// Examples and batch size of the child's data, and whether the number of batches is unknown.
const DATA: &str = "TENSORPACK_TEST_DATA";

fn data(examples: u64, batch: usize) -> impl DataFlow {
    let example = |i| Ok(vec![HostTensor::new([3], vec![i as f32; 3])?, HostTensor::new([1], vec![0f32])?]);
    FromFn::new(examples, example).batch(batch).keep_remainder()
}

#[test]
fn child() {
    let (Some(dir), Ok(text)) = (processes::dir(), std::env::var(DATA)) else { return };
    let numbers: Vec<u64> = text.split(' ').map(|n| n.parse().unwrap()).collect();
    let [examples, batch, max_epoch, unknown] = numbers[..] else { panic!("{text}") };
    let flow = data(examples, batch as usize);
    let config = match unknown {
        0 => TrainConfig::new(Line, flow),
        _ => TrainConfig::new(Line, flow.filter(|_| Ok(true))),
    };
    let config = config.steps_per_epoch(5).max_epoch(max_epoch).logdir(dir).callback(ModelSaver::new());
    launch_train_with_config(config, SimpleTrainer::new()).unwrap();
}

/// Trains in a child process and returns its warnings.
fn warnings(dir: &Path, data: &str) -> String {
    let output = processes::command("changed_data::child", dir).env(DATA, data).output().unwrap();
    let text = processes::text(&output);
    assert!(output.status.success(), "{text}");
    text.lines().filter(|line| line.contains("WRN")).collect::<Vec<_>>().join("\n")
}

/// Every second run of a pair resumes the first.
#[test]
fn another_batch_size_or_other_data_are_warnings() {
    for (first, second, terms) in [
        // The same data: with 5 steps of the 8 batches an epoch, the resumed run starts anywhere.
        ("30 4 1 0", "30 4 2 0", &[][..]),
        ("30 4 1 1", "30 4 2 1", &[]),
        // Another batch size.
        ("30 4 1 0", "30 6 2 0", &["batch_size 6 (was 4)", "batches_per_pass 5 (was 8)"]),
        ("30 4 1 1", "30 6 2 1", &["batch_size 6 (was 4)"]),
        ("30 4 1 1", "30 3 2 1", &["batch_size 3 (was 4)"]),
        // Other data.
        ("30 4 1 0", "60 4 2 0", &["batches_per_pass 15 (was 8)"]),
        // Twice the data in batches of twice the size.
        ("30 4 1 0", "60 8 2 0", &["batch_size 8 (was 4)"]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(warnings(dir.path(), first), "", "{first}");
        let text = warnings(dir.path(), second);
        for term in terms {
            assert!(text.contains(term), "{first}, then {second}: {term:?} missing in {text:?}");
        }
        let about_data = text.contains("batch_size") || text.contains("batches_per_pass");
        assert_eq!(about_data, !terms.is_empty(), "{first}, then {second}: {text:?}");
    }
}

/// The first batch of a resumed run may be the smaller last one of a pass.
#[test]
fn a_smaller_last_batch_is_no_warning() {
    let dir = tempfile::tempdir().unwrap();
    // Six batches: after five steps, the next one has 2 examples.
    assert_eq!(warnings(dir.path(), "22 4 1 0"), "");
    assert!(!warnings(dir.path(), "22 4 2 0").contains("batch_size"));
    // And so it is recorded nowhere: the third run does not mind, either.
    assert!(!warnings(dir.path(), "22 4 3 0").contains("batch_size"));
}
