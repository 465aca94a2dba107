//! Batches are on the device before the step that uses them, and are freed after it.

use crate::device;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tensorpack::dataflow::FromFn;
use tensorpack::input::{InputSource, QueueInput, Start};
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack::runtime::Staging;

/// A model whose input is u8 images.
struct ByteImages;

impl ModelDesc for ByteImages {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::new("image", DType::U8, [None, Some(12)]), TensorSpec::i32("label", [None])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let x = inputs[0].cast(DType::F32) / 255.0;
        Linear::new(3).apply(t, "fc", &x).sparse_softmax_cross_entropy(&inputs[1]).mean().named("cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(0.1).boxed()
    }
}

fn batches() -> FromFn {
    FromFn::new(1000, |index| {
        let image: Vec<u8> = (0..48).map(|i| (index * 7 + i * 5) as u8).collect();
        let label = (0..4).map(|i| ((index + i) % 3) as i32).collect();
        Ok(vec![HostTensor::new([4, 12], image)?, HostTensor::new([4], label)?])
    })
}

/// A queue that checks that each batch is on the device when it is returned, and gone when the next
/// one is.
struct CheckedQueue {
    queue: QueueInput,
    staging: Option<Staging>,
    before: Vec<HostTensor>,
    batches: Arc<AtomicUsize>,
}

impl InputSource for CheckedQueue {
    fn size(&self) -> Option<u64> {
        self.queue.size()
    }

    fn tensors(&mut self, t: &TowerContext, signature: &[TensorSpec]) -> Result<Vec<Tensor>> {
        self.queue.tensors(t, signature)
    }

    fn start(&mut self, start: Start<'_>) -> Result<()> {
        self.staging = start.staging.cloned();
        self.queue.start(start)
    }

    fn next(&mut self) -> Result<&[(String, HostTensor)]> {
        let feeds = self.queue.next()?;
        let staging = self.staging.as_ref().expect("XLA devices support staging");
        assert!(
            feeds.iter().all(|(_, value)| staging.holds(value, 0)),
            "a batch was not prefetched to the device"
        );
        assert!(!self.before.iter().any(|value| staging.holds(value, 0)), "a used batch was not freed");
        self.before = feeds.iter().map(|(_, value)| value.clone()).collect();
        self.batches.fetch_add(1, Ordering::Relaxed);
        Ok(feeds)
    }

    fn state(&self) -> Value {
        self.queue.state()
    }

    fn stop(&mut self) {
        self.queue.stop();
    }
}

fn train(device: Device, input: impl InputSource + 'static) -> Vec<f64> {
    let config = TrainConfig::with_input(ByteImages, input)
        .session(SessionOptions { device, full_precision: true, ..SessionOptions::default() })
        .steps_per_epoch(5)
        .max_epoch(2)
        .no_logdir();
    let session = launch_train_with_config(config, SimpleTrainer::new()).unwrap().session;
    session.read("fc/W").unwrap().to_f64_vec()
}

#[test]
fn the_next_batch_is_transferred_while_a_step_runs() {
    let Some(device) = device() else { return };
    let taken = Arc::new(AtomicUsize::new(0));
    let queue = QueueInput::new(batches()).capacity(3);
    let input = CheckedQueue { queue, staging: None, before: Vec::new(), batches: taken.clone() };
    let found = train(device, input);
    assert_eq!(taken.load(Ordering::Relaxed), 10);
    let right = train(Device::Cpu(0), QueueInput::new(batches()));
    for (a, b) in found.iter().zip(&right) {
        assert!((a - b).abs() <= 1e-5, "{found:?}, on the CPU engine {right:?}");
    }
}

#[test]
fn a_run_uses_the_staged_feeds() {
    let Some(device) = device() else { return };
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [None]));
    graph.placeholder(&TensorSpec::f32("unused", [None]));
    let total = x.sum();
    let options = SessionOptions { device, ..SessionOptions::default() };
    let session = Session::with(graph.freeze().unwrap(), options).unwrap();
    let staging = session.staging().unwrap().expect("XLA devices support staging");
    let value = |x: f32| HostTensor::new([2], vec![x, 1.0]).unwrap();
    let (a, b) = (value(2.0), value(5.0));
    for x in [&a, &b] {
        staging.send(x, 0).unwrap();
        assert!(staging.holds(x, 0) && staging.holds(&x.clone(), 0) && !staging.holds(&value(2.0), 0));
    }
    let sum =
        |x: &HostTensor| session.run(&[&total], &[("x", x), ("unused", &b)]).unwrap()[0].to_scalar().unwrap();
    assert_eq!(sum(&a), 3.0);
    // Feeds that the run does not need are freed too.
    assert!(!staging.holds(&a, 0) && !staging.holds(&b, 0));
    assert_eq!([sum(&b), sum(&a)], [6.0, 3.0]);
    assert!(Session::new(Graph::new().freeze().unwrap()).unwrap().staging().unwrap().is_none());
}
