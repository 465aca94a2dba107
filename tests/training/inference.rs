//! Inference during training: each sample once, optionally on moving averages, without affecting
//! training.

use crate::models::{Line, line};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tensorpack::callback::{Inferencer, SanityValidation, TrainCx};
use tensorpack::dataflow::{DataFlow, FromList};
use tensorpack::graph::UPDATE_OPS;
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack::tower::TowerHandle;

/// [`Line`] with an optimizer that maintains moving averages.
struct Averaged;

impl ModelDesc for Averaged {
    fn inputs(&self) -> Vec<TensorSpec> {
        Line.inputs()
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        Line.build_graph(t, inputs)
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Ema::new(Sgd::new(0.05), 0.9).boxed()
    }
}

/// Returns the mean cost of a line with these weights over all samples.
fn cost_of(w: &[f64], b: f64, samples: &[Vec<HostTensor>]) -> f64 {
    let mut errors = Vec::new();
    for sample in samples {
        let (x, y) = (sample[0].to_f64_vec(), sample[1].to_f64_vec());
        for (x, y) in x.chunks(3).zip(y) {
            errors.push((x.iter().zip(w).map(|(x, w)| x * w).sum::<f64>() + b - y).powi(2));
        }
    }
    errors.iter().sum::<f64>() / errors.len() as f64
}

fn samples(batches: usize) -> Vec<Vec<HostTensor>> {
    let flow = line(batches);
    let mut reader =
        flow.open(tensorpack::dataflow::Seed::new(0), &tensorpack::dataflow::State::start()).unwrap();
    std::iter::from_fn(|| reader.read().unwrap()).collect()
}

fn weights(session: &Session) -> [HostTensor; 2] {
    ["fc/W", "fc/b"].map(|name| session.read(name).unwrap())
}

fn config(model: impl ModelDesc + 'static) -> TrainConfig {
    TrainConfig::new(model, line(2)).no_logdir().max_epoch(2)
}

/// Reads a statistic at the end.
struct Look(&'static str, Arc<AtomicU64>);

impl Callback for Look {
    fn after_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.1.store(cx.monitors().latest(self.0).unwrap_or(f64::NAN).to_bits(), Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn validation_reads_averages_and_training_updates_weights() {
    let found = Arc::new(AtomicU64::new(0));
    let runner = InferenceRunner::new(line(3), [ScalarStats::new("cost")]).on_ema();
    let on_ema = config(Averaged).callback(runner).callback(Look("validation_cost", found.clone()));
    let trained = launch_train_with_config(on_ema, SimpleTrainer::new()).unwrap();
    let cost = f64::from_bits(found.load(Ordering::Relaxed));
    let read = |name: &str| trained.session.read(name).unwrap().to_f64_vec();
    let right = cost_of(&read("EMA/fc/W"), read("EMA/fc/b")[0], &samples(3));
    assert!((cost - right).abs() < 1e-5 * right, "{cost} is not {right}");
    let of_weights = cost_of(&read("fc/W"), read("fc/b")[0], &samples(3));
    assert!((cost - of_weights).abs() > 1e-2 * right, "{cost} is that of the weights themselves");
    let plain = launch_train_with_config(config(Averaged), SimpleTrainer::new()).unwrap();
    assert_eq!(weights(&trained.session), weights(&plain.session));
}

/// Fails after the first batch.
struct Fails;

impl Inferencer for Fails {
    fn fetches(&mut self, tower: &TowerHandle) -> Result<Vec<Tensor>> {
        Ok(vec![tower.get_tensor("cost")?])
    }
    fn start(&mut self) {}
    fn batch(&mut self, _: &[HostTensor], _: usize) -> Result<()> {
        Err(Error::argument("rejected"))
    }
    fn finish(&mut self) -> Vec<(String, f64)> {
        Vec::new()
    }
    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

#[test]
fn missing_averages_are_an_error() {
    let runner = InferenceRunner::new(line(3), [ScalarStats::new("cost")]).on_ema();
    let e = launch_train_with_config(config(Line).callback(runner), SimpleTrainer::new()).err().unwrap();
    assert!(e.to_string().contains("no variable has a moving average"), "{e}");
    assert!(e.to_string().contains("Ema::new(optimizer, decay)"), "{e}");
}

#[test]
fn a_smaller_last_batch_is_weighted_by_its_size() {
    // The same examples in batches of 4, 4 and 4, and of 4, 4, 3 and 1.
    let mut ragged = samples(3);
    let last = ragged.pop().unwrap();
    let cut = |from: usize, to: usize| {
        let rows = |t: &HostTensor, n: usize| {
            HostTensor::new([to - from, n], t.as_slice::<f32>().unwrap()[from * n..to * n].to_vec()).unwrap()
        };
        vec![rows(&last[0], 3), rows(&last[1], 1)]
    };
    ragged.extend([cut(0, 3), cut(3, 4)]);
    let cost = |flow: FromList| {
        let found = Arc::new(AtomicU64::new(0));
        let runner = InferenceRunner::new(flow, [ScalarStats::new("cost")]);
        let config = config(Line).callback(runner).callback(Look("validation_cost", found.clone()));
        launch_train_with_config(config, SimpleTrainer::new()).unwrap();
        f64::from_bits(found.load(Ordering::Relaxed))
    };
    let (even, uneven) = (cost(line(3)), cost(FromList::new(ragged)));
    assert!((even - uneven).abs() < 1e-6 * even, "{even} is not {uneven}");
}

/// [`Line`] with a counter of its runs.
struct Counting;

impl ModelDesc for Counting {
    fn inputs(&self) -> Vec<TensorSpec> {
        Line.inputs()
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let calls = t.variable(VariableSpec::new("calls", []).init(Init::zeros()).non_trainable());
        (calls.value() * 1.0).named("calls_before");
        t.graph().add_op_to_collection(UPDATE_OPS, &calls.update(|n| n + 1.0));
        Line.build_graph(t, inputs)
    }

    fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer> {
        Line.optimizer(t)
    }
}

#[test]
fn state_carried_from_batch_to_batch() {
    let run = |with: fn(InferenceRunner) -> InferenceRunner| {
        let found = Arc::new(AtomicU64::new(0));
        let runner = with(InferenceRunner::new(line(3), [ScalarStats::new("calls_before")]));
        let look = Look("validation_calls_before", found.clone());
        let config = config(Counting).callback(runner).callback(look).max_epoch(1);
        let trained = launch_train_with_config(config, SimpleTrainer::new()).unwrap();
        let calls = trained.session.read("calls").unwrap().to_scalar().unwrap();
        (f64::from_bits(found.load(Ordering::Relaxed)), calls, weights(&trained.session))
    };
    // Two steps, then three batches: without updates every batch sees the state after training.
    let (mean, calls, without) = run(|runner| runner);
    assert_eq!((mean, calls), (2.0, 2.0));
    let (mean, calls, with) = run(InferenceRunner::with_updates);
    assert_eq!((mean, calls), (3.0, 5.0));
    assert_eq!(with, without);
}

#[test]
fn sanity_validation_runs_before_training() {
    /// The statistics before the first epoch.
    struct Before(Arc<AtomicU64>, Arc<AtomicU64>);
    impl Callback for Before {
        fn before_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
            if cx.epoch_num == 1 {
                assert_eq!(cx.monitors().latest("validation_cost"), None);
                self.1.store(self.0.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            Ok(())
        }
    }
    let (read, before) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let counter = read.clone();
    let flow = line(5).map(move |sample| {
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(sample)
    });
    let runner = SanityValidation::new(InferenceRunner::new(flow, [ScalarStats::new("cost")])).batches(3);
    let config_before = config(Line).callback(runner).callback(Before(read.clone(), before.clone()));
    launch_train_with_config(config_before, SimpleTrainer::new()).unwrap();
    assert_eq!((before.load(Ordering::Relaxed), read.load(Ordering::Relaxed)), (3, 3 + 2 * 5));
    let broken = SanityValidation::new(InferenceRunner::new(line(1), [Fails]));
    let e = launch_train_with_config(config(Line).callback(broken), SimpleTrainer::new()).err().unwrap();
    assert!(e.message().contains("before training: batch 0: rejected"), "{e}");
}
