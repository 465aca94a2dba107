//! Inference during training: each sample once, on averages too, and training does not notice.

use crate::models::{Line, line};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tensorpack::callback::{Inferencer, SanityValidation, TrainCx};
use tensorpack::dataflow::{DataFlow, FromList};
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack::tower::TowerHandle;

/// [`Line`] with averages of its variables, as an optimizer would keep them.
struct WithAverages;

const AVERAGE: f32 = 0.5;

impl ModelDesc for WithAverages {
    fn inputs(&self) -> Vec<TensorSpec> {
        Line.inputs()
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let cost = Line.build_graph(t, inputs);
        let w = VariableSpec::new("EMA/fc/W", [3, 1]).init(Init::Constant(AVERAGE.into()));
        t.variable(w.non_trainable());
        t.variable(VariableSpec::new("EMA/fc/b", [1]).init(Init::zeros()).non_trainable());
        cost
    }

    fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer> {
        Line.optimizer(t)
    }
}

/// What the cost of all examples is with every weight at [`AVERAGE`].
fn cost_of_average(batches: usize) -> f64 {
    let samples = samples(batches);
    let mut errors = Vec::new();
    for sample in &samples {
        let (x, y) = (sample[0].to_f64_vec(), sample[1].to_f64_vec());
        for (x, y) in x.chunks(3).zip(y) {
            errors.push((f64::from(AVERAGE) * x.iter().sum::<f64>() - y).powi(2));
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

/// Looks at a statistic at the end.
struct Look(&'static str, Arc<AtomicU64>);

impl Callback for Look {
    fn after_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.1.store(cx.monitors().latest(self.0).unwrap_or(f64::NAN).to_bits(), Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn averages_are_validated_and_weights_trained() {
    let found = Arc::new(AtomicU64::new(0));
    let runner = InferenceRunner::new(line(3), [ScalarStats::new("cost")]).on_ema();
    let config_on_ema =
        config(WithAverages).callback(runner).callback(Look("validation_cost", found.clone()));
    let trained = launch_train_with_config(config_on_ema, SimpleTrainer::new()).unwrap();
    let cost = f64::from_bits(found.load(Ordering::Relaxed));
    let right = cost_of_average(3);
    assert!((cost - right).abs() < 1e-5 * right, "{cost} is not {right}");
    let plain = launch_train_with_config(config(WithAverages), SimpleTrainer::new()).unwrap();
    assert_eq!(weights(&trained.session), weights(&plain.session));
    assert_ne!(weights(&trained.session)[0].as_slice::<f32>().unwrap(), [AVERAGE; 3]);
}

/// Fails after the first batch.
struct Fails;

impl Inferencer for Fails {
    fn fetches(&mut self, tower: &TowerHandle) -> Result<Vec<Tensor>> {
        Ok(vec![tower.get_tensor("cost")?])
    }
    fn start(&mut self) {}
    fn batch(&mut self, _: &[HostTensor], _: usize) -> Result<()> {
        Err(Error::argument("no good"))
    }
    fn finish(&mut self) -> Vec<(String, f64)> {
        Vec::new()
    }
    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

#[test]
fn weights_are_put_back_when_inference_fails() {
    /// Compares the weights at the end with those before the pass.
    #[derive(Default)]
    struct Same(Option<[HostTensor; 2]>, Arc<AtomicU64>);
    impl Callback for Same {
        fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
            self.0 = Some(weights(cx.session()));
            Ok(())
        }
        fn after_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
            let same = self.0 == Some(weights(cx.session()));
            self.1.store(if same { 1 } else { 2 }, Ordering::Relaxed);
            Ok(())
        }
    }
    let same = Arc::new(AtomicU64::new(0));
    let runner = InferenceRunner::new(line(3), [Fails]).on_ema();
    let config = config(WithAverages).callback(runner).callback(Same(None, same.clone()));
    let e = launch_train_with_config(config, SimpleTrainer::new()).err().unwrap();
    assert!(e.message().contains("InferenceRunner(InferenceTower): batch 0: no good"), "{e}");
    assert_eq!(same.load(Ordering::Relaxed), 1);
}

#[test]
fn averages_that_are_not_there_are_an_error() {
    let runner = InferenceRunner::new(line(3), [ScalarStats::new("cost")]).on_ema();
    let e = launch_train_with_config(config(Line).callback(runner), SimpleTrainer::new()).err().unwrap();
    assert!(e.to_string().contains("no moving averages") && e.to_string().contains("Ema"), "{e}");
}

#[test]
fn a_smaller_last_batch_counts_by_its_size() {
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

#[test]
fn validation_is_tried_before_training() {
    /// What was put and read before the first epoch.
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
    assert!(e.message().contains("before training: batch 0: no good"), "{e}");
}
