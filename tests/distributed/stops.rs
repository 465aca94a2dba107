//! A signal to any rank ends all of them: they save at the same step, end by the signal, and the
//! run resumes to the same bits.

use crate::launch::{Installation, Outcome, Run, Turn, last_checkpoint, undisturbed};
use crate::sample::{one_of, sample};
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
    let _turn = Turn::Waiting.take();
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
        // All ranks wait for the one that pauses. That may be in a later step than the one at which it
        // reached the place: batches are read ahead.
        let begun = run.last_step();
        send(&mut run, case.to);
        let statuses = run.statuses(0..RANKS);
        // By the signal, as a shell reports it.
        let what = format!("{case}, {}", installation.library.path.display());
        assert!(statuses.iter().all(|s| *s == 128 + libc::SIGTERM), "{what}: {statuses:?}: {}", run.output());
        let saved = last_checkpoint(dir.path()).unwrap_or_else(|| panic!("{what}: {}", run.output()));
        // A rank that waits for data has begun the next step, and another one may begin before the
        // ranks agree on the last.
        let in_time = (begun..=begun + 3).contains(&saved.global_step);
        assert!(in_time, "{what}: saved at step {}, after {begun}: {}", saved.global_step, run.output());
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
    let _turn = Turn::Waiting.take();
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

/// Launchers pass SIGTERM on to the ranks, which have enough time for short steps.
#[test]
fn ranks_save_when_their_launcher_is_terminated() {
    let _turn = Turn::Waiting.take();
    for installation in Installation::all() {
        let dir = tempfile::tempdir().unwrap();
        let slower = Duration::from_millis(20);
        let task = Task { slower, steps_per_epoch: 1000, ..Task::new(Net::Dense, 1, dir.path()) };
        let mut run = installation.start(RANKS, &task);
        // Between two checkpoints.
        let begun = run.wait_for("a step", |run| Some(run.last_step()).filter(|step| step % 4 == 2));
        run.signal_launcher(libc::SIGTERM);
        let what = installation.library.path.display();
        assert_eq!(run.statuses(0..RANKS), [128 + libc::SIGTERM; RANKS], "{what}: {}", run.output());
        let saved = last_checkpoint(dir.path()).expect("a checkpoint").global_step;
        assert!(saved >= begun, "{what}: saved at step {saved}, after {begun}: {}", run.output());
        println!("{what}: saved at step {saved}, after {begun}");
    }
}

/// The ranks do not wait for the end of the validation, and no statistic of a part of it is
/// recorded: the resumed run repeats it.
#[test]
fn a_signal_during_validation_ends_it_at_the_next_batch() {
    let _turn = Turn::Waiting.take();
    let task = Task { validation_batch: 2, ..Task::new(Net::Dense, 1, "unused") };
    let whole = undisturbed(&task, RANKS);
    for installation in Installation::sample("validation") {
        for to in one_of("signal", vec![To::Rank(2), To::All]) {
            let dir = tempfile::tempdir().unwrap();
            let task = Task { logdir: dir.path().into(), ..task.clone() };
            // In the second of three epochs. The whole validation would take 14 s more.
            let fault = Fault { kind: Kind::Pause, place: Place::Validation, rank: 0, step: 7 };
            let slow =
                Task { fault: Some(fault), slow_validation: Duration::from_millis(150), ..task.clone() };
            let mut run = installation.start(RANKS, &slow);
            let begun = run.wait_for("the place", |run| run.fault_time().map(|_| Instant::now()));
            send(&mut run, to);
            let statuses = run.statuses(0..RANKS);
            let took = begun.elapsed();
            let what = format!("{to:?}, {}", installation.library.path.display());
            assert!(
                statuses.iter().all(|s| *s == 128 + libc::SIGTERM),
                "{what}: {statuses:?}: {}",
                run.output()
            );
            assert!(took < Duration::from_secs(7), "{what}: {took:?}: {}", run.output());
            assert_eq!(last_checkpoint(dir.path()).unwrap().global_step, 10, "{what}: {}", run.output());
            let statistics = std::fs::read_to_string(dir.path().join("stats.jsonl")).unwrap();
            assert_eq!(statistics.matches("validation_cost").count(), 1, "{what}: {statistics}");
            drop(run);
            installation.finish(RANKS, &task);
            Outcome::read(&task).assert_same(&whole, &what);
            println!("{what}: ended after {:.1} s, resumed to the same bits", took.as_secs_f64());
        }
    }
}

/// A launcher kills all ranks when one ends before the others, so a rank that is done waits.
#[test]
fn a_rank_that_ends_early_waits_for_the_others() {
    let _turn = Turn::Waiting.take();
    for installation in Installation::sample("ends early") {
        for place in [Place::AfterTrain, Place::AfterRun] {
            for slow in [0, 1] {
                let dir = tempfile::tempdir().unwrap();
                let fault = Fault { kind: Kind::Pause, place, rank: slow, step: 0 };
                let task = Task { epochs: 1, fault: Some(fault), ..Task::new(Net::Dense, 1, dir.path()) };
                let mut run = installation.finish(RANKS, &task);
                let what = format!("{place:?}, rank {slow}, {}", installation.library.path.display());
                assert!(run.wait_for_launcher(), "{what}: {}", run.output());
                // It pauses for a second.
                let goes_on = run.fault_time().expect("it paused") + 1_000_000_000;
                for rank in 0..RANKS {
                    let (_, ended) = run.status(rank).expect("it has ended");
                    assert!(ended >= goes_on, "{what}: rank {rank} ended while another was busy");
                }
            }
        }
    }
}
