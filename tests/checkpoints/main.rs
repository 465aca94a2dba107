//! Checkpoints on disks that fail or stop, and damaged checkpoint files: a saved checkpoint is
//! never lost.

mod crash_disk;
mod crashes;
mod failing_disk;

use crashes::Machine;
use failing_disk::Fault;
use proptest::prelude::*;
use serde_json::json;
use std::fs;
use std::io::{self, BufRead};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;
use tempfile::TempDir;
use tensorpack::io::{Checkpoint, CheckpointStore, DirEntry, Disk, Keep, OpenFile, Parts, RealDisk, RunLock};
use tensorpack::{DType, HostTensor};

/// Returns a checkpoint whose tensors and state all depend on `step`.
fn checkpoint(step: u64) -> Checkpoint {
    let values = |n: usize| (0..n).map(|i| (step as usize * 31 + i) as f64).collect::<Vec<_>>();
    Checkpoint {
        global_step: step,
        tensors: vec![
            ("conv0/W".into(), HostTensor::from_f64(DType::F32, [3, 5], &values(15)).unwrap()),
            ("step".into(), HostTensor::from_f64(DType::I64, [], &values(1)).unwrap()),
        ],
        input_tensors: vec![("replay".into(), HostTensor::from_f64(DType::F32, [7], &values(7)).unwrap())],
        state: json!({"epoch_num": step / 10, "best": 0.1 * step as f64}),
    }
}

fn sorted_by_name(mut c: Checkpoint) -> Checkpoint {
    c.tensors.sort_by(|a, b| a.0.cmp(&b.0));
    c
}

fn assert_step(found: &Checkpoint, step: u64) {
    assert_eq!(sorted_by_name(found.clone()), sorted_by_name(checkpoint(step)));
}

fn open(dir: &TempDir) -> CheckpointStore {
    CheckpointStore::open(&RunLock::acquire(dir.path()).unwrap()).unwrap()
}

fn names(dir: &TempDir) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir.path().join("checkpoints"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn latest_returns_the_last_saved_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(&dir);
    assert!(store.latest().unwrap().is_none());
    for step in [10, 20] {
        let path = store.save(&checkpoint(step), &[]).unwrap();
        assert_eq!(path, dir.path().join(format!("checkpoints/step-00000000{step}")));
        let (latest, found) = store.latest().unwrap().unwrap();
        assert_eq!(latest, path);
        assert_step(&found, step);
    }
    // Saving the same step again creates another folder, which is then the latest.
    let mut again = checkpoint(20);
    again.state = json!({"boundary": "done"});
    store.save(&again, &[]).unwrap();
    drop(store);
    let (path, found) = open(&dir).latest().unwrap().unwrap();
    assert!(path.ends_with("step-0000000020.1"));
    assert_eq!(found.state, again.state);
    assert_eq!(names(&dir), ["latest", "step-0000000010", "step-0000000020", "step-0000000020.1"]);
}

#[test]
fn tensors_are_a_safetensors_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = open(&dir).save(&checkpoint(3), &[]).unwrap();
    let tensors = tensorpack::io::safetensors::read(path.join("tensors.safetensors")).unwrap();
    assert!(tensors.contains(&checkpoint(3).tensors[0]));
}

/// `TENSORPACK_TEST_CASES` sets the number of cases, which are the same in every run.
fn cases() -> ProptestConfig {
    let cases = tensorpack_testing::test_cases(24);
    let rng_seed = proptest::test_runner::RngSeed::Fixed(0);
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

/// The log records of all tests.
struct Log(Mutex<Vec<String>>);
static LOG: Log = Log(Mutex::new(Vec::new()));

impl log::Log for Log {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        self.0.lock().unwrap().push(format!("{} {}", record.level(), record.args()));
    }
    fn flush(&self) {}
}

fn warned_of(dir: &TempDir, what: &str) -> bool {
    let dir = dir.path().to_string_lossy().into_owned();
    LOG.0.lock().unwrap().iter().any(|l| l.starts_with("WARN") && l.contains(&dir) && l.contains(what))
}

#[test]
fn corrupted_checkpoints_are_skipped_with_a_warning() {
    let _ = log::set_logger(&LOG).map(|()| log::set_max_level(log::LevelFilter::Warn));
    type Damage = fn(&Path);
    let cut: Damage = |file| {
        let bytes = fs::read(file).unwrap();
        fs::write(file, &bytes[..bytes.len() - 1]).unwrap();
    };
    let flip: Damage = |file| {
        let mut bytes = fs::read(file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(file, bytes).unwrap();
    };
    let missing: Damage = |file| fs::remove_file(file).unwrap();
    for (file, damage, what) in [
        ("tensors.safetensors", cut, "bytes instead of"),
        ("tensors.safetensors", flip, "checksum mismatch"),
        ("tensors.safetensors", missing, "cannot read"),
        ("state.json", cut, "bytes instead of"),
        ("state.json", flip, "checksum mismatch"),
        ("state.json", missing, "cannot read"),
        ("manifest.json", cut, ""),
        ("manifest.json", flip, "manifest"),
        ("manifest.json", missing, "cannot read"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut store = open(&dir);
        store.save(&checkpoint(10), &[]).unwrap();
        let newest = store.save(&checkpoint(20), &[]).unwrap();
        damage(&newest.join(file));
        let (_, found) = store.latest().unwrap().unwrap();
        // The manifest's last byte is a newline, which is optional.
        let expected = if file == "manifest.json" && what.is_empty() { 20 } else { 10 };
        assert_step(&found, expected);
        assert!(expected == 20 || (warned_of(&dir, file) && warned_of(&dir, what)), "{file}: {what}");
    }
}

#[test]
fn an_invalid_latest_file_is_ignored() {
    for text in ["step-0000000099\n", "../../etc\n", ""] {
        let dir = tempfile::tempdir().unwrap();
        let mut store = open(&dir);
        store.save(&checkpoint(10), &[]).unwrap();
        fs::write(dir.path().join("checkpoints/latest"), text).unwrap();
        assert_step(&store.latest().unwrap().unwrap().1, 10);
    }
}

#[test]
fn latest_can_be_set_to_an_older_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(&dir).keep(Keep::last(2));
    for step in [10, 20, 30] {
        store.save(&checkpoint(step), &[]).unwrap();
    }
    fs::write(dir.path().join("checkpoints/latest"), "step-0000000020\n").unwrap();
    assert_step(&store.latest().unwrap().unwrap().1, 20);
    store.save(&checkpoint(25), &[]).unwrap();
    assert_step(&store.latest().unwrap().unwrap().1, 25);
    assert_eq!(names(&dir), ["latest", "step-0000000025", "step-0000000030"]);
}

#[test]
fn an_error_if_all_checkpoints_are_corrupted() {
    let dir = tempfile::tempdir().unwrap();
    let path = open(&dir).save(&checkpoint(10), &[]).unwrap();
    fs::remove_file(path.join("state.json")).unwrap();
    let e = open(&dir).latest().unwrap_err().to_string();
    assert!(e.contains("none is valid") && e.contains("state.json") && e.contains("--fresh"), "{e}");
    fs::remove_file(path.join("manifest.json")).unwrap();
    assert!(open(&dir).latest().is_err());
}

#[test]
fn old_checkpoints_are_removed_unless_tagged() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(&dir).keep(Keep::last(2));
    for step in 1..=6 {
        let tags: &[&str] = if step == 2 { &["max-val/accuracy"] } else { &[] };
        store.save(&checkpoint(step), tags).unwrap();
    }
    let steps = |s: &CheckpointStore| s.list().unwrap().iter().map(|s| s.global_step).collect::<Vec<_>>();
    assert_eq!(steps(&store), [2, 5, 6]);
    assert_eq!(store.list().unwrap()[0].tags, ["max-val/accuracy"]);
    store.save(&checkpoint(7), &["max-val/accuracy"]).unwrap();
    assert_eq!(steps(&store), [6, 7]);
    let mut store = store.keep(Keep::last(1).every(Duration::ZERO));
    store.save(&checkpoint(8), &[]).unwrap();
    assert_eq!(steps(&store), [6, 7, 8]);
    assert!(store.save(&checkpoint(9), &["latest"]).is_err());
}

#[test]
fn a_full_disk_is_an_error_before_anything_is_written() {
    struct FullDisk;
    impl Disk for FullDisk {
        fn create_dir(&mut self, path: &Path) -> io::Result<()> {
            RealDisk.create_dir(path)
        }
        fn write(&mut self, path: &Path, _: &Parts<'_>) -> io::Result<()> {
            panic!("{} was written", path.display())
        }
        fn rename(&mut self, _: &Path, to: &Path) -> io::Result<()> {
            panic!("{} was written", to.display())
        }
        fn sync_dir(&mut self, _: &Path) -> io::Result<()> {
            Ok(())
        }
        fn remove(&mut self, _: &Path) -> io::Result<()> {
            Ok(())
        }
        fn free_space(&mut self, _: &Path) -> io::Result<Option<u64>> {
            Ok(Some(1000))
        }
        fn open(&self, path: &Path) -> io::Result<OpenFile> {
            RealDisk.open(path)
        }
        fn entries(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
            RealDisk.entries(dir)
        }
        fn exists(&self, path: &Path) -> io::Result<bool> {
            RealDisk.exists(path)
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let lock = RunLock::acquire(dir.path()).unwrap();
    let mut store = CheckpointStore::open_on(Box::new(FullDisk), &lock).unwrap();
    let e = store.save(&checkpoint(1), &[]).unwrap_err();
    let numbers: Vec<u64> = e.message().split(' ').filter_map(|w| w.parse().ok()).collect();
    assert_eq!(numbers[0] - 1000, numbers[1], "{e}");
}

#[test]
fn the_lock_is_released_when_its_process_is_killed() {
    // The test runs itself as another process, which takes the lock and is killed.
    const DIR: &str = "TENSORPACK_TEST_LOCK_DIR";
    if let Some(dir) = std::env::var_os(DIR) {
        let _lock = RunLock::acquire(PathBuf::from(dir)).unwrap();
        std::thread::sleep(Duration::from_secs(600));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut other = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_lock_is_released_when_its_process_is_killed"])
        .env(DIR, dir.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let pid = format!("{} ", other.id());
    while !fs::read_to_string(dir.path().join("lock")).is_ok_and(|t| t.starts_with(&pid) && t.ends_with('\n'))
    {
        std::thread::sleep(Duration::from_millis(5));
        assert!(other.try_wait().unwrap().is_none(), "the other process ended too early");
    }
    let e = RunLock::acquire(dir.path()).unwrap_err();
    assert!(e.message().contains(&format!("is in use by process {} on ", other.id())), "{e}");
    other.kill().unwrap();
    other.wait().unwrap();
    RunLock::acquire(dir.path()).unwrap();
}

#[test]
fn a_child_of_a_killed_process_does_not_keep_the_lock() {
    // The other process is killed while a child of it is between `fork` and `exec`, and still has
    // the lock file open.
    const DIR: &str = "TENSORPACK_TEST_FORKED_LOCK_DIR";
    if let Some(dir) = std::env::var_os(DIR) {
        let _lock = RunLock::acquire(PathBuf::from(dir)).unwrap();
        let mut child = std::process::Command::new("true");
        let wait = || {
            // SAFETY: the bytes are valid.
            unsafe { libc::write(1, b"forked\n".as_ptr().cast(), 7) };
            std::thread::sleep(Duration::from_millis(300));
            Ok(())
        };
        // SAFETY: `write` and a sleep may be called between `fork` and `exec`.
        unsafe { child.pre_exec(wait) };
        child.status().unwrap();
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut other = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_child_of_a_killed_process_does_not_keep_the_lock", "--nocapture"])
        .env(DIR, dir.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = io::BufReader::new(other.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.ends_with("forked")), "it has no child");
    let e = RunLock::acquire(dir.path()).unwrap_err();
    assert!(e.message().contains(&format!("is in use by process {} on ", other.id())), "{e}");
    other.kill().unwrap();
    // It stays a zombie until `wait`.
    // SAFETY: an all-zero `siginfo_t` is valid, and `waitid` writes to it.
    let ended = unsafe {
        let mut about = std::mem::zeroed();
        libc::waitid(libc::P_PID, other.id(), &mut about, libc::WEXITED | libc::WNOWAIT)
    };
    assert_eq!(ended, 0);
    let lock = RunLock::acquire(dir.path());
    other.wait().unwrap();
    lock.unwrap();
}

/// Replaces a file with a symbolic link to itself: it exists, but reading it fails.
fn make_unreadable(file: &Path) {
    fs::remove_file(file).unwrap();
    std::os::unix::fs::symlink(file, file).unwrap();
}

#[test]
fn an_unreadable_tag_deletes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(&dir).keep(Keep::last(1));
    let best = store.save(&checkpoint(10), &["best"]).unwrap();
    store.save(&checkpoint(20), &[]).unwrap();
    make_unreadable(&dir.path().join("checkpoints/best"));
    let saved = store.save(&checkpoint(30), &[]);
    assert!(best.join("manifest.json").exists(), "the best checkpoint was deleted: {saved:?}");
    let e = saved.unwrap_err();
    assert_eq!(e.kind(), tensorpack::ErrorKind::Io);
    assert!(e.to_string().contains("step-0000000030 was saved"), "{e}");
}

#[test]
fn an_unreadable_checkpoint_is_an_error_and_no_older_one_is_resumed() {
    for file in ["latest", "step-0000000020/state.json", "step-0000000020/manifest.json"] {
        let dir = tempfile::tempdir().unwrap();
        let mut store = open(&dir);
        store.save(&checkpoint(10), &[]).unwrap();
        store.save(&checkpoint(20), &[]).unwrap();
        make_unreadable(&dir.path().join("checkpoints").join(file));
        match store.latest() {
            Ok(found) => panic!("{file}: resumed {:?}", found.map(|(path, _)| path)),
            Err(e) => assert!(e.message().contains(file), "{file}: {e}"),
        }
    }
}

/// A newer version wrote the latest checkpoint; this version must not resume from an older one.
#[test]
fn a_checkpoint_of_a_newer_format_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(&dir);
    store.save(&checkpoint(10), &[]).unwrap();
    let newest = store.save(&checkpoint(20), &[]).unwrap();
    fs::write(newest.join("manifest.json"), r#"{"manifest": {"format": 99}}"#).unwrap();
    let e = store.latest().map(|found| found.map(|(path, _)| path)).unwrap_err();
    assert_eq!(e.kind(), tensorpack::ErrorKind::Unsupported, "{e}");
}

/// A save may fail after its folder got the final name. The next save still gets a higher number.
#[test]
fn every_commit_has_its_own_number() {
    for n in 0..40 {
        let machine = Machine::real();
        let (store, _) = machine.open_failing(n, Fault::Denied);
        let Ok(mut store) = store else { continue };
        if store.save(&checkpoint(20), &[]).is_ok() {
            assert!(n > 10, "only {n} operations were tried");
            return;
        }
        store.save(&checkpoint(10), &[]).unwrap();
        fs::remove_file(machine.checkpoints().join("latest")).unwrap();
        let found = store.list().unwrap();
        let numbers: Vec<(u64, u64)> = found.iter().map(|s| (s.sequence, s.global_step)).collect();
        assert!(numbers.windows(2).all(|w| w[0].0 < w[1].0), "operation {n} failed: {numbers:?}");
        assert_step(&store.latest().unwrap().unwrap().1, 10);
    }
}

/// Two processes may export to one path, for example two runs of one program.
#[test]
fn concurrent_writers_of_one_file_do_not_mix() {
    use tensorpack::io::{npz, safetensors};
    let dir = tempfile::tempdir().unwrap();
    for name in ["model.safetensors", "model.npz"] {
        let path = dir.path().join(name);
        let write = |value: f32| {
            let tensors = [("w".to_string(), HostTensor::new([100_000], vec![value; 100_000]).unwrap())];
            for _ in 0..20 {
                if name.ends_with("npz") {
                    npz::write(&path, &tensors)
                } else {
                    safetensors::write(&path, &tensors)
                }
                .unwrap();
            }
        };
        std::thread::scope(|s| [1.0, 2.0, 3.0].map(|v| s.spawn(move || write(v))).map(|t| t.join().unwrap()));
        let read = if name.ends_with("npz") { npz::read(&path) } else { safetensors::read(&path) }.unwrap();
        let values = read[0].1.as_slice::<f32>().unwrap();
        assert!(values.iter().all(|v| *v == values[0]));
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "temporary files were left");
}
