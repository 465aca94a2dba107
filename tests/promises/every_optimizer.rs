//! Every optimizer, through every trainer, lowers the cost of a convex problem.

use crate::line::{Line, MakeOptimizer, batches};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::rc::Rc;
use tensorpack::callback::ProcessTensors;
use tensorpack::prelude::*;
use tensorpack::train::SingleCostTrainer;

/// Every optimizer by the name of its type, with a learning rate at which it does not overshoot.
pub(crate) const OPTIMIZERS: [(&str, MakeOptimizer); 15] = [
    ("Sgd", || Sgd::new(0.1).boxed()),
    ("Momentum", || Momentum::new(0.01, 0.9).boxed()),
    ("Momentum", || Momentum::new(0.01, 0.9).nesterov().boxed()),
    ("RmsProp", || RmsProp::new(0.01).boxed()),
    ("RmsProp", || RmsProp::new(0.01).momentum(0.5).centered().boxed()),
    ("Adagrad", || Adagrad::new(0.1).boxed()),
    ("Adam", || Adam::new(0.02).boxed()),
    ("AdamW", || AdamW::new(0.02).decay(0.01).boxed()),
    ("Lamb", || Lamb::new(0.05).boxed()),
    ("ParamGroups", || ParamGroups::new(Adam::new(0.02)).group(".*/W", |g| g.rate(0.5).decay(0.01)).boxed()),
    ("Processed", || Sgd::new(0.1).process(GlobalNormClip::new(0.5)).boxed()),
    ("PostProcess", || PostProcess::new(Sgd::new(0.1), |_, w| Some(w.clip(-3.0, 3.0))).boxed()),
    ("Ema", || Ema::new(Sgd::new(0.1), 0.9).boxed()),
    ("Swa", || Swa::new(Sgd::new(0.1), 3).every(2).boxed()),
    ("Accumulate", || Accumulate::new(Sgd::new(0.1), 2).boxed()),
];

/// Returns the types in `src/optim` that implement `Optimizer`.
fn optimizers_of_the_library(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            optimizers_of_the_library(&path, found);
            continue;
        }
        let text = fs::read_to_string(path).unwrap();
        let types = text.split("\nimpl Optimizer for ").skip(1).filter_map(|rest| rest.split(' ').next());
        found.extend(types.map(String::from));
    }
}

#[test]
fn all_optimizers_are_tested() {
    let mut library = BTreeSet::new();
    optimizers_of_the_library(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/optim"), &mut library);
    let tested: BTreeSet<String> = OPTIMIZERS.iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!(tested, library);
}

const STEPS: u64 = 24;

/// Trains on equal batches. Returns the cost before each step.
fn costs(optimizer: MakeOptimizer, trainer: SingleCostTrainer) -> Vec<f64> {
    let costs = Rc::new(RefCell::new(Vec::new()));
    let record = costs.clone();
    let recorder = ProcessTensors::new(["cost"], move |_, values| {
        record.borrow_mut().push(values[0].to_scalar()?);
        Ok(())
    });
    let config = TrainConfig::new(Line(optimizer), batches(100, || ()));
    let config = config.callback(recorder).steps_per_epoch(STEPS).max_epoch(1).no_logdir();
    launch_train_with_config(config, trainer).unwrap();
    costs.take()
}

/// Checks that the cost goes down with every update, to less than three quarters overall.
#[track_caller]
fn assert_minimizes(what: &str, costs: &[f64]) {
    assert_eq!(costs.len() as u64, STEPS, "{what}");
    assert!(costs.windows(2).all(|pair| pair[1] < pair[0]), "{what}: {costs:?}");
    assert!(costs[costs.len() - 1] < 0.75 * costs[0], "{what}: {costs:?}");
}

#[test]
fn every_optimizer_lowers_the_cost() {
    for (name, optimizer) in OPTIMIZERS {
        let mut costs = costs(optimizer, SimpleTrainer::new().into());
        if name == "Accumulate" {
            // It updates with every second step, so each cost comes twice.
            let (first, second): (Vec<f64>, Vec<f64>) =
                costs.chunks(2).map(|pair| (pair[0], pair[1])).unzip();
            assert_eq!(first, second, "{name}");
            assert!(first.windows(2).all(|pair| pair[1] < pair[0]), "{name}: {first:?}");
            costs = costs.iter().enumerate().map(|(i, cost)| cost - 1e-9 * i as f64).collect();
        }
        assert_minimizes(&format!("{:?}", optimizer()), &costs);
    }
}

#[test]
fn every_trainer_lowers_the_cost() {
    let trainers: [(&str, SingleCostTrainer); 5] = [
        ("SimpleTrainer", SimpleTrainer::new().into()),
        ("QueueInputTrainer", QueueInputTrainer::new().into()),
        ("SyncMultiGpuTrainerParameterServer", SyncMultiGpuTrainerParameterServer::new(2).into()),
        ("SyncMultiGpuTrainerReplicated", SyncMultiGpuTrainerReplicated::new(2).into()),
        ("AsyncMultiGpuTrainer", AsyncMultiGpuTrainer::new(1).into()),
    ];
    for (name, trainer) in trainers {
        assert_minimizes(name, &costs(|| Sgd::new(0.1).boxed(), trainer));
    }
    // The gradients of several asynchronous towers are stale, so single steps may raise the cost.
    let costs = costs(|| Sgd::new(0.1).boxed(), AsyncMultiGpuTrainer::new(2).into());
    assert!(costs[costs.len() - 1] < 0.75 * costs[0], "{costs:?}");
}
