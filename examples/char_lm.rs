//! A small character-level transformer on the Penn Treebank.
//!
//! `cargo run --release --example char_lm` downloads the text, or generates sentences if that fails. It
//! trains for 2 passes, reaches 1.71 bits per character on the validation set, and prints a sample of
//! generated text; with `--assert` it fails above 1.75 bits. `--full` trains for 20 passes.

mod text;

use tensorpack::dataflow::{DataFlow, FromFn};
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::tensor::CounterRng;
use tensorpack::train::TrainArgs;
use text::Alphabet;

/// The context length in characters.
pub(crate) const CONTEXT: usize = 128;
/// The most bits per character on the validation set that `--assert` accepts.
const TARGET: f64 = 1.75;
const BATCH: usize = 32;
const FEATURES: usize = 128;
const HEADS: usize = 4;
const BLOCKS: usize = 4;

pub(crate) struct Model {
    /// The size of the alphabet.
    pub(crate) characters: usize,
    /// Steps until the learning rate reaches zero.
    pub(crate) steps: u64,
}

impl Model {
    /// A pre-norm block: causal attention and a feed-forward layer, each with a residual connection.
    fn block(&self, t: &TowerContext, x: &Tensor) -> Tensor {
        let norm = LayerNorm::new().last_axis();
        let attention = MultiHeadAttention::new(HEADS).causal();
        let x = x + attention.apply(t, "attention", &norm.apply(t, "norm0", x));
        let wide = Linear::new(4 * FEATURES).last_axis().activation(Activation::Gelu);
        let hidden = wide.apply(t, "wide", &norm.apply(t, "norm1", &x));
        x + Linear::new(FEATURES).last_axis().init(Init::xavier()).apply(t, "narrow", &hidden)
    }
}

impl ModelDesc for Model {
    fn inputs(&self) -> Vec<TensorSpec> {
        ["text", "next"].map(|name| TensorSpec::i32(name, [None, Some(CONTEXT)])).into()
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let (text, next) = (&inputs[0], &inputs[1]);
        let positions = VariableSpec::new("places/W", [CONTEXT, FEATURES]).init(Init::Normal(0.0, 0.02));
        let embedding = Embedding::new(self.characters, FEATURES).init(Init::Normal(0.0, 0.02));
        let mut x = embedding.apply(t, "characters", text) + t.variable(positions).value();
        for i in 0..BLOCKS {
            x = t.scope(&format!("block{i}"), |t| self.block(t, &x));
        }
        let x = LayerNorm::new().last_axis().apply(t, "norm", &x);
        let head = Linear::new(self.characters).last_axis().init(Init::Normal(0.0, 0.02));
        let logits = head.apply(t, "head", &x).named("logits");

        let cost = logits.sparse_softmax_cross_entropy(next).mean().named("cost");
        let bits = (&cost / std::f64::consts::LN_2).named("bits_per_character");
        t.moving_summary(&[&bits]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        let rate = Schedule::cosine(2e-3, 0.0, self.steps).warm_up(100);
        // Weight decay for matrices only, not for scales, shifts and biases.
        let adamw = AdamW::new(rate).betas(0.9, 0.99).decay(0.0);
        ParamGroups::new(adamw.process(GlobalNormClip::new(1.0))).group(".*/W", |g| g.decay(0.1)).boxed()
    }
}

/// Generates text, sampling each character from the model's distribution.
fn sample_text(model: &OfflinePredictor, alphabet: &Alphabet, length: usize, seed: u64) -> Result<String> {
    let rng = CounterRng::new(seed, "written");
    // Start at the beginning of a line.
    let mut text = alphabet.indices("\n")?;
    for i in 0..length {
        let seen = &text[text.len().saturating_sub(CONTEXT)..];
        // Attention is causal: the padding after the last character has no effect.
        let mut input = vec![0; CONTEXT];
        input[..seen.len()].copy_from_slice(seen);
        let logits = model.predict(&[&HostTensor::new([1, CONTEXT], input)?])?[0].to_f64_vec();
        let logits = &logits[(seen.len() - 1) * alphabet.len()..][..alphabet.len()];
        text.push(text::draw(logits, 1.0, rng.uniform(0, i as u64)) as i32);
    }
    Ok(alphabet.text(&text[1..]))
}

fn main() -> Result<()> {
    let args = TrainArgs::parse_program(
        "Trains a small character-level transformer on the Penn Treebank",
        &["--fake", "--find-lr"],
    )?;
    let texts = text::treebank(args.assert)?;
    let alphabet = Alphabet::of(&texts);
    // Consecutive windows.
    let windows =
        |text: &str| -> Result<FromFn> { Ok(text::windows(alphabet.indices(text)?, CONTEXT, CONTEXT)) };
    let flow = windows(&texts[0])?.shuffle().batch(BATCH);
    let passes = if args.full { 20 } else { 2 };
    let model = Model { characters: alphabet.len(), steps: passes * flow.size().unwrap_or(1) };
    let validation = windows(&texts[1])?.batch(BATCH).keep_remainder();
    let config = TrainConfig::new(model, flow)
        .callback(PeriodicTrigger::new(ModelSaver::new()).every_k_steps(500).every_k_epochs(1))
        .callback(InferenceRunner::new(validation, [ScalarStats::new("bits_per_character")]))
        .callback(MinSaver::new("validation_bits_per_character"))
        .max_epoch(passes);
    let trained = args.configure(config)?.train()?;

    let bits = trained.monitors.latest("validation_bits_per_character");
    let bits = bits.ok_or_else(|| Error::argument("no epoch was trained"))?;
    say!("{bits:.3} bits per character on the validation set");
    let model = trained.get_predictor(&["text"], &["logits"])?;
    say!("{}", sample_text(&model, &alphabet, 300, args.seed.unwrap_or(0))?);
    if args.assert && bits > TARGET {
        return Err(Error::argument(format!("the validation result is above {TARGET} bits per character")));
    }
    Ok(())
}
