//! A rank that does something else than the others: an error on all ranks before the first step.

use crate::launch::{Installation, Turn, last_checkpoint};
use crate::task::{Difference, Net, Task};
use tensorpack_testing::assert_mentions;

const RANKS: usize = 3;
const OTHER: usize = 1;

/// What a rank may do in another way, and what the error calls it.
const DIFFERENCES: [(Difference, &str); 10] = [
    (Difference::Data, "data"),
    (Difference::BatchSize, "batches_per_pass"),
    (Difference::Seed, "seed"),
    (Difference::StepsPerEpoch, "steps_per_epoch"),
    (Difference::MaxEpoch, "max_epoch"),
    (Difference::Towers, "towers"),
    (Difference::Model, "variables"),
    (Difference::InitialValues, "logits/b"),
    (Difference::LearningRate, "graph"),
    (Difference::WireDtype, "graph"),
];

#[test]
fn a_rank_that_differs_is_named_before_the_first_step() {
    let _turn = Turn::Waiting.take();
    let installations = Installation::all();
    for (i, (difference, term)) in DIFFERENCES.into_iter().enumerate() {
        let Some(installation) = installations.get(i % installations.len().max(1)) else { return };
        let dir = tempfile::tempdir().unwrap();
        let task = Task { difference: Some((OTHER, difference)), ..Task::new(Net::Dense, 1, dir.path()) };
        let mut run = installation.start(RANKS, &task);
        let statuses = run.statuses(0..RANKS);
        assert_eq!(statuses, [1; RANKS], "{difference:?}: {}", run.output());
        for rank in 0..RANKS {
            let report = run.report(rank).unwrap();
            assert!(
                ["Argument", "Peer"].contains(&&report.kind[..]),
                "{difference:?}, rank {rank}: {report:?}"
            );
            assert_mentions(&report.text, &["rank 1 on ", "rank 0", term]);
        }
        assert!(last_checkpoint(dir.path()).is_none(), "{difference:?}");
    }
}
