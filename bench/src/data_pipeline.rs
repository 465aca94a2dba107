//! The cost of a data pipeline per training step: images in memory that are batched, queued and sent
//! to the device, against constant images on the device.

use crate::classifier::Classifier;
use crate::models::Model;
use crate::shown_cost::ShownCost;
use crate::transformer::{LanguageModel, TOKENS};
use crate::{StepArgs, Trainer};
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;
use tensorpack::callback::{Profiler, TrainCx};
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
/// The number of steps of a timeline.
const TIMELINE_STEPS: u64 = 10;

/// A classifier of u8 images, which are converted on the device.
struct StoredImages(Classifier);

impl ModelDesc for StoredImages {
    fn inputs(&self) -> Vec<TensorSpec> {
        let mut inputs = self.0.inputs();
        inputs[0].dtype = DType::U8;
        inputs
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let image = inputs[0].cast(DType::F32) / 127.5 - 1.0;
        self.0.build_graph(t, &[image, inputs[1].clone()])
    }

    fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer> {
        self.0.optimizer(t)
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
    model: impl ModelDesc + 'static,
    input: impl InputSource + 'static,
) -> Result<(f64, Session)> {
    let (seconds, result) = channel();
    let config = TrainConfig::with_input(ShownCost(model), input)
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
        .max_epoch(1);
    let config = match &args.timeline {
        Some(dir) => {
            let first = warm_up(args) as u64 + 1;
            config.callback(Profiler::steps(first..=first + TIMELINE_STEPS - 1)).logdir(dir)
        }
        None => config.no_logdir(),
    };
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

/// A step in the trainer's loop on constant inputs, which does not wait for the step before.
pub(crate) struct Pipelined {
    /// The mean time of a step.
    pub(crate) seconds: f64,
    /// What the host spent on launches, if that is measured.
    pub(crate) host: Vec<KernelTime>,
}

/// Whether [`pipelined`] measures the trainer's loop: not if the devices run one step after the other, and
/// not if the model is neither a classifier nor the transformer.
pub(crate) fn is_pipelined(args: &StepArgs) -> bool {
    let is_xla = matches!(args.devices[0], Device::Xla { .. });
    let is_measured = args.model == Model::Transformer || Classifier::from_model(args.model).is_some();
    is_xla && is_measured && !args.trainer.is_some_and(Trainer::is_distributed)
}

/// Measures a step in the trainer's loop on constant inputs, if it [can](is_pipelined).
pub(crate) fn pipelined(args: &StepArgs, batch: usize) -> Result<Option<Pipelined>> {
    if !is_pipelined(args) {
        return Ok(None);
    }
    let (seconds, session) = match Classifier::from_model(args.model) {
        Some(classifier) => {
            let input = constant_images(&classifier, batch);
            train(args, classifier, input)?
        }
        None => train(args, LanguageModel, DummyConstantInput::new([[batch, TOKENS]; 2].map(Vec::from)))?,
    };
    Ok(Some(Pipelined { seconds, host: session.profile()? }))
}

fn constant_images(classifier: &Classifier, batch: usize) -> DummyConstantInput {
    let image: Vec<usize> = std::iter::once(batch).chain(classifier.sizes.iter().copied()).collect();
    DummyConstantInput::new([image, vec![batch]])
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
    let input = constant_images(&classifier, batch);
    let (constant, _) = train(args, StoredImages(classifier.clone()), input)?;
    let flow = images(&classifier, BATCHES * batch)?.shuffle().batch(batch);
    let capacity = BATCHES.max(2 * args.steps_per_launch);
    let (dataflow, _) = train(args, StoredImages(classifier), QueueInput::new(flow).capacity(capacity))?;
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
