//! Corrupted checkpoints, failing disks, failing monitors: no run is lost.

use crate::crash_disk::{CrashDisk, Leaves};
use crate::failing_disk::{FailingDisk, Fault, Medium};
use crate::models::{Line, line};
use crate::processes;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tensorpack::callback::TrainCx;
use tensorpack::dataflow::FromIter;
use tensorpack::io::{Checkpoint, Keep, RealDisk};
use tensorpack::monitor::{Class, JsonWriter, Moment, Monitor};
use tensorpack::prelude::*;
use tensorpack::{ErrorKind, train::Trained};
use tensorpack_testing::assert_mentions;

const EPOCHS: u64 = 3;

fn config(dir: &Path) -> TrainConfig {
    TrainConfig::new(Line, line(2))
        .callback(ModelSaver::new())
        .callback(MinSaver::new("cost"))
        .keep(Keep::last(2))
        .logdir(dir)
        .max_epoch(EPOCHS)
}

fn train(config: TrainConfig) -> Result<Trained> {
    launch_train_with_config(config, SimpleTrainer::new())
}

/// Returns the results of a run: the tensors of its last checkpoint, and its statistics.
fn outcome(dir: &Path) -> (BTreeMap<String, HostTensor>, String) {
    let latest = fs::read_to_string(dir.join("checkpoints/latest")).unwrap();
    let checkpoint = Checkpoint::load(dir.join("checkpoints").join(latest.trim())).unwrap();
    assert_eq!(checkpoint.global_step, 2 * EPOCHS);
    (checkpoint.tensors.into_iter().collect(), fs::read_to_string(dir.join("stats.jsonl")).unwrap())
}

fn uninterrupted() -> (BTreeMap<String, HostTensor>, String) {
    let dir = tempfile::tempdir().unwrap();
    train(config(dir.path())).unwrap();
    outcome(dir.path())
}

#[test]
fn child() {
    if let Some(dir) = processes::dir() {
        train(config(&dir)).unwrap();
    }
}

/// Trains to the end in a child process, and returns its log.
fn finish(dir: &Path) -> String {
    let output = processes::alone("faults::child", dir);
    let text = processes::text(&output);
    assert!(output.status.success(), "{text}");
    text
}

type Damage = fn(&Path);

fn cut(file: &Path) {
    let bytes = fs::read(file).unwrap();
    fs::write(file, &bytes[..bytes.len() / 2]).unwrap();
}

fn flip(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(file, bytes).unwrap();
}

fn remove(file: &Path) {
    fs::remove_file(file).unwrap();
}

#[test]
fn a_corrupted_checkpoint_is_skipped_and_the_results_are_identical() {
    let whole = uninterrupted();
    let damages: [(&str, Damage); 3] = [("cut", cut), ("flipped", flip), ("missing", remove)];
    for file in ["tensors.safetensors", "state.json", "manifest.json"] {
        for (what, damage) in damages {
            let dir = tempfile::tempdir().unwrap();
            train(config(dir.path()).max_epoch(2)).unwrap();
            damage(&dir.path().join("checkpoints/step-0000000004").join(file));
            let text = finish(dir.path());
            assert!(text.contains("checkpoints/step-0000000004: "), "{file} {what}: {text}");
            assert!(text.contains("step-0000000002 at epoch 1, step 2"), "{file} {what}: {text}");
            assert_eq!(outcome(dir.path()), whole, "{file} {what}");
        }
    }
}

#[test]
fn a_dangling_pointer_is_skipped() {
    let whole = uninterrupted();
    for latest in ["step-0000000099\n", "", "\u{1}\u{2}"] {
        let dir = tempfile::tempdir().unwrap();
        train(config(dir.path()).max_epoch(2)).unwrap();
        fs::write(dir.path().join("checkpoints/latest"), latest).unwrap();
        train(config(dir.path())).unwrap();
        assert_eq!(outcome(dir.path()), whole, "{latest:?}");
    }
}

/// A run never starts over without the user's request.
#[test]
fn an_error_if_all_checkpoints_are_corrupted() {
    let dir = tempfile::tempdir().unwrap();
    train(config(dir.path()).max_epoch(2)).unwrap();
    for step in ["step-0000000002", "step-0000000004"] {
        cut(&dir.path().join("checkpoints").join(step).join("tensors.safetensors"));
    }
    let e = train(config(dir.path())).err().expect("an error");
    assert!(e.message().contains("none is valid"), "{e}");
    assert!(e.to_string().contains("--fresh"), "{e}");
    train(config(dir.path()).fresh()).unwrap();
    assert_eq!(outcome(dir.path()), uninterrupted());
}

/// Returns the steps of the valid checkpoints in a directory.
fn valid_checkpoints(dir: &Path) -> Vec<u64> {
    let Ok(entries) = fs::read_dir(dir.join("checkpoints")) else { return Vec::new() };
    let folders = entries.map(|e| e.unwrap().path()).filter(|p| p.is_dir() && !is_hidden(p));
    let mut steps: Vec<u64> = folders.map(|p| Checkpoint::load(p).unwrap().global_step).collect();
    steps.sort_unstable();
    steps
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'))
}

/// A failure at any operation of any save is an error, keeps earlier checkpoints, and the run can
/// be resumed with the same results. `check` looks at the disk before that.
fn a_failing_disk<M: Medium>(
    new: impl Fn(&Path) -> M,
    fault: Fault,
    stride: usize,
    check: impl Fn(&Path, &str),
) {
    let whole = uninterrupted();
    let mut failures = 0;
    for fails_at in (0..).step_by(stride) {
        let dir = tempfile::tempdir().unwrap();
        let disk = new(dir.path());
        let done = Arc::new(AtomicU64::new(0));
        let failing = FailingDisk { inner: disk.clone(), done: done.clone(), fails_at, fault };
        let trained = train(config(dir.path()).disk(Box::new(failing)));
        let at = format!("{fault:?} at operation {fails_at}");
        if done.load(Ordering::Relaxed) <= fails_at {
            trained.unwrap();
            break;
        }
        failures += 1;
        let e = trained.err().unwrap_or_else(|| panic!("{at} was not reported"));
        assert_eq!(e.kind(), ErrorKind::Io, "{at}: {e}");
        check(dir.path(), &at);
        if fault == Fault::Crash {
            disk.restart(Leaves::Some(fails_at));
        }
        let resumed = train(config(dir.path()).disk(Box::new(disk))).unwrap_or_else(|e| panic!("{at}: {e}"));
        for (name, value) in &whole.0 {
            assert_eq!(resumed.session.read(name).unwrap(), *value, "{at}: {name}");
        }
        let stats = fs::read_to_string(dir.path().join("stats.jsonl")).unwrap();
        assert_eq!(stats, whole.1, "{at}");
    }
    assert!(failures > 60 / stride, "only {failures} operations");
}

/// Every folder with a final name is valid, and the latest checkpoint exists.
fn check_folders(dir: &Path, at: &str) {
    let there = valid_checkpoints(dir);
    if let Ok(latest) = fs::read_to_string(dir.join("checkpoints/latest")) {
        let step: u64 = latest.trim().trim_start_matches("step-").parse().unwrap();
        assert!(there.contains(&step), "{at}: {step} is not in {there:?}");
    }
}

#[test]
fn a_disk_that_fails_during_training() {
    // A permanent failure differs from a single one only in the cleanup, so fewer cases suffice.
    a_failing_disk(|_| RealDisk, Fault::Full, 1, check_folders);
    a_failing_disk(|_| RealDisk, Fault::Crash, 4, check_folders);
}

/// On the model of a disk that loses what was not synced.
#[test]
fn a_power_failure_during_training() {
    let model = |dir: &Path| CrashDisk::new(dir.parent().expect("a temporary directory"));
    a_failing_disk(model, Fault::Crash, 1, |_, _| ());
    for fault in [Fault::Denied, Fault::ReadsHalf, Fault::Late] {
        a_failing_disk(model, fault, 3, |_, _| ());
    }
}

/// Fails to write a scalar from the second epoch on.
struct Fails;

impl Monitor for Fails {
    fn name(&self) -> String {
        "Fails".into()
    }
    fn scalar(&mut self, _: &str, _: f64, _: Class, at: Moment) -> Result<()> {
        if at.epoch_num < 2 { Ok(()) } else { Err(Error::new(ErrorKind::Io, "the network is down")) }
    }
}

/// Checks that training continues.
struct Counts(u64);

impl Callback for Counts {
    fn trigger(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        self.0 += 1;
        Ok(())
    }
    fn after_train(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        assert_eq!(self.0, EPOCHS);
        Ok(())
    }
}

#[test]
fn child_with_a_failing_monitor() {
    if let Some(dir) = processes::dir() {
        let monitors: Vec<Box<dyn Monitor>> = vec![Box::new(Fails), Box::new(JsonWriter::new())];
        train(config(&dir).callback(Counts(0)).monitors(monitors)).unwrap();
    }
}

#[test]
fn a_failing_monitor_is_disabled_and_logged() {
    let dir = tempfile::tempdir().unwrap();
    let output = processes::alone("faults::child_with_a_failing_monitor", dir.path());
    let text = processes::text(&output);
    assert!(output.status.success(), "{text}");
    let logged: Vec<&str> = text.lines().filter(|l| l.contains("the monitor Fails")).collect();
    assert_eq!(logged.len(), 1, "{text}");
    assert!(logged[0].contains("ERR") && logged[0].contains("disabling the monitor"), "{text}");
    assert!(logged[0].contains("the network is down"), "{text}");
    assert_eq!(fs::read_to_string(dir.path().join("stats.jsonl")).unwrap(), uninterrupted().1);
}

/// Data that can be read only once.
fn once(dir: &Path) -> TrainConfig {
    let batch = || Ok(vec![HostTensor::zeros(DType::F32, [4, 3])?, HostTensor::zeros(DType::F32, [4, 1])?]);
    let flow = FromIter::once(std::iter::repeat_with(batch));
    TrainConfig::new(Line, flow).callback(ModelSaver::new()).logdir(dir).steps_per_epoch(2)
}

#[test]
fn child_with_data_that_can_be_read_once() {
    if let Some(dir) = processes::dir() {
        train(once(&dir).max_epoch(2)).unwrap();
    }
}

#[test]
fn data_that_cannot_be_read_again_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    train(once(dir.path()).max_epoch(1)).unwrap();
    let output = processes::alone("faults::child_with_data_that_can_be_read_once", dir.path());
    let text = processes::text(&output);
    assert!(output.status.success(), "{text}");
    assert_mentions(&text, &["not resume exactly", "read only once"]);
}
