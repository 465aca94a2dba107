//! The disk of rank 0 is full: all ranks end with an error, earlier checkpoints are whole, and the
//! run resumes once there is space again.

use crate::launch::{Installation, Outcome, Run, Turn, last_checkpoint, undisturbed};
use crate::task::{Fault, Kind, Net, Place, Task};
use std::fs::File;
use std::io::{ErrorKind, Write};
use tensorpack_testing::{Requirement, SmallDisk, assert_mentions, skip};

const RANKS: usize = 2;

#[test]
fn a_full_disk_on_rank_0_ends_all_ranks_and_the_run_resumes() {
    let _turn = Turn::Waiting.take();
    let dir = tempfile::tempdir().unwrap();
    let disk = match SmallDisk::mount(dir.path().join("disk"), 2) {
        Ok(disk) => disk,
        Err(e) => return skip(Requirement::Namespaces, &format!("no tmpfs can be mounted: {e}")),
    };
    let whole = undisturbed(&Task::new(Net::Dense, RANKS, "unused"), RANKS);
    for (i, installation) in Installation::sample("full disk").into_iter().enumerate() {
        let task = Task::new(Net::Dense, 1, dir.path().join(format!("disk/{i}")));
        let fault = Fault { kind: Kind::Pause, place: Place::BeforeStep, rank: 1, step: 7 };
        let mut run = installation.start(RANKS, &Task { fault: Some(fault), ..task.clone() });
        run.wait_for("the place", Run::fault_time);
        // All of it, before the checkpoint of step 8.
        let ballast = dir.path().join("disk/ballast");
        let mut file = File::create(&ballast).unwrap();
        let full = std::iter::repeat_with(|| file.write_all(&[1; 512])).find_map(Result::err).unwrap();
        assert_eq!(full.kind(), ErrorKind::StorageFull);
        assert_eq!(run.statuses(0..RANKS), [1; RANKS], "{}", run.output());
        assert_eq!(run.report(0).unwrap().kind, "Io", "{}", run.output());
        assert_mentions(&run.report(0).unwrap().text, &["checkpoint"]);
        assert_eq!(run.report(1).unwrap().kind, "Peer", "{}", run.output());
        assert_mentions(&run.report(1).unwrap().text, &["rank 0 on ", "saving", "checkpoint"]);
        drop(run);
        assert_eq!(last_checkpoint(&task.logdir).unwrap().global_step, 5);
        drop(file);
        std::fs::remove_file(ballast).unwrap();
        installation.finish(RANKS, &task);
        Outcome::read(&task).assert_same(&whole, "a full disk");
    }
    drop(disk);
}
