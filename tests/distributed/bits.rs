//! The bits of a run depend on the number of towers, not on the processes they are divided over.

use crate::launch::{Installation, Outcome, one_at_a_time, start_alone, undisturbed};
use crate::task::{Net, Task};

fn task(net: Net, towers: usize) -> (tempfile::TempDir, Task) {
    let dir = tempfile::tempdir().unwrap();
    let task = Task { epochs: 3, steps_per_epoch: 10, ..Task::new(net, towers, dir.path()) };
    (dir, task)
}

/// Checks that processes x towers give the bits of one process with all towers.
fn any_division_gives_the_same_bits(net: Net) {
    let _turn = one_at_a_time();
    for total in [4, 6] {
        let whole = undisturbed(&task(net, total).1, total);
        // The same trainers in one process without a launcher.
        for sharded in [false, true] {
            let (_dir, task_alone) = task(net, total);
            let task_alone = Task { sharded, ..task_alone };
            start_alone(&task_alone).assert_finishes();
            Outcome::read(&task_alone)
                .assert_same(&whole, &format!("{net:?}: 1 x {total}, sharded: {sharded}"));
        }
        for ranks in (2..=4).filter(|ranks| total % ranks == 0) {
            let towers = total / ranks;
            for installation in Installation::sample(&format!("{net:?} {ranks} x {towers}")) {
                let (_dir, task) = task(net, towers);
                installation.finish(ranks, &task);
                let what = format!("{net:?}: {ranks} x {towers}, {}", installation.library.path.display());
                Outcome::read(&task).assert_same(&whole, &what);
                println!("{what}: same bits");
            }
            let installation = &Installation::sample(&format!("sharded {net:?} {ranks} x {towers}"))[0];
            let (_dir, task) = task(net, towers);
            let task = Task { sharded: true, ..task };
            installation.finish(ranks, &task);
            Outcome::read(&task).assert_same(&whole, &format!("{net:?}: {ranks} x {towers}, sharded"));
        }
        assert!(whole.bytes("logits/W").iter().any(|byte| *byte != 0));
    }
}

#[test]
fn a_convnet_with_dropout_has_the_same_bits_in_any_division() {
    any_division_gives_the_same_bits(Net::Convnet);
}

#[test]
fn a_resnet_with_batch_norm_has_the_same_bits_in_any_division() {
    any_division_gives_the_same_bits(Net::Resnet);
}
