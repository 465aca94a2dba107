//! The cost of a data pipeline per training step: images in memory that are batched, queued and sent
//! to the device, against constant images on the device.

use crate::StepArgs;
use crate::classifier::Classifier;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;
use tensorpack::callback::TrainCx;
use tensorpack::dataflow::{DataFlow, FromList};
use tensorpack::input::{DummyConstantInput, InputSource, QueueInput};
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;
use tensorpack::train::SingleCostTrainer;

/// Warm-up steps.
const WARM_UP: usize = 5;
/// The number of distinct batches.
const BATCHES: usize = 4;

/// A reference model on u8 images, which are converted on the device.
struct ByteImages {
    classifier: Classifier,
    dtype: DType,
}

impl ModelDesc for ByteImages {
    fn inputs(&self) -> Vec<TensorSpec> {
        let mut inputs = self.classifier.inputs();
        inputs[0].dtype = DType::U8;
        inputs
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let image = inputs[0].cast(DType::F32) / 127.5 - 1.0;
        let cost = self.classifier.cost(t, &[image, inputs[1].clone()], self.dtype);
        t.moving_summary(&[&cost]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        self.classifier.optimizer()
    }
}

/// Measures the mean time of a step.
struct Clock {
    at: Vec<Instant>,
    seconds: Sender<f64>,
}

impl Callback for Clock {
    fn trigger_step(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        self.at.push(Instant::now());
        Ok(())
    }

    fn after_train(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        // Only the last step of an epoch waits for its results.
        if let [first, .., last] = self.at[WARM_UP.min(self.at.len())..self.at.len().saturating_sub(1)] {
            let steps = self.at.len() - WARM_UP - 2;
            // The receiver is gone if the measurement failed; ignore the send error.
            let _ = self.seconds.send((last - first).as_secs_f64() / steps as f64);
        }
        Ok(())
    }
}

fn step_seconds(args: &StepArgs, classifier: &Classifier, input: impl InputSource + 'static) -> Result<f64> {
    let (seconds, result) = channel();
    let model = ByteImages { classifier: classifier.clone(), dtype: args.dtype };
    let config = TrainConfig::with_input(model, input)
        .callback(Clock { at: Vec::new(), seconds })
        .session(SessionOptions {
            device: args.devices[0],
            threads: args.threads,
            ..SessionOptions::default()
        })
        .steps_per_epoch((args.steps + WARM_UP + 2) as u64)
        .max_epoch(1)
        .no_logdir();
    let trainer: SingleCostTrainer = match args.devices[..] {
        [_] => SimpleTrainer::new().into(),
        _ => SyncMultiGpuTrainerReplicated::on(args.devices.iter().copied()).into(),
    };
    launch_train_with_config(config, trainer)?;
    result.recv().map_err(|_| Error::argument("no step was measured"))
}

/// Synthetic images with labels.
fn images(classifier: &Classifier, count: usize) -> Result<FromList> {
    let rng = CounterRng::new(0, "images");
    let len = classifier.sizes.iter().product::<usize>();
    let words = len.div_ceil(4) as u64;
    let sample = |i: u64| {
        let bytes = (0..words).flat_map(|w| rng.word(i, w).to_le_bytes()).take(len).collect::<Vec<u8>>();
        let label = (i % classifier.classes as u64) as i32;
        Ok(vec![HostTensor::new(classifier.sizes, bytes)?, HostTensor::scalar(label)])
    };
    Ok(FromList::new((0..count as u64).map(sample).collect::<Result<_>>()?))
}

/// Trains twice: on constant images, and on those of a dataflow.
pub(crate) fn measure(args: &StepArgs) -> Result<()> {
    let name = args.model.name();
    let classifier = Classifier::from_model(args.model)
        .ok_or_else(|| Error::argument(format!("{name} does not support --input dataflow")))?;
    let batch = args.batch.unwrap_or(args.model.batch());
    let image: Vec<usize> = std::iter::once(batch).chain(classifier.sizes.iter().copied()).collect();
    let constant = step_seconds(args, &classifier, DummyConstantInput::new([image, vec![batch]]))?;
    let flow = images(&classifier, BATCHES * batch)?.shuffle().batch(batch);
    let dataflow = step_seconds(args, &classifier, QueueInput::new(flow).capacity(BATCHES))?;
    let devices = args.devices.iter().map(Device::to_string).collect::<Vec<_>>().join(",");
    let rate = (batch * args.devices.len()) as f64 / dataflow;
    let (ms, constant_ms, ratio) = (dataflow * 1e3, constant * 1e3, dataflow / constant);
    if args.json {
        println!(
            "{{\"model\":\"{name}\",\"input\":\"dataflow\",\"devices\":\"{devices}\",\"dtype\":\"{}\",\
             \"batch\":{batch},\"steps\":{},\"ms_per_step\":{ms:.4},\"constant_ms_per_step\":{constant_ms:.4},\
             \"over_constant\":{ratio:.4},\"examples_per_s\":{rate:.1}}}",
            args.dtype, args.steps
        );
    } else {
        println!(
            "{name} on {devices}, batch {batch} of a dataflow: {ms:.3} ms per step, {rate:.0} examples/s; on constant \
             images {constant_ms:.3} ms ({ratio:.3} times)"
        );
    }
    Ok(())
}
