//! Corrupted checkpoints, failing disks, failing monitors: no run is lost.

use crate::models::{Line, line};
use crate::processes;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};
use tensorpack::callback::TrainCx;
use tensorpack::dataflow::FromIter;
use tensorpack::io::{Checkpoint, Disk, Keep, Parts, RealDisk};
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
fn only_corrupted_checkpoints_are_an_error() {
    let dir = tempfile::tempdir().unwrap();
    train(config(dir.path()).max_epoch(2)).unwrap();
    for step in ["step-0000000002", "step-0000000004"] {
        cut(&dir.path().join("checkpoints").join(step).join("tensors.safetensors"));
    }
    let e = train(config(dir.path())).err().expect("an error");
    assert!(e.message().contains("none is valid"), "{e}");
    assert!(e.to_string().contains("--fresh"), "{e}");
    train(config(dir.path()).fresh(true)).unwrap();
    assert_eq!(outcome(dir.path()), uninterrupted());
}

/// The real disk, except that operation `fails_at` fails, and with `for_good` all later ones.
struct Failing {
    done: Arc<AtomicU64>,
    fails_at: u64,
    for_good: bool,
}

impl Failing {
    fn allowed(&self) -> io::Result<()> {
        let n = self.done.fetch_add(1, Ordering::Relaxed);
        match n == self.fails_at || (self.for_good && n > self.fails_at) {
            true => Err(io::Error::from(io::ErrorKind::StorageFull)),
            false => Ok(()),
        }
    }
}

impl Disk for Failing {
    fn create_dir(&mut self, path: &Path) -> io::Result<()> {
        self.allowed()?;
        RealDisk.create_dir(path)
    }
    fn write(&mut self, path: &Path, parts: &Parts<'_>) -> io::Result<()> {
        self.allowed().inspect_err(|_| {
            let bytes = parts.concat();
            fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
        })?;
        RealDisk.write(path, parts)
    }
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.allowed()?;
        RealDisk.rename(from, to)
    }
    fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        self.allowed()?;
        RealDisk.sync_dir(path)
    }
    fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.allowed()?;
        RealDisk.remove(path)
    }
    fn free_space(&mut self, dir: &Path) -> io::Result<Option<u64>> {
        self.allowed()?;
        RealDisk.free_space(dir)
    }
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
/// be resumed with the same results.
#[test]
fn a_disk_that_fails_during_training() {
    let whole = uninterrupted();
    // A permanent failure differs from a single one only in the cleanup, so fewer cases suffice.
    for (for_good, stride) in [(false, 1), (true, 4)] {
        let mut failures = 0;
        for fails_at in (0..).step_by(stride) {
            let dir = tempfile::tempdir().unwrap();
            let done = Arc::new(AtomicU64::new(0));
            let disk = Failing { done: done.clone(), fails_at, for_good };
            let trained = train(config(dir.path()).disk(Box::new(disk)));
            if done.load(Ordering::Relaxed) <= fails_at {
                trained.unwrap();
                break;
            }
            failures += 1;
            let e = trained
                .err()
                .unwrap_or_else(|| panic!("the failure of operation {fails_at} was not reported"));
            assert_eq!(e.kind(), ErrorKind::Io, "{fails_at}: {e}");
            // Every folder with a final name is valid, and the latest checkpoint still exists.
            let there = valid_checkpoints(dir.path());
            if let Ok(latest) = fs::read_to_string(dir.path().join("checkpoints/latest")) {
                let step: u64 = latest.trim().trim_start_matches("step-").parse().unwrap();
                assert!(there.contains(&step), "{fails_at}: {step} is not in {there:?}");
            }
            train(config(dir.path())).unwrap_or_else(|e| panic!("after {fails_at}: {e}"));
            assert_eq!(outcome(dir.path()), whole, "after operation {fails_at} failed");
        }
        assert!(failures > 40 / stride, "only {failures} operations");
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
fn data_that_cannot_be_read_again_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    train(once(dir.path()).max_epoch(1)).unwrap();
    let output = processes::alone("faults::child_with_data_that_can_be_read_once", dir.path());
    let text = processes::text(&output);
    assert!(output.status.success(), "{text}");
    assert_mentions(&text, &["not resume exactly", "read only once"]);
}
