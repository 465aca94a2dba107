//! The cost of a data pipeline per training step: images in memory that are batched, queued and sent
//! to the device, against constant images on the device.

use crate::classifier::Classifier;
use crate::{StepArgs, Trainer};
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;
use tensorpack::callback::TrainCx;
use tensorpack::dataflow::{DataFlow, FromList};
use tensorpack::input::{DummyConstantInput, InputSource, QueueInput};
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack::runtime::KernelTime;
use tensorpack::tensor::CounterRng;
use tensorpack::train::SingleCostTrainer;

/// Warm-up steps.
const WARM_UP: usize = 5;
/// The number of distinct batches.
const BATCHES: usize = 4;

/// A reference model on f32 images, or on u8 images that are converted on the device.
struct Images {
    classifier: Classifier,
    stored: DType,
}

impl ModelDesc for Images {
    fn inputs(&self) -> Vec<TensorSpec> {
        let mut inputs = self.classifier.inputs();
        inputs[0].dtype = self.stored;
        inputs
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let image = match self.stored {
            DType::U8 => inputs[0].cast(DType::F32) / 127.5 - 1.0,
            _ => inputs[0].clone(),
        };
        let cost = self.classifier.cost(t, &[image, inputs[1].clone()]);
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
    warm_up: usize,
    /// Steps are launched in groups of this size, so the time is that of whole groups.
    group: usize,
    seconds: Sender<f64>,
}

impl Callback for Clock {
    fn trigger_step(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        self.at.push(Instant::now());
        Ok(())
    }

    fn after_train(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        // Only the last step of an epoch waits for its results.
        let measured = self.at.len().saturating_sub(self.warm_up + 2) / self.group * self.group;
        let from = self.warm_up.min(self.at.len());
        if let Some([first, .., last]) = self.at.get(from..=from + measured) {
            let steps = measured;
            // The receiver is gone if the measurement failed; ignore the send error.
            let _ = self.seconds.send((*last - *first).as_secs_f64() / steps as f64);
        }
        Ok(())
    }
}

/// Returns the mean time of a step in the trainer's loop, and the session.
fn train(
    args: &StepArgs,
    classifier: &Classifier,
    stored: DType,
    input: impl InputSource + 'static,
) -> Result<(f64, Session)> {
    let (seconds, result) = channel();
    let model = Images { classifier: classifier.clone(), stored };
    let config = TrainConfig::with_input(model, input)
        .callback(Clock { at: Vec::new(), warm_up: warm_up(args), group: args.steps_per_launch, seconds })
        .session(SessionOptions {
            device: args.devices[0],
            threads: args.threads,
            profile: args.profile,
            ..SessionOptions::default()
        })
        .precision(args.precision)
        .steps_per_launch(args.steps_per_launch)
        .steps_per_epoch((args.steps + warm_up(args) + 2) as u64)
        .max_epoch(1)
        .no_logdir();
    let trainer: SingleCostTrainer = match args.devices[..] {
        [_] => SimpleTrainer::new().into(),
        _ => SyncMultiGpuTrainerReplicated::on(args.devices.iter().copied()).into(),
    };
    let session = launch_train_with_config(config, trainer)?.session;
    Ok((result.recv().map_err(|_| Error::argument("no step was measured"))?, session))
}

/// Returns the number of warm-up steps: those of two launches at least.
fn warm_up(args: &StepArgs) -> usize {
    WARM_UP.max(2 * args.steps_per_launch)
}

/// A step in the trainer's loop on constant images, which does not wait for the step before.
pub(crate) struct Pipelined {
    /// The mean time of a step.
    pub(crate) seconds: f64,
    /// What the host spent on launches, if that is measured.
    pub(crate) host: Vec<KernelTime>,
}

/// Measures a step in the trainer's loop on constant images; `None` if the devices run one step after
/// the other, or if the model is no classifier.
pub(crate) fn pipelined(args: &StepArgs, batch: usize) -> Result<Option<Pipelined>> {
    let is_xla = matches!(args.devices[0], Device::Xla { .. });
    let Some(classifier) = Classifier::from_model(args.model)
        .filter(|_| is_xla && !args.trainer.is_some_and(Trainer::is_distributed))
    else {
        return Ok(None);
    };
    let image: Vec<usize> = std::iter::once(batch).chain(classifier.sizes.iter().copied()).collect();
    let input = DummyConstantInput::new([image, vec![batch]]);
    let (seconds, session) = train(args, &classifier, DType::F32, input)?;
    Ok(Some(Pipelined { seconds, host: session.profile()? }))
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
    let (constant, _) = train(args, &classifier, DType::U8, DummyConstantInput::new([image, vec![batch]]))?;
    let flow = images(&classifier, BATCHES * batch)?.shuffle().batch(batch);
    let capacity = BATCHES.max(2 * args.steps_per_launch);
    let (dataflow, _) = train(args, &classifier, DType::U8, QueueInput::new(flow).capacity(capacity))?;
    let devices = args.devices.iter().map(Device::to_string).collect::<Vec<_>>().join(",");
    let rate = (batch * args.devices.len()) as f64 / dataflow;
    let (ms, constant_ms, ratio) = (dataflow * 1e3, constant * 1e3, dataflow / constant);
    if args.json {
        println!(
            "{{\"model\":\"{name}\",\"input\":\"dataflow\",\"devices\":\"{devices}\",\"precision\":\"{}\",\
             \"batch\":{batch},\"steps\":{},\"steps_per_launch\":{},\"ms_per_step\":{ms:.4},\"constant_ms_per_step\":{constant_ms:.4},\
             \"over_constant\":{ratio:.4},\"examples_per_s\":{rate:.1}}}",
            args.precision, args.steps, args.steps_per_launch
        );
    } else {
        println!(
            "{name} on {devices}, batch {batch} of a dataflow: {ms:.3} ms per step, {rate:.0} examples/s; on constant \
             images {constant_ms:.3} ms ({ratio:.3} times)"
        );
    }
    Ok(())
}
