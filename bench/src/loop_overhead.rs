//! The overhead of the training loop around a step.

use std::time::Instant;
use tensorpack::callback::TrainCx;
use tensorpack::input::DummyConstantInput;
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;

/// A tiny model; on the null device its steps compute nothing.
struct TinyModel;

impl ModelDesc for TinyModel {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None, Some(4)])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let cost = Linear::new(1).apply(t, "fc", &inputs[0]).mean().named("cost");
        t.moving_summary(&[&cost]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(0.1).boxed()
    }
}

/// Records the time of every step in preallocated memory.
struct Clock {
    last: Option<Instant>,
    nanoseconds: Vec<u32>,
    json: bool,
}

impl Callback for Clock {
    fn trigger_step(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        let now = Instant::now();
        if let Some(last) = self.last {
            self.nanoseconds.push((now - last).as_nanos().min(u128::from(u32::MAX)) as u32);
        }
        self.last = Some(now);
        Ok(())
    }

    fn after_train(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        let steps = self.nanoseconds.len();
        let mean = self.nanoseconds.iter().map(|&n| f64::from(n)).sum::<f64>() / steps.max(1) as f64 / 1e3;
        self.nanoseconds.sort_unstable();
        let median = self.nanoseconds.get(steps / 2).map_or(0.0, |&n| f64::from(n) / 1e3);
        if self.json {
            println!("{{\"steps\":{steps},\"median_us\":{median:.3},\"mean_us\":{mean:.3}}}");
        } else {
            println!("{steps} steps: median {median:.3} us, mean {mean:.3} us");
        }
        Ok(())
    }
}

/// `bench -- loop [--steps N] [--json]`: the null device, default callbacks and monitors.
pub(crate) fn measure(steps: u64, json: bool) -> Result<()> {
    let dir = std::env::temp_dir().join(format!("tensorpack-loop-{}", std::process::id()));
    let clock = Clock { last: None, nanoseconds: Vec::with_capacity(steps as usize), json };
    let config = TrainConfig::with_input(TinyModel, DummyConstantInput::new([vec![8, 4]]))
        .callback(clock)
        .session(SessionOptions { device: Device::Null, ..SessionOptions::default() })
        .steps_per_epoch(steps.div_ceil(10))
        .max_epoch(10)
        .logdir(&dir);
    let trained = launch_train_with_config(config, SimpleTrainer::new());
    std::fs::remove_dir_all(&dir)?;
    trained?;
    Ok(())
}
