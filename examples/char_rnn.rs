//! A character-level language model on the Penn Treebank: an LSTM with the hyper-parameters of
//! Tensorpack's `char-rnn.py`. Two layers of 256 units read windows of 50 characters.
//!
//! `cargo run --release --example char_rnn` downloads the text, or generates sentences if that fails. It
//! trains for 4 epochs of 250 steps, reaches 1.939 bits per character on the validation set, and
//! prints a sample of generated text; with `--assert` it fails above 2 bits. `--full` is the original's
//! schedule. `--text FILE` trains on a text of your own.
//!
//! `--sample --load train_log/char_rnn --start "the company "` only generates text. The state of the LSTM
//! goes from character to character, so the work for a character does not depend on how many came before.

mod text;

use clap::Parser;
use std::path::{Path, PathBuf};
use tensorpack::dataflow::DataFlow;
use tensorpack::io::{SaverRestore, SessionInit};
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::tensor::CounterRng;
use tensorpack::tower::TowerFunc;
use tensorpack::train::TrainArgs;
use text::Alphabet;

/// The number of units of each layer.
const UNITS: usize = 256;
/// The length of a window in characters.
pub(crate) const LENGTH: usize = 50;
const BATCH: usize = 128;
const LAYERS: usize = 2;
/// The most bits per character on the validation set that `--assert` accepts.
const TARGET: f64 = 2.0;

/// The network, for an alphabet of this size.
#[derive(Clone, Copy)]
pub(crate) struct CharRnn {
    pub(crate) characters: usize,
    pub(crate) units: usize,
}

impl CharRnn {
    /// Returns logits of the next characters for `text [batch, time]`, and the state after the last one.
    /// The LSTM starts from `state`, or from zeros.
    pub(crate) fn logits(
        &self,
        t: &TowerContext,
        text: &Tensor,
        state: Option<&[LstmState]>,
    ) -> (Tensor, Vec<LstmState>) {
        let mut x =
            Embedding::new(self.characters, self.units).init(Init::xavier()).apply(t, "embedding", text);
        let mut last = Vec::new();
        for layer in 0..LAYERS {
            let before = state.map(|state| &state[layer]);
            let (y, after) = Lstm::new(self.units).apply(t, &format!("lstm{layer}"), &x, before);
            x = y;
            last.push(after);
        }
        (Linear::new(self.characters).last_axis().init(Init::xavier()).apply(t, "fc", &x), last)
    }
}

pub(crate) struct Model {
    pub(crate) rnn: CharRnn,
    pub(crate) rate: Schedule,
}

impl ModelDesc for Model {
    fn inputs(&self) -> Vec<TensorSpec> {
        ["text", "next"].map(|name| TensorSpec::i32(name, [None, Some(LENGTH)])).into()
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let (text, next) = (&inputs[0], &inputs[1]);
        let logits = self.rnn.logits(t, text, None).0.named("logits");
        let cost = logits.sparse_softmax_cross_entropy(next).mean().named("cost");
        let bits = (&cost / std::f64::consts::LN_2).named("bits_per_character");
        t.moving_summary(&[&bits]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(self.rate.clone()).process(GlobalNormClip::new(5.0)).boxed()
    }
}

/// A model that continues a text, one character at a time.
pub(crate) struct Generator {
    /// From a character and the state to the logits of the next one and the next state.
    step: OfflinePredictor,
    /// `c` and `h` of each layer.
    state: Vec<HostTensor>,
}

impl Generator {
    /// Creates a generator with an empty text and these weights.
    pub(crate) fn new(rnn: CharRnn, weights: impl SessionInit + 'static) -> Result<Generator> {
        let names: Vec<String> = (0..LAYERS).flat_map(|i| [format!("c{i}"), format!("h{i}")]).collect();
        let after: Vec<String> = names.iter().map(|name| format!("{name}_after")).collect();
        let mut inputs = vec![TensorSpec::i32("character", [None, Some(1)])];
        inputs.extend(names.iter().map(|name| TensorSpec::f32(name, [None, Some(rnn.units)])));
        let outputs = [vec!["logits".to_string()], after.clone()].concat();
        let tower = TowerFunc::new(inputs, move |t, inputs| {
            let state = |pair: &[Tensor]| LstmState { c: pair[0].clone(), h: pair[1].clone() };
            let before: Vec<LstmState> = inputs[1..].chunks(2).map(state).collect();
            let (logits, last) = rnn.logits(t, &inputs[0], Some(&before));
            let last = last.into_iter().flat_map(|state| [state.c, state.h]);
            let last = after.iter().zip(last).map(|(name, state)| state.named(name));
            [logits.named("logits")].into_iter().chain(last).collect()
        })?;
        let step = OfflinePredictor::new(PredictConfig::from_tower(tower, outputs).session_init(weights))?;
        let zeros = HostTensor::zeros(DType::F32, [1, rnn.units])?;
        Ok(Generator { step, state: vec![zeros; 2 * LAYERS] })
    }

    /// Appends a character. Returns the logits of the next one.
    pub(crate) fn append(&mut self, character: i32) -> Result<Vec<f64>> {
        let character = HostTensor::new([1, 1], vec![character])?;
        let inputs: Vec<&HostTensor> = [&character].into_iter().chain(&self.state).collect();
        let mut outputs = self.step.predict(&inputs)?;
        self.state = outputs.split_off(1);
        Ok(outputs[0].to_f64_vec())
    }

    /// Continues `start` by `length` characters, drawn from the softmax of the logits divided by
    /// `temperature`.
    pub(crate) fn generate(
        mut self,
        start: &[i32],
        length: usize,
        temperature: f64,
        seed: u64,
    ) -> Result<Vec<i32>> {
        let rng = CounterRng::new(seed, "text");
        let mut text = Vec::new();
        let mut logits = Vec::new();
        for i in 0..start.len() + length {
            let next = match start.get(i) {
                Some(&given) => given,
                None => text::draw(&logits, temperature, rng.uniform(0, i as u64)) as i32,
            };
            logits = self.append(next)?;
            text.push(next);
        }
        Ok(text)
    }
}

/// The options of training that `--sample` would ignore. Those for the run's directory and its log do no harm.
const TRAINING: [&str; 14] = [
    "--max-epoch",
    "--steps-per-epoch",
    "--steps-per-launch",
    "--trainer",
    "--devices",
    "--threads-per-device",
    "--precision",
    "--memory-limit",
    "--find-batch",
    "--full",
    "--assert",
    "--summary",
    "--dry-run",
    "--overfit",
];

/// Trains a character-level LSTM on the Penn Treebank or another text, and generates text.
#[derive(Parser)]
pub(crate) struct Args {
    #[command(flatten)]
    train: TrainArgs,
    /// A text to train on instead of the Treebank; its last tenth is held out.
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Only generate text, with the weights of --load.
    #[arg(long)]
    sample: bool,
    /// The beginning of the generated text.
    #[arg(long, value_name = "TEXT", default_value = "the ")]
    start: String,
    /// The number of characters to generate.
    #[arg(long, value_name = "N", default_value_t = 300)]
    length: usize,
    /// How surprising they are: 0.1 for the most probable, 1 for samples of the model's distribution.
    #[arg(long, value_name = "T", default_value_t = 1.0)]
    temperature: f64,
}

impl Args {
    /// Returns an error if an option has no meaning.
    pub(crate) fn check(&self) -> Result<()> {
        if self.sample {
            self.train.without(&TRAINING).map_err(|e| e.note("--sample only generates text"))?;
        }
        if self.temperature.is_nan() || self.temperature <= 0.0 {
            return Err(Error::argument("--temperature must be positive"));
        }
        Ok(())
    }

    /// Returns the text to train on, and the text that is held out.
    fn texts(&self) -> Result<[String; 2]> {
        let Some(path) = &self.text else { return text::treebank(self.train.assert) };
        if self.train.assert {
            return Err(Error::argument("--assert does not apply to --text: the result is the Treebank's"));
        }
        let text = std::fs::read_to_string(path)
            .map_err(|e| Error::argument(format!("cannot read the text {}: {e}", path.display())))?;
        let characters = text.chars().count();
        let split = text.char_indices().nth(characters - characters / 10).map_or(text.len(), |(at, _)| at);
        if characters / 10 <= LENGTH {
            let why = format!("{} has only {characters} characters", path.display());
            return Err(Error::argument(why).note(format!("it needs {}", 10 * (LENGTH + 1))));
        }
        Ok([text[..split].to_string(), text[split..].to_string()])
    }

    /// Prints generated text, with the weights in a checkpoint or a run directory.
    fn print_sample(&self, rnn: CharRnn, start: &[i32], alphabet: &Alphabet, weights: &Path) -> Result<()> {
        let seed = self.train.seed.unwrap_or(0);
        let generator = Generator::new(rnn, SaverRestore::new(weights))?;
        say!("{}", alphabet.text(&generator.generate(start, self.length, self.temperature, seed)?));
        Ok(())
    }
}

fn main() -> Result<()> {
    let args: Args = tensorpack::command_line::parse_without(&["--fake", "--find-lr"])?;
    args.check()?;
    let texts = args.texts()?;
    let alphabet = Alphabet::of(&texts);
    // An untrained LSTM has seen nothing, so there must be something to continue.
    let start = alphabet.indices(if args.start.is_empty() { "\n" } else { &args.start })?;
    let rnn = CharRnn { characters: alphabet.len(), units: UNITS };
    if args.sample {
        let load = args.train.load.as_deref();
        let load =
            load.ok_or_else(|| Error::argument("--sample needs --load, a run directory or a checkpoint"))?;
        return args.print_sample(rnn, &start, &alphabet, load);
    }

    // The original draws 100,000 windows per epoch, and lowers the rate after half of 50 epochs.
    let (epochs, steps, constant) =
        if args.train.full { (50, 100_000 / BATCH as u64, 25) } else { (4, 250, 3) };
    let rate = Schedule::piecewise(2e-3, [(constant * steps, 2e-4)]);
    // Windows start anywhere in the training text, and follow each other in the other one.
    let train = text::windows(alphabet.indices(&texts[0])?, LENGTH, 1).shuffle().batch(BATCH);
    let held_out = text::windows(alphabet.indices(&texts[1])?, LENGTH, LENGTH).batch(BATCH).keep_remainder();
    let config = TrainConfig::new(Model { rnn, rate }, train.prefetch(2))
        .callback(ModelSaver::new())
        .callback(InferenceRunner::new(held_out, [ScalarStats::new("bits_per_character")]))
        .callback(MinSaver::new("validation_bits_per_character"))
        .steps_per_epoch(steps)
        .max_epoch(epochs);
    let trained = args.train.configure(config)?.train()?;

    let bits = trained.monitors.latest("validation_bits_per_character");
    let bits = bits.ok_or_else(|| Error::argument("no epoch was trained"))?;
    say!("{bits:.3} bits per character on held-out text");
    if let Some(run) = trained.logdir() {
        args.print_sample(rnn, &start, &alphabet, run)?;
    }
    if args.train.assert && bits > TARGET {
        return Err(Error::argument(format!("the result is above {TARGET} bits per character")));
    }
    Ok(())
}
