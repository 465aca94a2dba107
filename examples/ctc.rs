//! Reads strings of one to five handwritten digits without knowing where each digit is: a small
//! convnet, a bidirectional GRU and the CTC loss.
//!
//! `cargo run --release --example ctc` draws the strings from MNIST, or from generated digits if that
//! cannot be downloaded. It trains for 4 epochs and reaches a label error of 2.2 % on MNIST; with
//! `--assert` it needs MNIST and fails above 4 %. `--full` trains for 40 epochs.

mod digits;

use digits::Digits;
use tensorpack::callback::CtcErrorRate;
use tensorpack::ctc::CtcBeamSearch;
use tensorpack::dataflow::{DataFlow, Flow, FromFn, RandomAccess, Sample, SampleRng, Seed};
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::train::TrainArgs;

const HEIGHT: usize = 28;
/// The width of an image: five digits, and what is left of them.
const WIDTH: usize = 136;
/// The columns of an image for each step of the recurrent layers.
const STRIDE: usize = 4;
/// The largest number of digits.
const DIGITS: usize = 5;
/// Steps per epoch, and examples per step.
const STEPS: u64 = 200;
const BATCH: usize = 64;
/// The largest label error that `--assert` accepts.
const TARGET: f64 = 0.04;

#[derive(Inputs)]
pub(crate) struct Batch {
    #[input(f32, [None, 28, 136])]
    image: Tensor,
    /// The steps that an image's digits take.
    #[input(i32, [None])]
    steps: Tensor,
    /// Class `d + 1` for the digit `d`; -1 after the last one. Class 0 is the blank.
    #[input(i32, [None, 5])]
    label: Tensor,
}

pub(crate) struct Reader {
    pub(crate) epochs: u64,
}

impl Model for Reader {
    type Inputs = Batch;

    fn build_graph(&self, t: &TowerContext, Batch { image, steps, label }: Batch) -> Tensor {
        let conv = Conv2d::new(16, 3).relu();
        let x = conv.apply(t, "conv0", &image.expand_dims(3)).max_pool(2);
        let x = Conv2d::new(32, 3).relu().apply(t, "conv1", &x).max_pool(2);
        // Columns become steps: [batch, steps, rows * channels].
        let x = x.transpose(&[0, 2, 1, 3]).merge_dims(2, 2);
        let x = Linear::new(64).last_axis().relu().apply(t, "columns", &x);
        let options = RecurrentOptions::default().lengths(&steps);
        let (forward, _) = Gru::new(64).apply_with(t, "forward", &x, None, &options);
        let (backward, _) = Gru::new(64).apply_with(t, "backward", &x, None, &options.reverse());
        let x = t.graph().concat(&[forward, backward], 2);
        let logits = Linear::new(11).last_axis().apply(t, "fc", &x).named("logits");

        let lengths = label.greater_equal(0.0).cast(DType::I32).sum_axes(&[1]);
        let loss = logits.ctc_loss(&label, &steps, &lengths, &CtcOptions::default());
        let cost = loss.mean().named("ctc_loss");
        t.moving_summary(&[&cost]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(Schedule::cosine(2e-3, 0.0, self.epochs * STEPS)).process(GlobalNormClip::new(5.0)).boxed()
    }
}

/// Draws a string: its image, the steps it takes, and its labels.
fn string(source: &Digits, rng: &mut SampleRng) -> Result<Sample> {
    let mut image = vec![0f32; HEIGHT * WIDTH];
    let mut labels = vec![-1; DIGITS];
    let count = 1 + rng.below(DIGITS as u64) as usize;
    let (mut left, mut end) = (rng.below(4) as usize, 0);
    for label in &mut labels[..count] {
        let digit = source.get(rng.below(source.len()))?;
        for (from, to) in digit[0].as_slice::<f32>()?.chunks(HEIGHT).zip(image.chunks_mut(WIDTH)) {
            // Neighbors may overlap a little.
            to[left..].iter_mut().zip(from).for_each(|(to, from)| *to = to.max(*from));
        }
        *label = digit[1].to_scalar()? as i32 + 1;
        end = left + HEIGHT;
        left += 20 + rng.below(7) as usize;
    }
    let steps = end.div_ceil(STRIDE) as i32;
    Ok(vec![
        HostTensor::new([HEIGHT, WIDTH], image)?,
        HostTensor::scalar(steps),
        HostTensor::new([DIGITS], labels)?,
    ])
}

/// Returns training strings, which are new in every epoch, and 1,000 test strings.
fn strings([train, test]: [Digits; 2]) -> [Flow; 2] {
    let nothing = FromFn::new(STEPS * BATCH as u64, |_| Ok(Vec::new()));
    let train = nothing.map_random(move |_, rng| string(&train, rng));
    let seed = Seed::new(0).derive("test strings");
    let test = FromFn::new(1000, move |i| string(&test, &mut seed.rng(0, i)));
    [train.into_flow(), test.into_flow()]
}

/// Writes the digits of class numbers.
fn text(labels: impl IntoIterator<Item = usize>) -> String {
    labels.into_iter().map(|label| (label - 1).to_string()).collect()
}

fn main() -> Result<()> {
    let args =
        TrainArgs::parse_program("Reads strings of handwritten digits with CTC", &["--fake", "--find-lr"])?;
    let [train, test] = strings(digits::load(args.assert)?);
    let error = CtcErrorRate::new("logits", "steps", "label").prefix("val");
    let runner = InferenceRunner::new(test.clone().batch(200), [ScalarStats::new("ctc_loss").prefix("val")]);
    let epochs = if args.full { 40 } else { 4 };
    let config = TrainConfig::new(Reader { epochs }, train.batch(BATCH))
        .callback(ModelSaver::new())
        .callback(runner.with(error))
        .callback(MinSaver::new("val_label_error"))
        .max_epoch(epochs);
    let trained = args.configure(config)?.train()?;

    let error = trained.monitors.latest("val_label_error");
    let error = error.ok_or_else(|| Error::argument("no epoch was trained"))?;
    let model = trained.get_predictor(&["image", "steps"], &["logits"])?;
    let mut reader = test.batch(5).open(Seed::new(0), &Default::default())?;
    if let Some(batch) = reader.read()? {
        let logits = model.predict(&[&batch[0], &batch[1]])?.remove(0);
        let found = CtcBeamSearch::new(10).decode(&logits, &batch[1])?;
        for (found, label) in found.iter().zip(batch[2].as_slice::<i32>()?.chunks(DIGITS)) {
            let label = text(label.iter().filter(|&&label| label > 0).map(|&label| label as usize));
            say!("{label} was read as {}", text(found[0].labels.iter().copied()));
        }
    }
    say!("label error {:.2} %", 100.0 * error);
    if args.assert && error > TARGET {
        return Err(Error::argument(format!("the label error is above {:.1} %", 100.0 * TARGET)));
    }
    Ok(())
}
