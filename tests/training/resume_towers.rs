//! Resuming with another number of towers: the data continues where it stopped.

use crate::life_cycle::Recorder;
use crate::models::Line;
use crate::processes;
use crate::resume::SaveAfter;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tensorpack::callback::ProcessTensors;
use tensorpack::dataflow::{DataFlow, FromFn};
use tensorpack::prelude::*;
use tensorpack::train::SingleCostTrainer;

/// The index of every training example, in order.
type Taken = Arc<Mutex<Vec<i64>>>;

/// Eleven batches of two examples, shuffled in every pass. An example contains its index.
fn data() -> impl DataFlow {
    let example = |i: u64| {
        Ok(vec![HostTensor::new([3], vec![i as f32, 0.0, 0.0])?, HostTensor::new([1], vec![0.0f32])?])
    };
    FromFn::new(22, example).shuffle().batch(2)
}

/// Records the examples of every tower.
fn recording(towers: usize, taken: &Taken) -> ProcessTensors {
    let names = (0..towers).map(|i| if towers > 1 { format!("tower{i}/x") } else { "x".into() });
    let taken = taken.clone();
    ProcessTensors::new(names, move |_, batches| {
        let examples = batches.iter().flat_map(|b| b.to_f64_vec().into_iter().step_by(3));
        taken.lock().unwrap().extend(examples.map(|i| i as i64));
        Ok(())
    })
}

fn config(towers: usize, taken: &Taken) -> TrainConfig {
    // Rate 0: the examples are indices up to 21, and the model must not change.
    TrainConfig::new(Still, data()).callback(recording(towers, taken)).steps_per_epoch(4).seed(5)
}

fn trainer(towers: usize) -> SingleCostTrainer {
    if towers == 1 { SimpleTrainer::new().into() } else { SyncMultiGpuTrainerReplicated::new(towers).into() }
}

/// [`Line`] with a learning rate of 0.
struct Still;

impl ModelDesc for Still {
    fn inputs(&self) -> Vec<TensorSpec> {
        Line.inputs()
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        Line.build_graph(t, inputs)
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(0.0).boxed()
    }
}

/// Runs six steps with `before` towers, stopping in the middle of the second epoch, then six with
/// `after` towers.
fn change(dir: &Path, before: usize, after: usize) -> Vec<i64> {
    let taken = Taken::default();
    // The step after the checkpoint is lost, and its data is read again.
    let stop = Recorder { fail_at: Some("before_run 2 3"), ..Recorder::default() };
    let first = config(before, &taken).callback(SaveAfter(6)).callback(stop).logdir(dir).max_epoch(2);
    assert!(launch_train_with_config(first, trainer(before)).is_err());
    assert_eq!(taken.lock().unwrap().len(), 7 * 2 * before);
    taken.lock().unwrap().truncate(6 * 2 * before);
    launch_train_with_config(config(after, &taken).logdir(dir).max_epoch(3), trainer(after)).unwrap();
    let taken = taken.lock().unwrap().clone();
    assert_eq!(taken.len(), 6 * 2 * before + 6 * 2 * after);
    taken
}

#[test]
fn examples_continue_in_the_same_order() {
    let whole = Taken::default();
    launch_train_with_config(config(1, &whole).no_logdir().max_epoch(20), trainer(1)).unwrap();
    let whole = whole.lock().unwrap();
    for (before, after) in [(3, 2), (2, 3), (1, 4), (4, 1)] {
        let dir = tempfile::tempdir().unwrap();
        let taken = change(dir.path(), before, after);
        assert_eq!(taken, whole[..taken.len()], "{before} towers, then {after}");
    }
}

#[test]
fn child() {
    if let Some(dir) = processes::dir() {
        change(&dir, 3, 2);
    }
}

#[test]
fn the_change_is_logged() {
    let dir = tempfile::tempdir().unwrap();
    let output = processes::alone("resume_towers::child", dir.path());
    let text = processes::text(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("max_epoch 3 (was 2); towers 2 (was 3)"), "{text}");
    assert!(text.contains("batch 4 = 2 towers x 2"), "{text}");
}
