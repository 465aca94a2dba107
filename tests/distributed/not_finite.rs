//! A value that is not finite in one rank: no rank updates a variable.

use crate::launch::{Installation, Outcome, Run, last_checkpoint, one_at_a_time, start_alone, undisturbed};
use crate::task::{Fault, Kind, Net, Place, Task};
use tensorpack_testing::assert_mentions;

const RANKS: usize = 3;
const FAULT: Fault = Fault { kind: Kind::NotFinite, place: Place::Forward, rank: 1, step: 7 };

#[test]
fn a_value_that_is_not_finite_ends_all_ranks_before_an_update() {
    let _turn = one_at_a_time();
    let dir = tempfile::tempdir().unwrap();
    let whole = undisturbed(&Task::new(Net::Dense, RANKS, dir.path()), RANKS);
    for installation in Installation::sample("not finite") {
        let dir = tempfile::tempdir().unwrap();
        let task = Task::new(Net::Dense, 1, dir.path());
        let mut run = installation.start(RANKS, &Task { fault: Some(FAULT), ..task.clone() });
        let statuses = run.statuses(0..RANKS);
        assert_eq!(statuses, [1; RANKS], "{}", run.output());
        for rank in 0..RANKS {
            let report = run.report(rank).unwrap();
            // The others may hear of it from the rank itself.
            let kinds: &[&str] = if rank == FAULT.rank { &["NotFinite"] } else { &["NotFinite", "Peer"] };
            assert!(kinds.contains(&&report.kind[..]), "rank {rank}: {report:?}");
            assert_mentions(&report.text, &["step 7", "not finite", "tests/distributed/models.rs:"]);
        }
        let own = run.report(FAULT.rank).unwrap().text;
        assert_mentions(own, &["Fault"]);
        assert_eq!(last_checkpoint(dir.path()).unwrap().global_step, 5);
        drop(run);
        installation.finish(RANKS, &task);
        Outcome::read(&task).assert_same(&whole, &format!("{:?}", installation.library));
    }
}

/// Returns the number of ranks whose log says that the step was skipped.
fn ranks_that_skipped(task: &Task) -> usize {
    let log = |rank: usize| match rank {
        0 => task.logdir.join("log.log"),
        rank => task.logdir.join(format!("log-rank-{rank}.log")),
    };
    let skipped = |rank: &usize| {
        let text = std::fs::read_to_string(log(*rank)).unwrap_or_default();
        text.matches("skipped step 7 ").count() == 1 && text.matches("skipped step").count() == 1
    };
    (0..RANKS).filter(skipped).count()
}

#[test]
fn a_step_that_is_not_finite_is_skipped_on_all_ranks() {
    let _turn = one_at_a_time();
    let (alone, plain) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let in_one = Task {
        fault: Some(Fault { rank: 0, ..FAULT }),
        skip: true,
        alone: true,
        ..Task::new(Net::Dense, RANKS, alone.path())
    };
    start_alone(&in_one).assert_finishes();
    let whole = Outcome::read(&in_one);
    let undisturbed = undisturbed(&Task::new(Net::Dense, RANKS, plain.path()), RANKS);
    assert!(whole.bytes("logits/W") != undisturbed.bytes("logits/W"));
    for installation in Installation::sample("skipped") {
        let dir = tempfile::tempdir().unwrap();
        let task = Task { fault: Some(FAULT), skip: true, ..Task::new(Net::Dense, 1, dir.path()) };
        let run: Run = installation.finish(RANKS, &task);
        assert_eq!(ranks_that_skipped(&task), RANKS, "{}", run.output());
        Outcome::read(&task).assert_same(&whole, &format!("{:?}", installation.library));
    }
}
