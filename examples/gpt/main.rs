//! A GPT on a dictionary: 22 MB of text, one line for each word and its definition.
//!
//! `cargo run --release --example gpt` downloads Webster's Unabridged English Dictionary, or generates
//! sentences if that fails. It trains a model of 0.85 million parameters on 6 million bytes and reaches
//! 2.216 bits per byte on entries that it has not seen; with `--assert` it fails above 2.3. Then it makes
//! up three entries. `--prompt "tensor: "` asks for definitions of a word, `--temperature` for more or less
//! surprising ones; after a finished run, the same command only generates.
//!
//! `--full` trains 10.8 million parameters for ten passes.

mod generate;
mod model;
#[path = "../text/mod.rs"]
mod text;

use clap::Parser;
use generate::Generator;
use model::Gpt;
use std::sync::Arc;
use tensorpack::dataflow::dataset::{ptb::Split, sentences, webster};
use tensorpack::dataflow::{DataFlow, FromFn};
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::train::TrainArgs;

/// The most bits per byte on held-out text that `--assert` accepts.
const TARGET: f64 = 2.3;
/// The steps of a default epoch.
const STEPS: u64 = 300;
/// The number of generated texts.
const TEXTS: usize = 3;

struct Model {
    gpt: Gpt,
    rate: Schedule,
}

impl ModelDesc for Model {
    fn inputs(&self) -> Vec<TensorSpec> {
        ["text", "next"].map(|name| TensorSpec::i32(name, [None, Some(self.gpt.context)])).into()
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let (text, next) = (&inputs[0], &inputs[1]);
        let logits = self.gpt.logits(t, text, None).named("logits");
        let cost = logits.sparse_softmax_cross_entropy(next).mean().named("cost");
        let bits = (&cost / std::f64::consts::LN_2).named("bits_per_byte");
        t.moving_summary(&[&bits]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        // Weight decay for matrices only, not for scales and shifts.
        let adamw = AdamW::new(self.rate.clone()).betas(0.9, 0.99).decay(0.0);
        ParamGroups::new(adamw.process(GlobalNormClip::new(1.0))).group(".*/W", |g| g.decay(0.1)).boxed()
    }
}

/// Returns training text and held-out text: the dictionary, or generated sentences if it is unavailable and
/// not `needed`.
fn texts(needed: bool) -> Result<[Vec<u8>; 2]> {
    let text = match webster::text() {
        Err(e) if !needed => {
            tensorpack::logger::init();
            log::warn!("the dictionary is unavailable; training on generated sentences: {e}");
            sentences::text(Split::Train)?
        }
        text => text?,
    };
    // The last hundredth of the entries. They are not in alphabetical order.
    let split = text.len() / 100 * 99;
    let split = split + text.as_bytes()[split..].iter().position(|&byte| byte == b'\n').map_or(0, |i| i + 1);
    let mut train = text.into_bytes();
    let held_out = train.split_off(split);
    Ok([train, held_out])
}

/// Consecutive windows of a text, each with the window one byte later.
fn windows(text: Vec<u8>, length: usize) -> FromFn {
    let text: Arc<[u8]> = text.into();
    let count = text.len().saturating_sub(1) / length;
    FromFn::new(count as u64, move |i| {
        let window = |from: usize| {
            let bytes = text[from..from + length].iter().map(|&byte| byte.into());
            HostTensor::new([length], bytes.collect::<Vec<i32>>())
        };
        let from = i as usize * length;
        Ok(vec![window(from)?, window(from + 1)?])
    })
}

/// Trains a GPT on a dictionary, and makes up entries.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    train: TrainArgs,
    /// The beginning of the entries that are made up.
    #[arg(long, value_name = "TEXT", default_value = "")]
    prompt: String,
    /// How surprising they are: 0.1 for the most probable, 1 for samples of the model's distribution.
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    temperature: f64,
}

fn main() -> Result<()> {
    let Args { train: args, prompt, temperature } =
        tensorpack::command_line::parse_without(&["--fake", "--find-lr"])?;
    let gpt = match args.full {
        true => Gpt { context: 256, blocks: 6, features: 384, heads: 6, dropout: 0.1 },
        false => Gpt { context: 256, blocks: 4, features: 128, heads: 4, dropout: 0.0 },
    };
    if temperature.is_nan() || temperature <= 0.0 {
        return Err(Error::argument("--temperature must be positive"));
    }
    if prompt.len() >= gpt.context {
        return Err(Error::argument(format!("--prompt must have less than {} bytes", gpt.context)));
    }
    let [train, held_out] = texts(args.assert)?;
    let batch = if args.full { 64 } else { 16 };
    let data = windows(train, gpt.context).shuffle().batch(batch).prefetch(2);
    let (steps, epochs, rate) =
        if args.full { (data.size().unwrap_or(1), 10, 1e-3) } else { (STEPS, 5, 2e-3) };
    let rate = Schedule::cosine(rate, rate / 10.0, steps * epochs).warm_up(100);
    let validation = windows(held_out, gpt.context).batch(batch).keep_remainder();
    let config = TrainConfig::new(Model { gpt, rate }, data)
        .callback(PeriodicTrigger::new(ModelSaver::new()).every_k_steps(500).every_k_epochs(1))
        .callback(InferenceRunner::new(validation, [ScalarStats::new("bits_per_byte")]))
        .callback(MinSaver::new("validation_bits_per_byte"))
        .steps_per_epoch(steps)
        .max_epoch(epochs);
    let trained = args.configure(config)?.train()?;

    let bits = trained.monitors.latest("validation_bits_per_byte");
    let bits = bits.ok_or_else(|| Error::argument("no epoch was trained"))?;
    say!("{bits:.3} bits per byte on held-out text");
    let generator = Generator::new(gpt, &trained.session, TEXTS, gpt.context)?;
    for text in generator.generate(&prompt, gpt.context - 1, temperature, args.seed.unwrap_or(0))? {
        say!("{text}");
    }
    if args.assert && bits > TARGET {
        return Err(Error::argument(format!("the result is above {TARGET} bits per byte")));
    }
    Ok(())
}
