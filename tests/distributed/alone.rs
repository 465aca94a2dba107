//! A launcher starts a program whose trainer is not a distributed one.

use crate::launch::{Installation, Turn};
use crate::task::{Net, Task};
use tensorpack_testing::assert_mentions;

#[test]
fn a_trainer_that_ignores_the_other_ranks_warns() {
    let _turn = Turn::Waiting.take();
    for installation in Installation::sample("alone") {
        let dir = tempfile::tempdir().unwrap();
        let other_logdir = Some(dir.path().join("1"));
        let task =
            Task { alone: true, epochs: 1, other_logdir, ..Task::new(Net::Dense, 1, dir.path().join("0")) };
        let run = installation.finish(2, &task);
        assert_mentions(run.output(), &["rank 0 of 2", "rank 1 of 2", "--trainer dist-replicated"]);
    }
}
