//! The time a step waits for data, by kind of input.

use std::time::{Duration, Instant};
use tensorpack::callback::TrainCx;
use tensorpack::dataflow::{ComponentSpec, DataFlow, FakeData};
use tensorpack::input::{DummyConstantInput, FeedInput, InputSource, QueueInput};
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;

const BATCH: usize = 128;

/// An MLP whose step takes a few milliseconds.
struct Perceptron;

impl ModelDesc for Perceptron {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None, Some(784)])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let hidden = Linear::new(512).relu();
        let x = hidden.apply(t, "fc0", &inputs[0]);
        let x = hidden.apply(t, "fc1", &x);
        Linear::new(10).apply(t, "fc2", &x).square().mean().named("cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(1e-3).boxed()
    }
}

/// Measures the median time of the steps after the warm-up.
struct Clock {
    last: Option<Instant>,
    seconds: Vec<f64>,
    median: std::sync::mpsc::Sender<f64>,
}

impl Callback for Clock {
    fn trigger_step(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        let now = Instant::now();
        self.seconds.extend(self.last.map(|last| (now - last).as_secs_f64()));
        self.last = Some(now);
        Ok(())
    }

    fn after_train(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        let mut late = self.seconds.split_off(self.seconds.len().min(5));
        late.sort_by(f64::total_cmp);
        // The receiver is gone if the measurement failed; ignore the send error.
        let _ = self.median.send(late.get(late.len() / 2).copied().unwrap_or(f64::NAN));
        Ok(())
    }
}

fn step_seconds(input: impl InputSource + 'static, steps: u64) -> Result<f64> {
    let (median, result) = std::sync::mpsc::channel();
    let config = TrainConfig::with_input(Perceptron, input)
        .callback(Clock { last: None, seconds: Vec::new(), median })
        .session(SessionOptions { threads: Some(1), ..SessionOptions::default() })
        .steps_per_epoch(steps)
        .max_epoch(1)
        .no_logdir();
    launch_train_with_config(config, SimpleTrainer::new())?;
    result.recv().map_err(|_| Error::argument("no step was measured"))
}

/// `bench -- input [--steps N] [--json]`: a pipeline that sleeps for 80 % of a step, with a queue and
/// with a feed, against constant data.
pub(crate) fn measure(steps: u64, json: bool) -> Result<()> {
    let dummy = || DummyConstantInput::new([vec![BATCH, 784]]);
    let wait = Duration::from_secs_f64(0.8 * step_seconds(dummy(), steps)?);
    let waiting = || {
        FakeData::new(1000, [ComponentSpec::new(DType::F32, [BATCH, 784])]).constant().map(move |sample| {
            std::thread::sleep(wait);
            Ok(sample)
        })
    };
    // Interleaved, so that a slow minute of the machine affects all of them.
    let mut rounds: Vec<[f64; 3]> = Vec::new();
    for _ in 0..3 {
        let queue = step_seconds(QueueInput::new(waiting()), steps)?;
        let feed = step_seconds(FeedInput::new(waiting()), steps)?;
        rounds.push([step_seconds(dummy(), steps)?, queue, feed]);
    }
    let best = |i: usize| rounds.iter().map(|r| r[i]).fold(f64::INFINITY, f64::min) * 1e3;
    let [dummy, queue, feed] = [0, 1, 2].map(best);
    let wait = wait.as_secs_f64() * 1e3;
    if json {
        println!(
            "{{\"wait_ms\":{wait:.3},\"dummy_ms\":{dummy:.3},\"queue_ms\":{queue:.3},\"feed_ms\":{feed:.3},\
             \"queue_over_dummy\":{:.4}}}",
            queue / dummy
        );
    } else {
        println!(
            "data wait {wait:.2} ms; step on constants {dummy:.2} ms, with a queue {queue:.2} ms ({:.3} times), \
             with a feed {feed:.2} ms",
            queue / dummy
        );
    }
    Ok(())
}
