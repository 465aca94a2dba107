//! Trainers in f16: steps that overflow are skipped and counted.

use crate::overflowing_cost::{OVERFLOWS, cost, optimizer, variables};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tensorpack::ErrorKind;
use tensorpack::callback::TrainCx;
use tensorpack::dataflow::FromFn;
use tensorpack::optim::{LOSS_SCALE, SKIPPED_STEPS};
use tensorpack::prelude::*;
use tensorpack::train::{NanPolicy, RunTrainOp, SingleCostTrainer, Trained, Trainer};

const GOOD_STEPS: &str = "loss_scale/good_steps";

/// The CPU engine, and XLA's CPU if it is installed.
fn engines() -> Vec<Device> {
    let xla = tensorpack_testing::plugin_for_tests("cpu").map(|_| "xla:cpu:0".parse().unwrap());
    std::iter::once(Device::Cpu(0)).chain(xla).collect()
}

/// The model of [`cost`], trained by a trainer.
struct Net;

impl ModelDesc for Net {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None, Some(3)])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let cost = cost(t, &inputs[0]);
        t.moving_summary(&[&cost]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        optimizer()
    }
}

/// Batches of which those with these indices overflow.
fn batches(bad: &'static [u64]) -> FromFn {
    FromFn::new(40, move |index| {
        let first = if bad.contains(&index) { OVERFLOWS } else { 1.0 };
        let rest = (1..6).map(|i| ((index * 6 + i) as f32 * 0.37).sin());
        Ok(vec![HostTensor::new([2, 3], std::iter::once(first).chain(rest).collect::<Vec<f32>>())?])
    })
}

type Variables = Arc<Mutex<Vec<(String, HostTensor)>>>;

/// Records the variables at the end of training.
struct AtTheEnd(Variables);

impl Callback for AtTheEnd {
    fn after_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        *self.0.lock().unwrap() = variables(cx.session());
        Ok(())
    }
}

fn config(bad: &'static [u64], device: Device) -> TrainConfig {
    config_of(batches(bad), device)
}

fn config_of(batches: FromFn, device: Device) -> TrainConfig {
    let options = SessionOptions { device, threads: Some(1), ..SessionOptions::default() };
    TrainConfig::new(Net, batches)
        .precision(Precision::F16)
        .loss_scale(LossScale::new().initial(256.0).growth_steps(6))
        .session(options)
        .steps_per_epoch(10)
        .max_epoch(2)
        .no_logdir()
}

/// Trains, and returns the variables at the end.
fn train(config: TrainConfig, trainer: impl Into<SingleCostTrainer>) -> (Trained, Vec<(String, HostTensor)>) {
    let found = Variables::default();
    let trained = launch_train_with_config(config.callback(AtTheEnd(found.clone())), trainer).unwrap();
    let found = found.lock().unwrap().clone();
    (trained, found)
}

fn value(variables: &[(String, HostTensor)], name: &str) -> f64 {
    variables.iter().find(|(n, _)| n == name).unwrap().1.to_scalar().unwrap()
}

#[test]
fn trainers_skip_and_count_overflows_under_every_policy() {
    for device in engines() {
        for policy in [NanPolicy::Stop, NanPolicy::Skip(0), NanPolicy::Skip(5)] {
            let (trained, found) =
                train(config(&[3, 4, 11], device).nan_policy(policy), SimpleTrainer::new());
            assert_eq!(value(&found, SKIPPED_STEPS), 3.0, "{device}, {policy:?}");
            // 256, after two overflows 64, after six good steps 128, after another 64, and after six 128.
            assert_eq!(value(&found, LOSS_SCALE), 128.0, "{device}, {policy:?}");
            let history =
                |name: &str| trained.monitors.history(name).iter().map(|(_, v)| *v).collect::<Vec<f64>>();
            assert_eq!(history(SKIPPED_STEPS), [2.0, 3.0], "{device}, {policy:?}");
            assert_eq!(history(LOSS_SCALE).len(), 2, "{device}, {policy:?}");
        }
    }
}

#[test]
fn launches_of_several_steps_skip_the_same_steps() {
    for device in engines().into_iter().filter(|d| matches!(d, Device::Xla { .. })) {
        let one = train(config(&[3, 4, 11], device), SimpleTrainer::new()).1;
        let several = train(config(&[3, 4, 11], device).steps_per_launch(4), SimpleTrainer::new()).1;
        for name in [LOSS_SCALE, GOOD_STEPS, SKIPPED_STEPS] {
            assert_eq!(value(&one, name), value(&several, name), "{name}");
        }
        for ((name, a), (_, b)) in one.iter().zip(&several) {
            let pairs = a.to_f64_vec().into_iter().zip(b.to_f64_vec());
            pairs.for_each(|(a, b)| assert!((a - b).abs() <= 1e-3 * a.abs().max(1e-2), "{name}: {a}, {b}"));
        }
    }
}

#[test]
fn an_overflow_in_one_tower_skips_the_step_of_all() {
    for device in engines() {
        let towers = match device {
            Device::Xla { platform, .. } => [0, 1].map(|index| Device::Xla { platform, index }),
            _ => [0, 1].map(Device::Cpu),
        };
        // With two towers, a step takes two batches: steps 2 and 6 of the first epoch overflow.
        let trainer = || SyncMultiGpuTrainerReplicated::on(towers);
        let (_, found) = train(config(&[3, 10], device).max_epoch(1), trainer());
        assert_eq!(value(&found, SKIPPED_STEPS), 2.0, "{device}");
        // 128, 64, and no six good steps in a row.
        assert_eq!(value(&found, LOSS_SCALE), 64.0, "{device}");
        let (_, all_good) = train(config(&[], device).max_epoch(1), trainer());
        assert_eq!(value(&all_good, SKIPPED_STEPS), 0.0);
    }
}

/// Towers with batches of different sizes are separate programs on XLA, which a joint one updates.
#[test]
fn an_overflow_is_skipped_in_towers_of_different_sizes() {
    for device in engines() {
        let towers = match device {
            Device::Xla { platform, .. } => [0, 1].map(|index| Device::Xla { platform, index }),
            _ => [0, 1].map(Device::Cpu),
        };
        for bad in [6, 7] {
            let batches = FromFn::new(20, move |index| {
                let rows = 2 + index as usize % 2;
                let mut values: Vec<f32> = (0..rows * 3).map(|i| (i as f32 * 0.37).sin()).collect();
                if index == bad {
                    values[0] = OVERFLOWS;
                }
                Ok(vec![HostTensor::new([rows, 3], values)?])
            });
            let config = config_of(batches, device).max_epoch(1);
            let (_, found) = train(config, SyncMultiGpuTrainerReplicated::on(towers));
            assert_eq!(value(&found, SKIPPED_STEPS), 1.0, "{device}, batch {bad}");
            // After the fourth of ten steps six good ones follow, and the scale is doubled again.
            assert_eq!(value(&found, LOSS_SCALE), 256.0, "{device}, batch {bad}");
        }
    }
}

#[test]
fn a_run_resumes_across_an_overflow() {
    for device in engines() {
        let whole = train(config(&[3, 4, 11], device), SimpleTrainer::new()).1;
        let dir: PathBuf = std::env::temp_dir().join(format!("loss-scale-{}-{device}", std::process::id()));
        let part = |epochs: u64| {
            let config = config(&[3, 4, 11], device).logdir(&dir).monitors(Vec::new()).max_epoch(epochs);
            train(config.callback(ModelSaver::new()), SimpleTrainer::new()).1
        };
        let first = part(1);
        assert_eq!(value(&first, SKIPPED_STEPS), 2.0, "{device}");
        assert_eq!(part(2), whole, "{device}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn asynchronous_towers_refuse_f16() {
    let e =
        launch_train_with_config(config(&[], Device::Cpu(0)), AsyncMultiGpuTrainer::new(2)).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    assert!(e.message().contains("f16"), "{e}");
}

#[test]
fn the_precision_of_a_run_must_be_that_of_its_graph() {
    let graph = Graph::new();
    let w = TowerContext::training(&graph).variable(VariableSpec::new("w", []));
    let step = minimize(&w.value().square(), &Sgd::new(0.1)).unwrap();
    let config = RunConfig::new().no_logdir().steps_per_epoch(1).max_epoch(1).precision(Precision::Bf16);
    let iteration = RunTrainOp((&step).into());
    let e = Trainer::new(&graph).train(config, iteration).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Argument, "{e}");
    assert!(e.to_string().contains("bf16") && e.to_string().contains("set_precision"), "{e}");
}
