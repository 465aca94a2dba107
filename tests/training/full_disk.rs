//! Statistics on a device that is full for a while: nothing is lost, and no line is torn.

use crate::models::{Line, line};
use crate::processes;
use std::path::Path;
use tensorpack::callback::TrainCx;
use tensorpack::dataflow::DataFlow;
use tensorpack::dataflow::format::tfrecord::TfRecord;
use tensorpack::prelude::*;

const STEPS: u64 = 6;
const EPOCHS: u64 = 2;

/// Limits the size of files from step 2 to step 9, so that every writer fails in the middle of a
/// line. That includes the end of an epoch.
struct FullFor(Option<std::ops::Range<u64>>);

fn limit_files(bytes: libc::rlim_t) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the structure is initialized, and the signal is ignored, not handled.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
    }
}

impl Callback for FullFor {
    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if let Some(full) = &self.0 {
            if cx.global_step == full.start {
                let stats = cx.logdir().expect("a log directory").join("stats.jsonl");
                limit_files(std::fs::metadata(stats)?.len() + 10);
            } else if cx.global_step == full.end {
                limit_files(libc::RLIM_INFINITY);
            }
        }
        cx.put_scalar("square", cx.global_step.pow(2) as f64);
        if cx.global_step == 11 {
            cx.request_save();
        }
        Ok(())
    }
}

fn train(dir: &Path, full: Option<std::ops::Range<u64>>) -> Result<()> {
    let config =
        TrainConfig::new(Line, line(STEPS as usize)).callback(FullFor(full)).max_epoch(EPOCHS).logdir(dir);
    launch_train_with_config(config, SimpleTrainer::new()).map(|_| ())
}

#[test]
fn child() {
    if let Some(dir) = processes::dir() {
        train(&dir, Some(2..9)).unwrap();
    }
}

/// Returns the number of records in the event file of a run.
fn events(dir: &Path) -> u64 {
    let mut files = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let file = files.find(|p| p.to_string_lossy().contains("tfevents")).expect("an event file");
    TfRecord::open(&file).unwrap().size().unwrap()
}

#[test]
fn statistics_of_a_time_without_space_are_written_later() {
    let (whole, full) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    train(whole.path(), None).unwrap();
    let output = processes::alone("full_disk::child", full.path());
    let text = processes::text(&output);
    assert!(output.status.success(), "{text}");
    let stats = |dir: &Path| std::fs::read_to_string(dir.join("stats.jsonl")).unwrap();
    assert_eq!(stats(full.path()), stats(whole.path()), "{text}");
    assert_eq!(events(full.path()), events(whole.path()), "{text}");
    let warnings = text.lines().filter(|l| l.contains("cannot write") && l.contains("stats.jsonl"));
    assert_eq!(warnings.count(), 1, "{text}");
}
