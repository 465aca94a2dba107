//! Full devices. Statistics wait until there is space again; a checkpoint that does not fit ends the
//! run with an error, and the run can be resumed.

use crate::kills::{assert_same, command, finish, random, setting, uninterrupted};
use crate::models::{Line, line};
use crate::processes;
use std::io::Write;
use std::path::Path;
use std::time::Duration;
use tensorpack::callback::TrainCx;
use tensorpack::dataflow::DataFlow;
use tensorpack::dataflow::format::tfrecord::TfRecord;
use tensorpack::prelude::*;
use tensorpack_testing::SmallDisk;

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
fn statistics_are_written_once_a_full_disk_has_space_again() {
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

/// The seed of how fast the disk of a child fills up.
const FILL: &str = "TENSORPACK_TEST_FILL";
const BALLAST: &str = "ballast";
const DISK_MB: u64 = 64;

/// In a child process with [`FILL`]: fills the disk of `dir` with a file, first to a random level,
/// then slowly, and takes all space that becomes free.
pub(crate) fn fill(dir: &Path) {
    let Some(case) = std::env::var(FILL).ok().and_then(|n| n.parse::<u64>().ok()) else { return };
    let rng = random("full disks");
    if std::env::var_os(LIMIT).is_some() {
        // Between nothing and somewhat more than the largest file.
        limit_files((rng.uniform(case, 0) * 5e6) as libc::rlim_t);
        return;
    }
    let first = (rng.uniform(case, 0) * (DISK_MB << 20) as f64) as usize;
    let chunk = vec![1; 4096 << (rng.uniform(case, 1) * 7.0) as u32];
    let mut file = std::fs::File::create(dir.with_file_name(BALLAST)).expect("an empty disk");
    file.write_all(&vec![1; first]).expect("an empty disk");
    std::thread::spawn(move || {
        loop {
            // An error means that the disk is full.
            let _ = file.write(&chunk);
            std::thread::sleep(Duration::from_micros(500));
        }
    });
}

/// Set if the size of files is limited instead of the size of the disk.
const LIMIT: &str = "TENSORPACK_TEST_LIMIT";

/// A run ends with an error when its disk is full. Once there is space again, it continues and ends
/// with the bits of an undisturbed run. Without the right to mount file systems, the size of files
/// is limited instead.
#[test]
fn runs_on_disks_that_fill_up_can_be_resumed() {
    let cases = setting("TENSORPACK_TEST_FULL_DISKS", 2);
    let root = tempfile::tempdir().unwrap();
    let whole = uninterrupted(root.path());
    let (mut full, mut by) = (0, "");
    for case in 0..cases {
        let parent = root.path().join(format!("disk{case}"));
        let mounted = SmallDisk::mount(&parent, DISK_MB);
        let dir = parent.join("run");
        let mut child = command(&dir);
        child.env(FILL, case.to_string());
        by = "a tmpfs of 64 MB";
        if mounted.is_err() {
            child.env(LIMIT, "1");
            by = "a limit on the size of files";
        }
        let output = child.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            full += 1;
            assert_eq!(output.status.code(), Some(1), "case {case}: {} {text}", output.status);
            let why = ["No space left", "bytes are missing", "File too large"];
            assert!(why.iter().any(|w| text.contains(w)), "case {case}: {text}");
            assert!(text.contains("cannot ") || text.contains("a checkpoint needs"), "case {case}: {text}");
        }
        let _ = std::fs::remove_file(parent.join(BALLAST));
        finish(&dir);
        assert_same(&dir, &whole, &format!("case {case}"));
        drop(mounted);
        let _ = std::fs::remove_dir_all(&parent);
    }
    assert!(full > 0 || cases < 3, "no disk was full");
    println!("{full} of {cases} runs were ended by {by}: all runs have the same bits");
}
