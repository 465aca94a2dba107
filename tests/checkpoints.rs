//! Checkpoints on failing disks, after crashes, and with damaged files: a saved checkpoint is never
//! lost.

use proptest::prelude::*;
use serde_json::json;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tensorpack::io::{Checkpoint, CheckpointStore, Disk, Keep, Parts, RealDisk, RunLock};
use tensorpack::{DType, HostTensor};

/// The fault at the n-th operation.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The device is full: half of a file is written.
    Full,
    /// Permission is denied.
    Denied,
    /// The machine crashes: half of a file is written, and all later operations fail.
    Crash,
}

const FAULTS: [Fault; 3] = [Fault::Full, Fault::Denied, Fault::Crash];

/// The real disk, with a fault at operation number `fails_at`.
struct FailingDisk {
    done: Arc<AtomicU64>,
    fails_at: u64,
    fault: Fault,
}

impl FailingDisk {
    fn fails(&self) -> Option<io::Error> {
        let n = self.done.fetch_add(1, Ordering::Relaxed);
        let failed = n == self.fails_at || (n > self.fails_at && self.fault == Fault::Crash);
        failed.then(|| match self.fault {
            Fault::Full | Fault::Crash => io::Error::from(io::ErrorKind::StorageFull),
            Fault::Denied => io::Error::from(io::ErrorKind::PermissionDenied),
        })
    }

    fn first_failure(&self) -> bool {
        self.done.load(Ordering::Relaxed) == self.fails_at + 1
    }
}

impl Disk for FailingDisk {
    fn create_dir(&mut self, path: &Path) -> io::Result<()> {
        self.fails().map_or_else(|| RealDisk.create_dir(path), Err)
    }

    fn write(&mut self, path: &Path, parts: &Parts<'_>) -> io::Result<()> {
        let Some(e) = self.fails() else { return RealDisk.write(path, parts) };
        if self.fault != Fault::Denied && self.first_failure() {
            let whole = parts.concat();
            fs::write(path, &whole[..whole.len() / 2])?;
        }
        Err(e)
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.fails().map_or_else(|| RealDisk.rename(from, to), Err)
    }

    fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        self.fails().map_or_else(|| RealDisk.sync_dir(path), Err)
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        let Some(e) = self.fails() else { return RealDisk.remove(path) };
        // A folder goes file by file, so it may be half gone.
        if self.fault == Fault::Crash && self.first_failure() && path.is_dir() {
            let mut files: Vec<PathBuf> = fs::read_dir(path)?.map(|f| f.unwrap().path()).collect();
            files.sort();
            fs::remove_file(&files[0])?;
        }
        Err(e)
    }

    fn free_space(&mut self, _: &Path) -> io::Result<Option<u64>> {
        self.fails().map_or(Ok(None), Err)
    }
}

/// A checkpoint with its number in every part.
fn checkpoint(step: u64) -> Checkpoint {
    let values = |n: usize| (0..n).map(|i| (step as usize * 31 + i) as f64).collect::<Vec<_>>();
    Checkpoint {
        global_step: step,
        tensors: vec![
            ("conv0/W".into(), HostTensor::from_f64(DType::F32, [3, 5], &values(15)).unwrap()),
            ("step".into(), HostTensor::from_f64(DType::I64, [], &values(1)).unwrap()),
        ],
        state: json!({"epoch_num": step / 10, "best": 0.1 * step as f64}),
    }
}

fn in_any_order(mut c: Checkpoint) -> Checkpoint {
    c.tensors.sort_by(|a, b| a.0.cmp(&b.0));
    c
}

fn assert_is(found: &Checkpoint, step: u64) {
    assert_eq!(in_any_order(found.clone()), in_any_order(checkpoint(step)));
}

fn open(dir: &TempDir) -> CheckpointStore {
    CheckpointStore::open(&RunLock::acquire(dir.path()).unwrap()).unwrap()
}

fn open_failing(
    dir: &TempDir,
    fails_at: u64,
    fault: Fault,
) -> (tensorpack::Result<CheckpointStore>, Arc<AtomicU64>) {
    let done = Arc::new(AtomicU64::new(0));
    let disk = FailingDisk { done: done.clone(), fails_at, fault };
    let lock = RunLock::acquire(dir.path()).unwrap();
    (CheckpointStore::open_on(Box::new(disk), &lock), done)
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
fn what_was_saved_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(&dir);
    assert!(store.latest().unwrap().is_none());
    for step in [10, 20] {
        let path = store.save(&checkpoint(step), &[]).unwrap();
        assert_eq!(path, dir.path().join(format!("checkpoints/step-00000000{step}")));
        let (latest, found) = store.latest().unwrap().unwrap();
        assert_eq!(latest, path);
        assert_is(&found, step);
    }
    // A step that is committed again gets a folder of its own, and is the newest.
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
fn other_frameworks_can_read_the_tensors() {
    let dir = tempfile::tempdir().unwrap();
    let path = open(&dir).save(&checkpoint(3), &[]).unwrap();
    let tensors = tensorpack::io::safetensors::read(path.join("tensors.safetensors")).unwrap();
    assert!(tensors.contains(&checkpoint(3).tensors[0]));
}

#[test]
fn a_failing_disk_ends_in_an_error_and_the_old_checkpoint_stands() {
    for fault in FAULTS {
        let mut failures = 0;
        for n in 0.. {
            let dir = tempfile::tempdir().unwrap();
            let mut store = open(&dir).keep(Keep::last(1));
            store.save(&checkpoint(10), &["best"]).unwrap();
            store.save(&checkpoint(20), &[]).unwrap();
            drop(store);

            let (store, done) = open_failing(&dir, n, fault);
            let saved = store.and_then(|s| s.keep(Keep::last(1)).save(&checkpoint(30), &["best"]));
            let all_done = done.load(Ordering::Relaxed) <= n;
            assert_eq!(saved.is_ok(), all_done, "{fault:?} at {n}: {saved:?}");

            // Whoever comes next finds the old or the new one, cleans up, and can go on.
            let mut store = open(&dir);
            let (_, found) = store.latest().unwrap().unwrap();
            assert!(found.global_step == 30 || (!all_done && found.global_step == 20), "{fault:?} at {n}");
            assert_is(&found, found.global_step);
            assert!(
                names(&dir).iter().all(|name| !name.starts_with('.')),
                "{fault:?} at {n}: {:?}",
                names(&dir)
            );
            let tagged: Vec<u64> =
                store.list().unwrap().iter().filter(|s| s.tags == ["best"]).map(|s| s.global_step).collect();
            assert!(tagged == [10] || tagged == [30], "{fault:?} at {n}: {tagged:?}");
            store.save(&checkpoint(40), &[]).unwrap();
            assert_is(&store.latest().unwrap().unwrap().1, 40);
            if all_done {
                break;
            }
            failures += 1;
        }
        assert!(failures > 12, "only {failures} operations were tried");
    }
}

#[test]
fn a_crash_in_the_first_save_leaves_nothing_or_all() {
    for n in 0..100 {
        let dir = tempfile::tempdir().unwrap();
        let (store, done) = open_failing(&dir, n, Fault::Crash);
        let saved = store.and_then(|mut s| s.save(&checkpoint(1), &[]));
        if let Some((_, found)) = open(&dir).latest().unwrap() {
            assert_is(&found, 1);
        } else {
            assert!(saved.is_err());
        }
        if done.load(Ordering::Relaxed) <= n {
            return;
        }
    }
    panic!("the save never ended");
}

/// The same random cases in every run; `TENSORPACK_TEST_CASES` sets their number.
fn cases() -> ProptestConfig {
    let cases = tensorpack_testing::test_cases(24);
    let rng_seed = proptest::test_runner::RngSeed::Fixed(0);
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases())]

    /// Saves, crashes at any operation, opens (and crashes there too), and saves again, many times.
    /// The latest checkpoint is always the last one saved or the one being saved during the crash,
    /// and every tag names the right one.
    #[test]
    fn any_number_of_crashes_loses_nothing(
        rounds in proptest::collection::vec((0u64..40, 1usize..4, any::<bool>()), 1..8),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (mut last, mut best, mut step) = (None, None, 0);
        for (crash_at, keep, tag) in rounds {
            let (store, done) = open_failing(&dir, crash_at, Fault::Crash);
            let mut trying = None;
            if let Ok(mut store) = store {
                store = store.keep(Keep::last(keep));
                while done.load(Ordering::Relaxed) <= crash_at {
                    step += 1;
                    trying = Some(step);
                    match store.save(&checkpoint(step), if tag { &["best"] } else { &[] }) {
                        Ok(_) => (last, best, trying) = (Some(step), if tag { Some(step) } else { best }, None),
                        Err(_) => break,
                    }
                }
            }
            let store = open(&dir);
            let found = store.latest().unwrap();
            let found_step = found.as_ref().map(|(_, c)| c.global_step);
            prop_assert!(found_step == last || found_step == trying, "{found_step:?}, {last:?} or {trying:?}");
            if let Some((_, c)) = found {
                assert_is(&c, c.global_step);
            }
            last = found_step;
            let tagged = store.list().unwrap().into_iter().find(|s| s.tags == ["best"]).map(|s| s.global_step);
            prop_assert!(tagged == best || (tag && tagged == trying), "{tagged:?}, {best:?} or {trying:?}");
            best = tagged;
        }
    }
}

/// All log lines, of all tests.
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
        assert_is(&found, expected);
        assert!(expected == 20 || (warned_of(&dir, file) && warned_of(&dir, what)), "{file}: {what}");
    }
}

#[test]
fn a_pointer_that_names_nothing_is_no_loss() {
    for text in ["step-0000000099\n", "../../etc\n", ""] {
        let dir = tempfile::tempdir().unwrap();
        let mut store = open(&dir);
        store.save(&checkpoint(10), &[]).unwrap();
        fs::write(dir.path().join("checkpoints/latest"), text).unwrap();
        assert_is(&store.latest().unwrap().unwrap().1, 10);
    }
}

#[test]
fn going_back_is_naming_an_older_one_the_latest() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(&dir).keep(Keep::last(2));
    for step in [10, 20, 30] {
        store.save(&checkpoint(step), &[]).unwrap();
    }
    fs::write(dir.path().join("checkpoints/latest"), "step-0000000020\n").unwrap();
    assert_is(&store.latest().unwrap().unwrap().1, 20);
    store.save(&checkpoint(25), &[]).unwrap();
    assert_is(&store.latest().unwrap().unwrap().1, 25);
    assert_eq!(names(&dir), ["latest", "step-0000000025", "step-0000000030"]);
}

#[test]
fn only_corrupted_checkpoints_are_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = open(&dir).save(&checkpoint(10), &[]).unwrap();
    fs::remove_file(path.join("state.json")).unwrap();
    let e = open(&dir).latest().unwrap_err().to_string();
    assert!(e.contains("none is valid") && e.contains("state.json") && e.contains("--fresh"), "{e}");
    fs::remove_file(path.join("manifest.json")).unwrap();
    assert!(open(&dir).latest().is_err());
}

#[test]
fn old_ones_go_and_tagged_ones_stay() {
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
fn too_little_room_is_said_before_anything_is_written() {
    struct Small;
    impl Disk for Small {
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
    }
    let dir = tempfile::tempdir().unwrap();
    let lock = RunLock::acquire(dir.path()).unwrap();
    let mut store = CheckpointStore::open_on(Box::new(Small), &lock).unwrap();
    let e = store.save(&checkpoint(1), &[]).unwrap_err();
    let numbers: Vec<u64> = e.message().split(' ').filter_map(|w| w.parse().ok()).collect();
    assert_eq!(numbers[0] - 1000, numbers[1], "{e}");
}

#[test]
fn the_lock_dies_with_its_process() {
    // The test runs itself as another process, which takes the lock and is killed.
    const DIR: &str = "TENSORPACK_TEST_LOCK_DIR";
    if let Some(dir) = std::env::var_os(DIR) {
        let _lock = RunLock::acquire(PathBuf::from(dir)).unwrap();
        std::thread::sleep(Duration::from_secs(600));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut other = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_lock_dies_with_its_process"])
        .env(DIR, dir.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let pid = format!("{}\n", other.id());
    while fs::read_to_string(dir.path().join("lock")).unwrap_or_default() != pid {
        std::thread::sleep(Duration::from_millis(5));
        assert!(other.try_wait().unwrap().is_none(), "the other process ended too early");
    }
    let e = RunLock::acquire(dir.path()).unwrap_err();
    assert!(e.message().ends_with(&format!("is in use by process {}", other.id())), "{e}");
    other.kill().unwrap();
    other.wait().unwrap();
    RunLock::acquire(dir.path()).unwrap();
}
