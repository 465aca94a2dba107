//! A run that is killed on four ranks, resumed on two, killed and resumed on one has the bits of an
//! undisturbed one. The four ranks divide their updates, the two do not.

use crate::launch::{Installation, Outcome, Turn, last_checkpoint, start_alone, undisturbed};
use crate::task::{Fault, Kind, Net, Place, Task};

#[test]
fn a_run_resumes_on_any_number_of_ranks_that_divides_the_towers() {
    let _turn = Turn::Training.take();
    let dir = tempfile::tempdir().unwrap();
    let whole = undisturbed(&Task::new(Net::Resnet, 4, dir.path()), 4);
    for installation in Installation::sample("restarts") {
        let dir = tempfile::tempdir().unwrap();
        let task = |towers| Task::new(Net::Resnet, towers, dir.path());
        let mut saved = 0;
        for (ranks, rank, step, place) in [(4, 2, 6, Place::Backward), (2, 0, 11, Place::Update)] {
            let fault = Some(Fault { kind: Kind::Kill, place, rank, step });
            // Checkpoints do not tell whether updates were divided.
            let sharded = ranks == 4;
            let mut run = installation.start(ranks, &Task { fault, sharded, ..task(4 / ranks) });
            let statuses = run.statuses((0..ranks).filter(|other| *other != rank));
            assert!(statuses.iter().all(|status| *status == 1), "{statuses:?}: {}", run.output());
            let step = last_checkpoint(dir.path()).expect("a checkpoint").global_step;
            assert!(step > saved && step < task(4).steps(), "{step} after {saved}");
            saved = step;
        }
        start_alone(&task(4)).assert_finishes();
        Outcome::read(&task(4)).assert_same(&whole, &format!("{:?}", installation.library));
    }
}
