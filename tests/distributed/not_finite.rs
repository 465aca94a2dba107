//! A value that is not finite in one rank: no rank updates a variable.

use crate::launch::{Installation, Outcome, Run, Turn, last_checkpoint, start_alone, undisturbed};
use crate::task::{Fault, Kind, Net, Place, Task};
use tensorpack_testing::assert_mentions;

const RANKS: usize = 3;
/// In the forward pass, all ranks get the sums that are not finite; after the exchange of
/// gradients, the others know of it only because they are told.
const PLACES: [Place; 2] = [Place::Forward, Place::Update];
/// The rank and the step in which it happens.
const RANK: usize = 1;
const STEP: u64 = 7;

fn fault(place: Place, rank: usize) -> Option<Fault> {
    Some(Fault { kind: Kind::NotFinite, place, rank, step: STEP })
}

#[test]
fn a_value_that_is_not_finite_ends_all_ranks_before_an_update() {
    let _turn = Turn::Training.take();
    let dir = tempfile::tempdir().unwrap();
    let whole = undisturbed(&Task::new(Net::Dense, RANKS, dir.path()), RANKS);
    for place in PLACES {
        for installation in Installation::sample(&format!("not finite {place:?}")) {
            let dir = tempfile::tempdir().unwrap();
            let task = Task::new(Net::Dense, 1, dir.path());
            let mut run = installation.start(RANKS, &Task { fault: fault(place, RANK), ..task.clone() });
            let statuses = run.statuses(0..RANKS);
            assert_eq!(statuses, [1; RANKS], "{place:?}: {}", run.output());
            for rank in 0..RANKS {
                let report = run.report(rank).unwrap();
                // The others may hear of it from the rank itself.
                let kinds: &[&str] = if rank == RANK { &["NotFinite"] } else { &["NotFinite", "Peer"] };
                assert!(kinds.contains(&&report.kind[..]), "{place:?}, rank {rank}: {report:?}");
                assert_mentions(&report.text, &["step 7", "not finite"]);
                // Sums that are not finite have a name everywhere.
                let elsewhere = if place == Place::Forward { "models.rs:" } else { "another process" };
                let from = format!("rank {RANK} on ");
                let is_named = report.text.contains(elsewhere) || report.text.contains(&from);
                assert!(rank == RANK || is_named, "{place:?}, rank {rank}: {report:?}");
            }
            let own = run.report(RANK).unwrap().text;
            assert_mentions(own, &["Fault", "tests/distributed/models.rs:"]);
            assert_eq!(last_checkpoint(dir.path()).unwrap().global_step, 5);
            drop(run);
            installation.finish(RANKS, &task);
            Outcome::read(&task).assert_same(&whole, &format!("{place:?}, {:?}", installation.library));
        }
    }
}

/// Returns the log of a rank.
fn log(task: &Task, rank: usize) -> String {
    let name = if rank == 0 { "log.log".into() } else { format!("log-rank-{rank}.log") };
    std::fs::read_to_string(task.logdir.join(name)).unwrap_or_default()
}

/// Returns the number of ranks whose log says that the step was skipped.
fn ranks_that_skipped(task: &Task) -> usize {
    let skipped = |rank: &usize| {
        let text = log(task, *rank);
        text.matches("skipped step 7 ").count() == 1 && text.matches("skipped step").count() == 1
    };
    (0..RANKS).filter(skipped).count()
}

#[test]
fn a_step_that_is_not_finite_is_skipped_on_all_ranks() {
    let _turn = Turn::Training.take();
    let plain = tempfile::tempdir().unwrap();
    let undisturbed = undisturbed(&Task::new(Net::Dense, RANKS, plain.path()), RANKS);
    for place in PLACES {
        let dir = tempfile::tempdir().unwrap();
        let alone = Task {
            fault: fault(place, 0),
            skip: true,
            alone: true,
            ..Task::new(Net::Dense, RANKS, dir.path())
        };
        start_alone(&alone).assert_finishes();
        let whole = Outcome::read(&alone);
        assert!(whole.bytes("logits/W") != undisturbed.bytes("logits/W"));
        for installation in Installation::sample(&format!("skipped {place:?}")) {
            let dir = tempfile::tempdir().unwrap();
            let task = Task { fault: fault(place, RANK), skip: true, ..Task::new(Net::Dense, 1, dir.path()) };
            let run: Run = installation.finish(RANKS, &task);
            assert_eq!(ranks_that_skipped(&task), RANKS, "{place:?}: {}", run.output());
            Outcome::read(&task).assert_same(&whole, &format!("{place:?}, {:?}", installation.library));
        }
    }
}

/// The rank that gets the example knows at once what is wrong; the others search for it.
#[test]
fn an_example_that_is_not_finite_is_skipped_on_all_ranks() {
    let _turn = Turn::Training.take();
    let dir = tempfile::tempdir().unwrap();
    let task = Task { bad_example: true, skip: true, ..Task::new(Net::Dense, 1, dir.path()) };
    let whole = undisturbed(&task, RANKS);
    for installation in Installation::sample("bad example") {
        let dir = tempfile::tempdir().unwrap();
        let task = Task { logdir: dir.path().into(), ..task.clone() };
        let run = installation.finish(RANKS, &task);
        let skipped = |rank| log(&task, rank).matches("skipped step").count();
        let counts: Vec<usize> = (0..RANKS).map(skipped).collect();
        assert!(counts[0] > 0 && counts.iter().all(|n| *n == counts[0]), "{counts:?}: {}", run.output());
        Outcome::read(&task).assert_same(&whole, &format!("{:?}", installation.library));
    }
}
