//! Checkpoints that are written while training goes on: the order of their writes, what a slow, a
//! failing or a stopped writer does to the run, and how much memory they take.
//!
//! No test depends on time: a disk waits at a file until a callback lets it go on, so every moment
//! of training meets a known moment of the write.

use crate::models::{Line, line};
use crate::processes;
use crate::slow_disk::{Gate, HookedDisk};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::{Arc, Mutex};
use tensorpack::callback::TrainCx;
use tensorpack::io::{Checkpoint, Keep};
use tensorpack::prelude::*;
use tensorpack::{ErrorKind, train::Trained};
use tensorpack_testing::assert_mentions;

const STEPS: u64 = 12;

/// Requests checkpoints after these steps, and calls a function after every step.
struct Saves<F> {
    steps: Vec<u64>,
    then: F,
}

impl<F: FnMut(u64, &Path) + 'static> Callback for Saves<F> {
    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if self.steps.contains(&cx.global_step) {
            cx.request_save();
        }
        (self.then)(cx.global_step, cx.logdir().expect("a log directory"));
        Ok(())
    }
}

fn config(dir: &Path, steps: &[u64], then: impl FnMut(u64, &Path) + 'static) -> TrainConfig {
    TrainConfig::new(Line, line(5))
        .callback(Saves { steps: steps.to_vec(), then })
        .session(SessionOptions { threads: Some(1), ..SessionOptions::default() })
        .steps_per_epoch(STEPS)
        .max_epoch(1)
        .keep(Keep::last(99))
        .logdir(dir)
}

fn train(config: TrainConfig) -> Result<Trained> {
    launch_train_with_config(config, SimpleTrainer::new())
}

fn folder(dir: &Path, step: u64) -> PathBuf {
    dir.join(format!("checkpoints/step-{step:010}"))
}

/// The steps of the complete checkpoints of a run.
fn saved(dir: &Path) -> Vec<u64> {
    let folders = fs::read_dir(dir.join("checkpoints")).unwrap().map(|e| e.unwrap().path());
    let folders = folders.filter(|p| p.file_name().unwrap().to_string_lossy().starts_with("step-"));
    let mut steps: Vec<u64> = folders.map(|p| Checkpoint::load(p).unwrap().global_step).collect();
    steps.sort_unstable();
    steps
}

fn latest(dir: &Path) -> String {
    fs::read_to_string(dir.join("checkpoints/latest")).unwrap().trim().to_string()
}

fn variables(session: &Session) -> BTreeMap<String, Vec<u8>> {
    let read = |name: &str| session.read(name).unwrap().as_bytes().to_vec();
    session.graph().variables().iter().map(|v| (v.name.clone(), read(&v.name))).collect()
}

/// The variables and the statistics of an undisturbed run.
fn whole() -> (BTreeMap<String, Vec<u8>>, String) {
    let dir = tempfile::tempdir().unwrap();
    let trained = train(config(dir.path(), &[], |_, _| {})).unwrap();
    (variables(&trained.session), fs::read_to_string(dir.path().join("stats.jsonl")).unwrap())
}

/// Resumes a run in this process, and compares its results with those of an undisturbed run.
fn resume_and_compare(dir: &Path) {
    let trained = train(config(dir, &[], |_, _| {})).unwrap();
    let stats = fs::read_to_string(dir.join("stats.jsonl")).unwrap();
    assert_eq!((variables(&trained.session), stats), whole());
}

/// Every step from 3 to 11 runs while the checkpoint of step 2 is being written. What is written is
/// the state after step 2, not the state at the time of the write, and it is not reported before it
/// is complete.
#[test]
fn steps_do_not_wait_for_a_slow_disk() {
    let dir = tempfile::tempdir().unwrap();
    let gate = Gate::default();
    let disk = HookedDisk::waiting_at(2, "tensors.safetensors", &gate);
    let during = Arc::new(Mutex::new(Vec::new()));
    let seen = during.clone();
    let then = move |step: u64, dir: &Path| {
        if step == 3 {
            gate.wait_for_writer();
        }
        if step >= 3 {
            let log = fs::read_to_string(dir.join("log.log")).unwrap_or_default();
            // Other tests of this process log to the same file.
            let reported = log.contains(&format!("saved {}", folder(dir, 2).display()));
            seen.lock().unwrap().push((step, folder(dir, 2).exists() || reported));
        }
        if step == 11 {
            gate.open();
        }
    };
    train(config(dir.path(), &[2], then).disk(disk)).unwrap();
    let expected: Vec<(u64, bool)> = (3..=STEPS).map(|step| (step, false)).collect();
    // The write may or may not be complete in the step after the gate was opened.
    assert_eq!(during.lock().unwrap()[..9], expected[..9]);
    assert_eq!((saved(dir.path()), latest(dir.path())), (vec![2], "step-0000000002".into()));
    let at_two = tempfile::tempdir().unwrap();
    let short = config(at_two.path(), &[], |_, _| {}).steps_per_epoch(2);
    let expected = variables(&train(short).unwrap().session);
    for (name, value) in Checkpoint::load(folder(dir.path(), 2)).unwrap().tensors {
        assert!(value.as_bytes() == expected[&name], "{name}");
    }
    resume_and_compare(dir.path());
}

/// Saves in a row wait for each other, and each is complete. All are copied into the same memory.
#[test]
fn saves_in_a_row_use_one_copy() {
    let dir = tempfile::tempdir().unwrap();
    let copies = Arc::new(Mutex::new(Vec::new()));
    let found = copies.clone();
    let disk = HookedDisk::new(move |path, parts| {
        if path.ends_with("tensors.safetensors") {
            // The first two parts are the header.
            let mut at: Vec<usize> = parts[2..].iter().map(|part| part.as_ptr() as usize).collect();
            at.sort_unstable();
            found.lock().unwrap().push(at);
        }
        Ok(())
    });
    let every: Vec<u64> = (1..=STEPS).collect();
    train(config(dir.path(), &every, |_, _| {}).callback(ModelSaver::new()).disk(disk)).unwrap();
    assert_eq!(saved(dir.path()), every);
    assert_eq!(latest(dir.path()), format!("step-{STEPS:010}"));
    let copies = copies.lock().unwrap();
    assert_eq!(copies.len() as u64, STEPS);
    assert!(copies.iter().all(|at| *at == copies[0] && !at.is_empty()), "{copies:?}");
}

/// The writer's order with tags and removals: the folder, `latest`, the tag, then old folders.
#[test]
fn tags_follow_their_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let written = Arc::new(Mutex::new(Vec::new()));
    let found = written.clone();
    let disk = HookedDisk::new(move |path, parts| {
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        for which in ["latest", "min-cost", "max-cost"].into_iter().filter(|name| file.contains(name)) {
            let text = String::from_utf8_lossy(&parts.concat()).trim().to_string();
            let folder = path.with_file_name(&text);
            found.lock().unwrap().push((which, text, folder.join("manifest.json").exists()));
        }
        Ok(())
    });
    let savers = config(dir.path(), &[], |_, _| {})
        .callback(ModelSaver::new())
        .callback(MinSaver::new("cost"))
        .callback(MaxSaver::new("cost"));
    let trained = train(savers.steps_per_epoch(3).max_epoch(4).keep(Keep::last(1)).disk(disk)).unwrap();
    let costs: Vec<f64> = trained.monitors.history("cost").iter().map(|(_, value)| *value).collect();
    let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
    let mut expected = Vec::new();
    for (epoch, &cost) in costs.iter().enumerate() {
        let name = format!("step-{:010}", 3 * (epoch + 1));
        let tags = [("latest", true), ("min-cost", cost < least), ("max-cost", cost > most)];
        expected.extend(tags.iter().filter(|(_, moves)| *moves).map(|(tag, _)| (*tag, name.clone(), true)));
        (least, most) = (least.min(cost), most.max(cost));
    }
    assert_eq!(costs.len(), 4);
    assert!(expected.len() > 6, "no tag moved: {costs:?}");
    assert_eq!(*written.lock().unwrap(), expected);
    assert!(saved(dir.path()).len() <= 3, "old checkpoints were not removed");
}

/// The error of a write ends the run at a later commit point, and names the file.
#[test]
fn an_error_of_the_writer_ends_the_run() {
    // In the last step there is no later one: the end of the run reports it.
    for failing in [4, STEPS] {
        let dir = tempfile::tempdir().unwrap();
        let gate = Gate::default();
        let (at, name) = (gate.clone(), format!("step-{failing:010}"));
        let disk = HookedDisk::new(move |path, _| {
            if path.to_string_lossy().contains(&name) && path.ends_with("state.json") {
                at.pass();
                return Err(io::ErrorKind::StorageFull.into());
            }
            Ok(())
        });
        let last = Arc::new(Mutex::new(0));
        let seen = last.clone();
        let then = move |step: u64, _: &Path| {
            *seen.lock().unwrap() = step;
            if step == STEPS.min(failing + 2) {
                gate.open();
            }
        };
        let config = config(dir.path(), &[2, failing], then).callback(ModelSaver::new());
        let e = train(config.disk(disk)).err().expect("an error");
        assert_eq!(e.kind(), ErrorKind::Io, "{e}");
        let file = format!("step-{failing:010}");
        assert_mentions(&e, &["cannot write", &file, "state.json", "earlier checkpoints"]);
        assert!(*last.lock().unwrap() >= STEPS.min(failing + 2), "the steps waited for the disk");
        assert_eq!(saved(dir.path()), [2]);
        resume_and_compare(dir.path());
    }
}

/// The tasks of a child process.
const TASK: &str = "TENSORPACK_TEST_SAVE_TASK";

/// Sends this process a signal while the checkpoint of step 4 is half written.
#[test]
fn child() {
    let (Some(dir), Ok(task)) = (processes::dir(), std::env::var(TASK)) else { return };
    let signal: i32 = task.parse().unwrap();
    let gate = Gate::default();
    let disk = HookedDisk::waiting_at(4, "state.json", &gate);
    let then = move |step: u64, dir: &Path| {
        if step == 6 {
            gate.wait_for_writer();
            assert!(!folder(dir, 4).exists());
            // To this thread: the signal is here when the call returns.
            // SAFETY: takes a number and returns one.
            unsafe { libc::raise(signal) };
            gate.open();
        }
    };
    train(config(&dir, &[2, 4], then).disk(disk)).unwrap();
    panic!("the signal was lost");
}

fn signalled(signal: i32, dir: &Path) -> Output {
    let mut command = processes::command("saves::child", dir);
    let output = command.env(TASK, signal.to_string()).output().unwrap();
    assert_eq!(output.status.signal(), Some(signal), "{}", processes::text(&output));
    output
}

/// The process is gone, and with it what it had not written. Another one resumes the checkpoint
/// before.
#[test]
fn a_kill_during_a_write_resumes_the_checkpoint_before() {
    let dir = tempfile::tempdir().unwrap();
    signalled(libc::SIGKILL, dir.path());
    assert_eq!((saved(dir.path()), latest(dir.path())), (vec![2], "step-0000000002".into()));
    resume_and_compare(dir.path());
}

/// The write under way and that of the signal are both complete when the process ends.
#[test]
fn a_signal_during_a_write_completes_it() {
    let dir = tempfile::tempdir().unwrap();
    let output = signalled(libc::SIGTERM, dir.path());
    let text = processes::text(&output);
    assert_eq!((saved(dir.path()), latest(dir.path())), (vec![2, 4, 6], "step-0000000006".into()), "{text}");
    resume_and_compare(dir.path());
}
