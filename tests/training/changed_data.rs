//! A run that is resumed with another batch size or other data says so in the log.

use crate::models::Line;
use crate::processes;
use std::path::Path;
use tensorpack::dataflow::{DataFlow, Flow, FromFn, Sample, SampleRng};
use tensorpack::prelude::*;
use tensorpack::train::TrainArgs;

/// The child's data: examples, batch size, epochs to train, what kind of dataflow it is, and what
/// is added to every element.
const DATA: &str = "TENSORPACK_TEST_DATA";

fn data(examples: u64, batch: usize, kind: u64, added: u64) -> Flow {
    let value = move |i: u64| (i + added) as f32 / 100.0;
    let example =
        move |i| Ok(vec![HostTensor::new([3], vec![value(i); 3])?, HostTensor::new([1], vec![0f32])?]);
    let flow = FromFn::new(examples, example);
    let noisy = |mut sample: Sample, rng: &mut SampleRng| {
        sample[1] = HostTensor::new([1], vec![rng.uniform() as f32])?;
        Ok(sample)
    };
    match kind {
        // The number of batches is known, or not.
        0 => flow.batch(batch).keep_remainder().into_flow(),
        1 => flow.batch(batch).keep_remainder().filter(|_| Ok(true)).into_flow(),
        2 => flow.shuffle().map_random(noisy).batch(batch).into_flow(),
        3 => flow.repeat_forever().shuffle_window(7).map_parallel(2, noisy).batch(batch).into_flow(),
        // Samples arrive in any order.
        4 => flow.map_parallel(2, noisy).unordered().batch(batch).into_flow(),
        _ => panic!("there is no kind {kind}"),
    }
}

#[test]
fn child() {
    let (Some(dir), Ok(text)) = (processes::dir(), std::env::var(DATA)) else { return };
    let numbers: Vec<u64> = text.split(' ').map(|n| n.parse().unwrap()).collect();
    let [examples, batch, max_epoch, kind, added, towers] = numbers[..] else { panic!("{text}") };
    let config = TrainConfig::new(Line, data(examples, batch as usize, kind, added));
    let config = config.steps_per_epoch(5).max_epoch(max_epoch).logdir(dir).callback(ModelSaver::new());
    match towers {
        1 => launch_train_with_config(config, SimpleTrainer::new()).unwrap(),
        n => launch_train_with_config(config, SyncMultiGpuTrainer::new(n as usize)).unwrap(),
    };
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
        ("30 4 1 0 0 1", "30 4 2 0 0 1", &[][..]),
        ("30 4 1 1 0 1", "30 4 2 1 0 1", &[]),
        // Another batch size.
        ("30 4 1 0 0 1", "30 6 2 0 0 1", &["batch_size 6 (was 4)", "batches_per_pass 5 (was 8)"]),
        ("30 4 1 1 0 1", "30 6 2 1 0 1", &["batch_size 6 (was 4)"]),
        ("30 4 1 1 0 1", "30 3 2 1 0 1", &["batch_size 3 (was 4)"]),
        // Other data.
        ("30 4 1 0 0 1", "60 4 2 0 0 1", &["batches_per_pass 15 (was 8)"]),
        // Twice the data in batches of twice the size.
        ("30 4 1 0 0 1", "60 8 2 0 0 1", &["batch_size 8 (was 4)"]),
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

/// As many batches of the same size, with other elements in them.
#[test]
fn other_elements_are_a_warning() {
    for (first, second) in [
        ("30 4 1 0 0 1", "30 4 2 0 1 1"),
        ("30 4 1 1 0 1", "30 4 2 1 1 1"),
        ("30 4 1 2 0 1", "30 4 2 2 1 1"),
        ("30 4 1 3 0 1", "30 4 2 3 1 1"),
        ("30 4 1 2 0 3", "30 4 2 2 1 3"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(warnings(dir.path(), first), "", "{first}");
        let text = warnings(dir.path(), second);
        assert!(text.contains("changed data"), "{first}, then {second}: {text:?}");
    }
}

/// The same data, shuffled, random, infinite or with other towers. The third run resumes a run that
/// was itself resumed.
#[test]
fn the_same_elements_are_no_warning() {
    for runs in [
        ["30 4 1 0 0 1", "30 4 2 0 0 1", "30 4 3 0 0 1"],
        ["30 4 1 1 0 1", "30 4 2 1 0 1", "30 4 3 1 0 1"],
        ["30 4 1 2 0 1", "30 4 2 2 0 1", "30 4 3 2 0 1"],
        ["30 4 1 3 0 1", "30 4 2 3 0 1", "30 4 3 3 0 1"],
        ["30 4 1 2 0 2", "30 4 2 2 0 2", "30 4 3 2 0 1"],
        // Five steps end a pass.
        ["20 4 1 2 0 1", "20 4 2 2 0 1", "20 4 3 2 0 1"],
        // This dataflow starts over; other warnings say so.
        ["30 4 1 4 0 1", "30 4 2 4 0 1", "30 4 3 4 0 1"],
    ] {
        let dir = tempfile::tempdir().unwrap();
        for run in runs {
            let text = warnings(dir.path(), run);
            assert!(!text.contains("changed data"), "{run}: {text:?}");
        }
    }
}

/// The first batch of a resumed run may be the smaller last one of a pass.
#[test]
fn a_smaller_last_batch_is_no_warning() {
    let dir = tempfile::tempdir().unwrap();
    // Six batches: after five steps, the next one has 2 examples.
    assert_eq!(warnings(dir.path(), "22 4 1 0 0 1"), "");
    assert!(!warnings(dir.path(), "22 4 2 0 0 1").contains("batch_size"));
    // And so it is recorded nowhere: the third run does not mind, either.
    assert!(!warnings(dir.path(), "22 4 3 0 0 1").contains("batch_size"));
}

/// The child's options.
const OPTIONS: &str = "TENSORPACK_TEST_OPTIONS";

#[test]
fn child_with_options() {
    let (Some(dir), Ok(options)) = (processes::dir(), std::env::var(OPTIONS)) else { return };
    let args = TrainArgs::parse_options(options.split_whitespace()).unwrap();
    let config = TrainConfig::new(Line, data(30, 4, 0, 0)).steps_per_epoch(5).logdir(dir);
    args.configure(config.callback(ModelSaver::new())).unwrap().train().unwrap();
}

/// Data and schedules may depend on these options, also if no variable does.
#[test]
fn other_options_that_choose_what_is_trained_are_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let log = |options: &str| {
        let mut child = processes::command("changed_data::child_with_options", dir.path());
        let output = child.env(OPTIONS, options).output().unwrap();
        let text = processes::text(&output);
        assert!(output.status.success(), "{text}");
        text
    };
    let changed = "resuming with changed options";
    for options in ["--max-epoch 1 --full", "--max-epoch 2 --full --threads-per-device 1"] {
        let text = log(options);
        assert!(!text.contains(changed), "{text}");
    }
    let text = log("--max-epoch 3");
    assert!(text.contains(&format!("{changed}: --full not given (was true)")), "{text}");
    // A complete run trains nothing with them.
    let text = log("--max-epoch 3 --full");
    assert!(text.contains("already complete") && !text.contains(changed), "{text}");
}
