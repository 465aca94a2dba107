//! The bits of a run depend on the number of towers, not on the processes they are divided over.

use crate::launch::{Installation, Outcome, Turn, start_alone, undisturbed};
use crate::task::{Net, Task};

fn task(net: Net, towers: usize) -> (tempfile::TempDir, Task) {
    let dir = tempfile::tempdir().unwrap();
    let task = Task { epochs: 3, steps_per_epoch: 10, ..Task::new(net, towers, dir.path()) };
    (dir, task)
}

/// Checks that processes x towers give the bits of one process with all towers.
fn any_division_gives_the_same_bits(net: Net) {
    let _turn = Turn::Training.take();
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

/// The ranks compare the checksums of their variables at the end of every epoch, so a run that
/// finishes has the same bits on all of them.
#[test]
fn gradients_sent_as_bf16_give_nearly_the_same_variables() {
    let _turn = Turn::Training.take();
    // Few steps: differences grow with every one.
    let task = |towers| {
        let (dir, task) = task(Net::Resnet, towers);
        (dir, Task { epochs: 1, steps_per_epoch: 5, ..task })
    };
    let exact = undisturbed(&task(4).1, 4).values("logits/W");
    for (ranks, towers) in [(2, 2), (4, 1)] {
        for installation in Installation::sample(&format!("bf16 {ranks} x {towers}")) {
            let run = || {
                let (_dir, task) = task(towers);
                installation.finish(ranks, &Task { bf16: true, ..task.clone() });
                Outcome::read(&task)
            };
            let (first, again) = (run(), run());
            let what = format!("{ranks} x {towers}, {}", installation.library.path.display());
            first.assert_same(&again, &what);
            let difference =
                first.values("logits/W").iter().zip(&exact).map(|(a, b)| (a - b).powi(2)).sum::<f32>();
            let relative = (difference / exact.iter().map(|x| x.powi(2)).sum::<f32>()).sqrt();
            println!("{what}: relative difference {relative}");
            assert!(relative > 0.0 && relative < 0.01, "{what}: {relative}");
        }
    }
}

/// The first steps overflow, until the loss scale is small enough. All ranks skip the same ones.
#[test]
fn f16_skips_the_same_steps_in_any_division() {
    let _turn = Turn::Training.take();
    let task = |towers, sharded| {
        let (dir, task) = task(Net::Dense, towers);
        (dir, Task { epochs: 1, steps_per_epoch: 12, f16: true, sharded, ..task })
    };
    let (_dir, alone) = task(4, false);
    start_alone(&alone).assert_finishes();
    let whole = Outcome::read(&alone);
    let skipped = i64::from_le_bytes(whole.bytes("loss_scale/skipped_steps").try_into().unwrap());
    let scale = whole.values("loss_scale/scale")[0];
    assert!((1..12).contains(&skipped), "{skipped}");
    assert_eq!(scale, 16_777_216.0 / 2f32.powi(skipped as i32));
    for (ranks, towers) in [(2, 2), (4, 1)] {
        for sharded in [false, true] {
            let (_dir, task) = task(towers, sharded);
            Installation::sample(&format!("f16 {ranks} x {towers}"))[0].finish(ranks, &task);
            let what = format!("{ranks} x {towers}, sharded: {sharded}");
            Outcome::read(&task).assert_same(&whole, &what);
            println!("{what}: same bits");
        }
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
