//! Updates that are divided over processes: `DistributedTrainerParameterServer`.

use crate::launch::{Installation, Outcome, Turn, undisturbed};
use crate::models::WIDE;
use crate::task::{Net, Task};

/// Every rank keeps half of the optimizer's state, and cannot read all of it. At the end of the run
/// the gradients that are left over are applied by a program without sums. The bits are those of
/// replicas.
#[test]
fn two_ranks_keep_half_of_the_state_each() {
    let _turn = Turn::Training.take();
    let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let task = |i: usize, towers: usize| Task { epochs: 1, ..Task::new(Net::Wide, towers, dirs[i].path()) };
    let whole = undisturbed(&task(0, 2), 2);
    let installation = &Installation::sample("sharded")[0];
    let run = |i: usize, sharded: bool| {
        let task = Task { sharded, ..task(i, 1) };
        // With a fixed threshold, what is freed leaves the process.
        let mut run = installation.start_with(2, &task, |command| {
            command.env("MALLOC_MMAP_THRESHOLD_", "65536");
        });
        run.assert_finishes();
        Outcome::read(&task).assert_same(&whole, &format!("sharded: {sharded}"));
        [0, 1].map(|rank| run.memory(rank))
    };
    let (replicated, sharded) = (run(1, false), run(2, true));
    // Two moments and the sum of gradients.
    let state = (3 * 64 * WIDE * size_of::<f32>() / 1024) as f64;
    for rank in 0..2 {
        let ((whole, can_read), (half, cannot_read)) = (&replicated[rank], &sharded[rank]);
        println!("rank {rank}: {whole} kB replicated, {half} kB divided, {state} kB of state");
        assert_eq!((can_read.as_deref(), cannot_read.as_deref()), (None, Some("Unsupported")));
        let saved = *whole as f64 - *half as f64;
        // Half of it, less what the exchange of divided updates and the allocator take.
        assert!(
            saved > 0.25 * state,
            "rank {rank}: {whole} kB replicated, {half} kB divided, {state} kB of state"
        );
    }
}
