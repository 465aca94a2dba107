//! The log directory of ranks other than 0.

use crate::launch::{Installation, Turn, last_checkpoint};
use crate::task::{Net, Task};
use tensorpack_testing::assert_mentions;

#[test]
fn only_rank_0_needs_the_log_directory() {
    let _turn = Turn::Waiting.take();
    for installation in Installation::sample("log directory") {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "not a directory").unwrap();
        let logdir = dir.path().join("run");
        let task =
            Task { epochs: 1, other_logdir: Some(file.join("run")), ..Task::new(Net::Dense, 1, logdir) };
        let run = installation.finish(2, &task);
        assert_mentions(run.output(), &["rank 1: ", "log-rank-1.log"]);
        assert_eq!(last_checkpoint(&task.logdir).unwrap().global_step, 5);
    }
}
