//! Saves on disks that fail or stop at any operation: what was saved is always there, and every
//! sync is needed for that.

use crate::crash_disk::{CrashDisk, Leaves, Site};
use crate::failing_disk::{FailingDisk, Fault, Medium};
use crate::{assert_step, cases, checkpoint};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;
use tensorpack::io::{Checkpoint, CheckpointStore, Disk, Keep, RealDisk, RunLock};

/// A run directory on some disk. The lock is always a real file.
pub(crate) struct Machine<M> {
    dir: TempDir,
    disk: M,
}

impl Machine<RealDisk> {
    pub(crate) fn real() -> Machine<RealDisk> {
        Machine { dir: tempfile::tempdir().unwrap(), disk: RealDisk }
    }
}

impl Machine<CrashDisk> {
    /// The directory above the run directory exists, the run directory does not.
    fn model() -> Machine<CrashDisk> {
        let dir = tempfile::tempdir().unwrap();
        let disk = CrashDisk::new(dir.path().parent().unwrap());
        Machine { dir, disk }
    }
}

impl<M: Medium> Machine<M> {
    fn lock(&self) -> RunLock {
        RunLock::acquire(self.dir.path()).unwrap()
    }

    fn open(&self) -> CheckpointStore {
        CheckpointStore::open_on(Box::new(self.disk.clone()), &self.lock()).unwrap()
    }

    pub(crate) fn open_failing(
        &self,
        fails_at: u64,
        fault: Fault,
    ) -> (tensorpack::Result<CheckpointStore>, Arc<AtomicU64>) {
        let done = Arc::new(AtomicU64::new(0));
        let disk = FailingDisk { inner: self.disk.clone(), done: done.clone(), fails_at, fault };
        (CheckpointStore::open_on(Box::new(disk), &self.lock()), done)
    }

    pub(crate) fn checkpoints(&self) -> PathBuf {
        self.dir.path().join("checkpoints")
    }

    fn names(&self) -> Vec<String> {
        let entries = self.disk.entries(&self.checkpoints()).unwrap();
        entries.into_iter().map(|e| e.name.into_string().unwrap()).collect()
    }
}

/// All outcomes of a crash, for tests that try every crash.
const LEAVES: [Leaves; 8] = [
    Leaves::Nothing,
    Leaves::Everything,
    Leaves::Some(0),
    Leaves::Some(1),
    Leaves::Some(2),
    Leaves::Some(3),
    Leaves::Some(4),
    Leaves::Some(5),
];

fn a_failing_disk_ends_in_an_error<M: Medium>(
    machine: impl Fn() -> Machine<M>,
    fault: Fault,
    leaves: Leaves,
) {
    for n in 0.. {
        let machine = machine();
        let mut store = machine.open().keep(Keep::last(1));
        store.save(&checkpoint(10), &["best"]).unwrap();
        store.save(&checkpoint(20), &[]).unwrap();
        drop(store);

        let (store, done) = machine.open_failing(n, fault);
        let saved = store.and_then(|s| s.keep(Keep::last(1)).save(&checkpoint(30), &["best"]));
        let all_done = done.load(Ordering::Relaxed) <= n;
        let at = format!("{fault:?} at {n}, {leaves:?}");
        assert_eq!(saved.is_ok(), all_done, "{at}: {saved:?}");
        if fault == Fault::Crash {
            machine.disk.restart(leaves);
        }

        // The next process finds the old or the new one, cleans up, and can continue.
        let mut store = machine.open();
        let (_, found) = store.latest().unwrap().unwrap();
        assert!(found.global_step == 30 || (!all_done && found.global_step == 20), "{at}");
        assert_step(&found, found.global_step);
        let names = machine.names();
        assert!(names.iter().all(|name| !name.starts_with('.')), "{at}: {names:?}");
        let list = store.list().unwrap();
        let tagged: Vec<u64> = list.iter().filter(|s| s.tags == ["best"]).map(|s| s.global_step).collect();
        assert!(tagged == [10] || tagged == [30], "{at}: {tagged:?}");
        store.save(&checkpoint(40), &[]).unwrap();
        assert_step(&store.latest().unwrap().unwrap().1, 40);
        if all_done {
            assert!(n > 25, "only {n} operations were tried");
            return;
        }
    }
}

#[test]
fn a_failing_disk_is_an_error_and_keeps_the_old_checkpoint() {
    for fault in [Fault::Full, Fault::Denied, Fault::ReadsHalf, Fault::Late, Fault::Crash] {
        a_failing_disk_ends_in_an_error(Machine::real, fault, Leaves::Everything);
        for leaves in if fault == Fault::Crash { &LEAVES[..] } else { &LEAVES[..1] } {
            a_failing_disk_ends_in_an_error(Machine::model, fault, *leaves);
        }
    }
}

/// A read error may be transient. The newest checkpoint is loaded, or none.
#[test]
fn a_read_error_is_not_taken_for_damage() {
    for fault in [Fault::Denied, Fault::ReadsHalf] {
        let machine = Machine::model();
        let mut store = machine.open();
        store.save(&checkpoint(10), &[]).unwrap();
        store.save(&checkpoint(20), &["best"]).unwrap();
        drop(store);
        for n in 0.. {
            let (store, done) = machine.open_failing(n, fault);
            let found = store.and_then(|store| store.latest());
            match found {
                Ok(Some((_, found))) => assert_step(&found, 20),
                Ok(None) => panic!("{fault:?} at {n}: nothing was found"),
                Err(e) => {
                    assert_eq!(e.kind(), tensorpack::ErrorKind::Io, "{fault:?} at {n}: {e}");
                    continue;
                }
            }
            assert!(done.load(Ordering::Relaxed) <= n, "{fault:?} at {n} was not reported");
            assert!(n > 10, "only {n} operations were tried");
            break;
        }
    }
}

fn a_crash_in_the_first_save<M: Medium>(machine: impl Fn() -> Machine<M>, leaves: Leaves) {
    for n in 0.. {
        let machine = machine();
        let (store, done) = machine.open_failing(n, Fault::Crash);
        let saved = store.and_then(|mut s| s.save(&checkpoint(1), &[]));
        machine.disk.restart(leaves);
        if let Some((_, found)) = machine.open().latest().unwrap() {
            assert_step(&found, 1);
        } else {
            assert!(saved.is_err(), "{leaves:?}: the checkpoint was lost");
        }
        if done.load(Ordering::Relaxed) <= n {
            return;
        }
    }
}

#[test]
fn a_crash_in_the_first_save_leaves_nothing_or_all() {
    a_crash_in_the_first_save(Machine::real, Leaves::Everything);
    for leaves in LEAVES {
        a_crash_in_the_first_save(Machine::model, leaves);
    }
}

/// One process: where it crashes, how many checkpoints it keeps, whether it tags them, and a seed
/// for what the crash leaves.
type Round = (u64, usize, bool, u64);

fn rounds() -> impl Strategy<Value = Vec<Round>> {
    proptest::collection::vec((0u64..120, 1usize..4, any::<bool>(), any::<u64>()), 1..8)
}

/// Saves until a crash, opens (and may crash there, too), saves again, and so on. The latest
/// checkpoint is always the last one saved or the one being saved, and so is the tagged one.
fn any_number_of_crashes<M: Medium>(machine: &Machine<M>, rounds: Vec<Round>) -> Result<(), TestCaseError> {
    let (mut last, mut best, mut step) = (None, None, 0);
    for (crash_at, keep, tag, seed) in rounds {
        let (store, done) = machine.open_failing(crash_at, Fault::Crash);
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
        machine.disk.restart(Leaves::Some(seed));
        let store = machine.open();
        let found = store.latest().unwrap();
        let found_step = found.as_ref().map(|(_, c)| c.global_step);
        prop_assert!(found_step == last || found_step == trying, "{found_step:?}, {last:?} or {trying:?}");
        if let Some((_, c)) = found {
            assert_step(&c, c.global_step);
        }
        last = found_step;
        let tagged = store.list().unwrap().into_iter().find(|s| s.tags == ["best"]).map(|s| s.global_step);
        prop_assert!(tagged == best || (tag && tagged == trying), "{tagged:?}, {best:?} or {trying:?}");
        best = tagged;
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn any_number_of_kills_loses_nothing(rounds in rounds()) {
        any_number_of_crashes(&Machine::real(), rounds)?;
    }

    #[test]
    fn any_number_of_power_failures_loses_nothing(rounds in rounds()) {
        any_number_of_crashes(&Machine::model(), rounds)?;
    }
}

/// Returns what is wrong on a disk after a crash. `last` and `best` are the steps of the last
/// checkpoint and the last tagged one that were saved, `trying` is the step whose save was cut short.
fn damage(
    machine: &Machine<CrashDisk>,
    last: Option<u64>,
    best: Option<u64>,
    trying: Option<u64>,
) -> Option<String> {
    let checkpoints = machine.checkpoints();
    let mut steps = BTreeMap::new();
    let entries = machine.disk.entries(&checkpoints).unwrap_or_default();
    for folder in entries.iter().filter(|e| e.is_dir && e.name.to_string_lossy().starts_with("step-")) {
        // `Checkpoint::load` reads real files.
        let copy = tempfile::tempdir().unwrap();
        let from = checkpoints.join(&folder.name);
        for file in machine.disk.entries(&from).unwrap() {
            fs::write(copy.path().join(&file.name), machine.disk.contents(&from.join(&file.name)).unwrap())
                .unwrap();
        }
        match Checkpoint::load(copy.path()) {
            Ok(c) => steps.insert(folder.name.to_string_lossy().into_owned(), c.global_step),
            Err(e) => return Some(format!("{:?} is incomplete: {e}", folder.name)),
        };
    }
    for (pointer, saved) in [("latest", last), ("best", best)] {
        let text = machine.disk.contents(&checkpoints.join(pointer)).ok();
        let text = text.map(|t| String::from_utf8_lossy(&t).into_owned());
        let step = text.as_ref().map(|name| steps.get(name.trim()).copied());
        if step == Some(None) {
            return Some(format!("{pointer} contains {text:?}, but there are {steps:?}"));
        }
        let step = step.flatten();
        if step != saved && step != trying {
            return Some(format!("{pointer} is at step {step:?} instead of {saved:?} or {trying:?}"));
        }
    }
    None
}

/// Crashes at every operation of a run with several saves, with every outcome in [`LEAVES`]. The
/// syncs of the call site `broken` do nothing. Returns the first damage and all sites that sync.
fn crash_everywhere(broken: Option<Site>) -> (Option<String>, Vec<Site>) {
    for crash_at in 0.. {
        let mut ended = false;
        for leaves in LEAVES {
            let machine = Machine::model();
            if let Some(site) = broken {
                machine.disk.break_sync(site);
            }
            let (store, done) = machine.open_failing(crash_at, Fault::Crash);
            let (mut last, mut best, mut trying) = (None, None, None);
            if let Ok(store) = store {
                let mut store = store.keep(Keep::last(2));
                for (step, tags) in [(10, &["best"][..]), (20, &[]), (30, &["best"]), (40, &[]), (50, &[])] {
                    trying = Some(step);
                    if store.save(&checkpoint(step), tags).is_err() {
                        break;
                    }
                    last = trying.take();
                    best = if tags.is_empty() { best } else { last };
                }
            }
            machine.disk.restart(leaves);
            let sites = machine.disk.sites().into_iter().collect();
            if let Some(damage) = damage(&machine, last, best, trying) {
                return (Some(format!("crash at {crash_at}, {leaves:?}: {damage}")), sites);
            }
            ended = done.load(Ordering::Relaxed) <= crash_at;
            if ended && matches!(leaves, Leaves::Some(5)) {
                return (None, sites);
            }
        }
        assert!(!ended);
    }
    unreachable!("the run ends")
}

#[test]
fn removing_any_sync_loses_something() {
    let (damage, sites) = crash_everywhere(None);
    assert_eq!(damage, None);
    // The files of a folder, the folder, its name, a pointer, the pointer's name, the old folders'
    // new names, and the directories above.
    assert_eq!(sites.len(), 7, "{sites:?}");
    for site in sites {
        let (damage, _) = crash_everywhere(Some(site));
        let damage = damage.unwrap_or_else(|| panic!("nothing needs the sync at {}:{}", site.0, site.1));
        println!("without {}:{}: {damage}", site.0, site.1);
    }
}
