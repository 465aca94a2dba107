//! A signal to any rank ends all of them: they save at the same step, end by the signal, and the
//! run resumes to the same bits.

use crate::launch::{Installation, Outcome, Run, last_checkpoint, one_at_a_time, undisturbed};
use crate::sample::sample;
use crate::task::{Fault, Kind, Net, Place, Task};
use std::fmt;
use std::time::{Duration, Instant};

const RANKS: usize = 3;

/// The ranks that get the signal.
#[derive(Clone, Copy, Debug)]
enum To {
    Rank(usize),
    All,
}

/// A signal while a rank is at this place.
struct Case {
    to: To,
    place: Place,
    /// The rank that waits there.
    rank: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SIGTERM/{:?}/{:?}/{}", self.to, self.place, self.rank)
    }
}

fn send(run: &mut Run, to: To) {
    match to {
        To::Rank(rank) => run.signal(rank, libc::SIGTERM),
        To::All => (0..RANKS).for_each(|rank| run.signal(rank, libc::SIGTERM)),
    }
}

#[test]
fn a_signal_to_any_rank_saves_and_ends_all() {
    let _turn = one_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    let whole = undisturbed(&Task::new(Net::Dense, RANKS, dir.path()), RANKS);
    let places = [
        Place::BeforeTrain,
        Place::Data,
        Place::BeforeStep,
        Place::Forward,
        Place::AfterStep,
        Place::Validation,
        Place::EpochEnd,
        Place::Save,
    ];
    let mut cases = Vec::new();
    for place in places {
        for (to, rank) in
            [(To::Rank(0), 0), (To::Rank(0), 1), (To::Rank(2), 2), (To::Rank(2), 0), (To::All, 0)]
        {
            cases.push(Case { to, place, rank });
        }
    }
    let installations = Installation::all();
    if installations.is_empty() {
        return;
    }
    for (i, case) in sample("stops", cases, 5).into_iter().enumerate() {
        let installation = &installations[i % installations.len()];
        let dir = tempfile::tempdir().unwrap();
        let task = Task::new(Net::Dense, 1, dir.path());
        let step = if case.place == Place::BeforeTrain { 0 } else { 7 };
        let fault = Fault { kind: Kind::Pause, place: case.place, rank: case.rank, step };
        let mut run = installation.start(RANKS, &Task { fault: Some(fault), ..task.clone() });
        run.wait_for("the place", Run::fault_time);
        send(&mut run, case.to);
        let statuses = run.statuses(0..RANKS);
        // By the signal, as a shell reports it.
        let what = format!("{case}, {}", installation.library.path.display());
        assert!(statuses.iter().all(|s| *s == 128 + libc::SIGTERM), "{what}: {statuses:?}: {}", run.output());
        let saved = last_checkpoint(dir.path()).unwrap_or_else(|| panic!("{what}: {}", run.output()));
        let in_time = saved.global_step >= step && saved.global_step <= step + 6;
        assert!(in_time, "{what}: saved at step {}: {}", saved.global_step, run.output());
        drop(run);
        installation.finish(RANKS, &task);
        Outcome::read(&task).assert_same(&whole, &what);
        println!("{what}: saved at step {}, resumed to the same bits", saved.global_step);
    }
}

/// Launchers give ranks a second or less before they kill them, so the last checkpoint may be an
/// earlier one. No rank stays behind, and the run resumes.
#[test]
fn a_launcher_that_is_terminated_takes_its_ranks_with_it() {
    let _turn = one_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    let whole = undisturbed(&Task::new(Net::Dense, RANKS, dir.path()), RANKS);
    for installation in Installation::all() {
        let dir = tempfile::tempdir().unwrap();
        let task = Task { slower: Duration::from_millis(50), ..Task::new(Net::Dense, 1, dir.path()) };
        let fault = Fault { kind: Kind::Pause, place: Place::BeforeStep, rank: 1, step: 7 };
        let mut run = installation.start(RANKS, &Task { fault: Some(fault), ..task.clone() });
        run.wait_for("the place", Run::fault_time);
        run.signal_launcher(libc::SIGTERM);
        let begun = Instant::now();
        while (0..RANKS).any(|rank| run.is_running(rank)) {
            assert!(
                begun.elapsed() < Duration::from_secs(10),
                "{:?}: {}",
                installation.library,
                run.output()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(run);
        let saved = last_checkpoint(dir.path()).expect("a checkpoint").global_step;
        installation.finish(RANKS, &task);
        Outcome::read(&task).assert_same(&whole, &format!("{:?}", installation.library));
        println!("{}: saved at step {saved}", installation.library.path.display());
    }
}
