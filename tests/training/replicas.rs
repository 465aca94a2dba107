//! Towers of one process share variables: copies cannot diverge, and attempts are errors.

use crate::models::{Line, line};
use std::sync::{Arc, Mutex};
use tensorpack::callback::ProcessTensors;
use tensorpack::dataflow::{DataFlow, Seed, State};
use tensorpack::graph::UPDATE_OPS;
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack::train::Trained;
use tensorpack_testing::assert_mentions;

/// How towers update a statistic during training.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Statistic {
    /// Every tower updates the shared variable with the mean of its own batch.
    Alone,
    /// The first tower updates it with the mean over all towers.
    Together,
    /// Every tower has its own variable.
    Apart,
}

/// [`Line`] with a running mean of its input.
struct TracksInput(Statistic);

impl ModelDesc for TracksInput {
    fn inputs(&self) -> Vec<TensorSpec> {
        Line.inputs()
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let spec = VariableSpec::new("seen", []).init(Init::zeros());
        let seen = t.variable(if self.0 == Statistic::Apart { spec.local() } else { spec.non_trainable() });
        let own = inputs[0].mean();
        let now =
            if self.0 == Statistic::Together { t.all_reduce_mean("seen", &own).named("all") } else { own };
        if self.0 != Statistic::Together || t.is_main_training_tower() {
            let update = seen.update(|seen| seen * 0.5 + now * 0.5);
            t.graph().add_op_to_collection(UPDATE_OPS, &update);
        }
        Line.build_graph(t, inputs)
    }

    fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer> {
        Line.optimizer(t)
    }
}

fn config(statistic: Statistic) -> TrainConfig {
    TrainConfig::new(TracksInput(statistic), line(4)).steps_per_epoch(2).max_epoch(1).no_logdir()
}

fn seen(trained: &Trained, name: &str) -> f64 {
    trained.session.read(name).unwrap().to_scalar().unwrap()
}

/// Returns the moving average after steps that average these batches.
fn average(steps: &[&[usize]]) -> f64 {
    let mut reader = line(4).open(Seed::new(0), &State::start()).unwrap();
    let batches: Vec<Vec<HostTensor>> = (0..4).map(|_| reader.read().unwrap().unwrap()).collect();
    steps.iter().fold(0.0, |seen, step| {
        let values: Vec<f64> = step.iter().flat_map(|&i| batches[i][0].to_f64_vec()).collect();
        0.5 * seen + 0.5 * values.iter().sum::<f64>() / values.len() as f64
    })
}

/// One of the updates would be lost, so this is an error before anything runs.
#[test]
fn an_update_of_a_shared_variable_in_every_tower_is_an_error() {
    let runs = Arc::new(Mutex::new(0));
    let counted = runs.clone();
    let count = ProcessTensors::new(["cost"], move |_, _| {
        *counted.lock().unwrap() += 1;
        Ok(())
    });
    let config = config(Statistic::Alone).callback(count);
    let e = launch_train_with_config(config, SyncMultiGpuTrainerReplicated::new(2)).err().unwrap();
    assert_mentions(&e, &["variable seen", "two towers", "sum"]);
    assert!(e.site().is_some_and(|s| s.file.ends_with("replicas.rs")), "{e}");
    assert_eq!(*runs.lock().unwrap(), 0);
}

#[test]
fn a_mean_over_towers_updates_a_variable_once() {
    let trained =
        launch_train_with_config(config(Statistic::Together), SyncMultiGpuTrainerReplicated::new(2)).unwrap();
    assert!((seen(&trained, "seen") - average(&[&[0, 1], &[2, 3]])).abs() < 1e-6);
}

/// The mean is bit-identical in every tower.
#[test]
fn all_towers_read_the_same_sums() {
    let names: Vec<String> = (0..3).map(|i| format!("tower{i}/all")).collect();
    let runs = Arc::new(Mutex::new(0));
    let counted = runs.clone();
    let compare = ProcessTensors::new(names, move |_, values| {
        *counted.lock().unwrap() += 1;
        assert!(values.iter().all(|v| v.as_bytes() == values[0].as_bytes()), "{values:?}");
        Ok(())
    });
    let config = config(Statistic::Together).callback(compare);
    launch_train_with_config(config, SyncMultiGpuTrainerReplicated::new(3)).unwrap();
    assert_eq!(*runs.lock().unwrap(), 2);
}

#[test]
fn a_tower_can_have_its_own_variable() {
    let trained =
        launch_train_with_config(config(Statistic::Apart), SyncMultiGpuTrainerReplicated::new(2)).unwrap();
    assert!((seen(&trained, "seen") - average(&[&[0], &[2]])).abs() < 1e-6);
    assert!((seen(&trained, "tower1/seen") - average(&[&[1], &[3]])).abs() < 1e-6);
}
