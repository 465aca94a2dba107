//! Sequence to sequence with attention: reads dates in many formats ("18th of November, 2026",
//! "11/18/2026", "Nov 2026") and writes them in one ("2026-11-18", "2026-11").
//!
//! `cargo run --release --example seq2seq` generates its data. A bidirectional GRU reads the characters;
//! another GRU with attention writes the result. It trains for 4 epochs and writes at least 98 % of the
//! test dates without a mistake; with `--assert` it fails otherwise. `--full` trains for 30 epochs.

use tensorpack::dataflow::{DataFlow, Flow, FromFn, Sample, SampleRng, Seed};
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::train::TrainArgs;

/// The longest text that is read.
const READ: usize = 28;
/// The longest text that is written, with the end.
const WRITTEN: usize = 11;
const STEPS: u64 = 200;
const BATCH: usize = 64;
const UNITS: usize = 128;
/// The fraction of dates without a mistake that `--assert` requires.
const TARGET: f64 = 0.98;
/// Character 0 is the padding. As an output it is the end, as the decoder's first input the start.
const ALPHABET: &str = "\u{0}0123456789-./, abcdefghijklmnopqrstuvwxyz";
const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];

#[derive(Inputs)]
pub(crate) struct Batch {
    #[input(i32, [None, 28])]
    text: Tensor,
    #[input(i32, [None])]
    text_length: Tensor,
    #[input(i32, [None, 11])]
    date: Tensor,
    /// With the end.
    #[input(i32, [None])]
    date_length: Tensor,
}

pub(crate) struct Dates {
    pub(crate) epochs: u64,
}

/// The decoder: what it attends to, and for each example how much of that there is.
struct Decoder<'a> {
    memory: &'a Tensor,
    lengths: &'a Tensor,
}

impl Decoder<'_> {
    /// Returns the logits of `[batch, time]` states.
    fn logits(&self, t: &TowerContext, states: &Tensor) -> Tensor {
        let options = AttentionOptions::default().lengths(self.lengths);
        let attended = MultiHeadAttention::new(4).apply_with(t, "attention", states, self.memory, &options);
        let x = t.graph().concat(&[states, &attended], 2);
        let x = Linear::new(UNITS).last_axis().activation(Activation::Tanh).apply(t, "hidden", &x);
        Linear::new(ALPHABET.len()).last_axis().apply(t, "output", &x)
    }

    /// Writes a text for each example, every time the most probable character.
    fn write(&self, t: &TowerContext, start: &Tensor) -> Tensor {
        let (mut state, mut written) = (start.clone(), Vec::new());
        let mut last = self.lengths.zeros_like();
        for _ in 0..WRITTEN {
            let x = Embedding::new(ALPHABET.len(), 32).apply(t, "characters", &last);
            state = GruCell::new(UNITS).step(t, "decoder", &x, Some(&state));
            last = self.logits(t, &state.expand_dims(1)).argmax(-1).squeeze(1).cast(DType::I32);
            written.push(last.clone());
        }
        t.graph().stack(&written, 1)
    }
}

impl Model for Dates {
    type Inputs = Batch;

    fn build_graph(&self, t: &TowerContext, batch: Batch) -> Tensor {
        let Batch { text, text_length, date, date_length } = batch;
        let characters = Embedding::new(ALPHABET.len(), 32);
        let x = characters.apply(t, "characters", &text);
        let options = RecurrentOptions::default().lengths(&text_length);
        let (forward, end) = Gru::new(UNITS / 2).apply_with(t, "forward", &x, None, &options);
        let (backward, begin) = Gru::new(UNITS / 2).apply_with(t, "backward", &x, None, &options.reverse());
        let memory = t.graph().concat(&[forward, backward], 2);
        let start = Linear::new(UNITS).activation(Activation::Tanh);
        let start = start.apply(t, "start", &t.graph().concat(&[end, begin], 1));

        // The decoder reads the characters before the ones it predicts.
        let before = date.pad(&[0, 1], &[0, 0], &[0, 0]).slice_axis(1, 0, Some(WRITTEN));
        let before = t.auto_reuse(|t| characters.apply(t, "characters", &before));
        let (states, _) = Gru::new(UNITS).apply(t, "decoder", &before, Some(&start));
        let decoder = Decoder { memory: &memory, lengths: &text_length };
        let logits = decoder.logits(t, &states);

        let is_token = date.iota_like(1, DType::I32).less(&date_length.expand_dims(1)).cast(DType::F32);
        let tokens = is_token.sum().named("tokens");
        let loss = logits.sparse_softmax_cross_entropy(&date) * is_token;
        let cost = (loss.sum() / &tokens).named("token_loss");
        t.moving_summary(&[&cost]);
        if !t.is_training() {
            let written = decoder.write(t, &start).named("written");
            // What comes after the end does not count.
            let ended = written
                .equal(0.0)
                .cast(DType::I32)
                .cumsum_with(1, CumsumOptions { exclusive: true, ..CumsumOptions::default() });
            let going = ended.equal(0.0).cast(DType::I32);
            let exact = (written * going).equal(&date).all_axes(&[1]).cast(DType::F32);
            exact.mean().named("exact");
        }
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(Schedule::cosine(2e-3, 0.0, self.epochs * STEPS)).process(GlobalNormClip::new(5.0)).boxed()
    }
}

/// Returns the text as class numbers, padded with zeros to `length`.
fn encoded(text: &str, length: usize) -> Vec<i32> {
    let class = |c: char| ALPHABET.chars().position(|a| a == c).unwrap_or(0) as i32;
    let mut classes: Vec<i32> = text.chars().map(class).collect();
    classes.resize(length, 0);
    classes
}

/// Draws a date: a text, and what it says.
fn date(rng: &mut SampleRng) -> (String, String) {
    let (year, month) = (1900 + rng.below(200), 1 + rng.below(12));
    let name = MONTHS[month as usize - 1];
    let (short, day) = (&name[..3], 1 + rng.below(28));
    let ordinal = match day {
        1 | 21 => "st",
        2 | 22 => "nd",
        3 | 23 => "rd",
        _ => "th",
    };
    let text = match rng.below(12) {
        0 => format!("{day}.{month}.{year}"),
        1 => format!("{month:02}/{day:02}/{year}"),
        2 => format!("{name} {day}, {year}"),
        3 => format!("{day} {name} {year}"),
        4 => format!("{day}{ordinal} of {name}, {year}"),
        5 => format!("{short} {day} {year}"),
        6 => format!("{day}-{short}-{year}"),
        7 => format!("{year}{month:02}{day:02}"),
        8 => format!("{year}/{month}/{day}"),
        9 => return (format!("{name} {year}"), format!("{year}-{month:02}")),
        10 => return (format!("{short}. {year}"), format!("{year}-{month:02}")),
        _ => return (format!("the year {year}"), format!("{year}")),
    };
    (text, format!("{year}-{month:02}-{day:02}"))
}

fn sample(rng: &mut SampleRng) -> Result<Sample> {
    let (text, date) = date(rng);
    let length = |n: usize| HostTensor::scalar(n as i32);
    Ok(vec![
        HostTensor::new([READ], encoded(&text, READ))?,
        length(text.len()),
        HostTensor::new([WRITTEN], encoded(&date, WRITTEN))?,
        length(date.len() + 1),
    ])
}

/// Returns training dates, which are new in every epoch, and 1,000 test dates.
fn data() -> [Flow; 2] {
    let nothing = FromFn::new(STEPS * BATCH as u64, |_| Ok(Vec::new()));
    let seed = Seed::new(0).derive("test dates");
    let test = FromFn::new(1000, move |i| sample(&mut seed.rng(0, i)));
    [nothing.map_random(|_, rng| sample(rng)).into_flow(), test.into_flow()]
}

fn main() -> Result<()> {
    let args = TrainArgs::parse_program(
        "Writes dates of many formats in one, with attention",
        &["--fake", "--find-lr"],
    )?;
    let [train, test] = data();
    // Every token counts the same, however many a batch has.
    let loss = ScalarStats::new("token_loss").weighted_by("tokens").prefix("val");
    let runner = InferenceRunner::new(test.batch(250), [loss]).with(ScalarStats::new("exact").prefix("val"));
    let epochs = if args.full { 30 } else { 4 };
    let config = TrainConfig::new(Dates { epochs }, train.batch(BATCH))
        .callback(ModelSaver::new())
        .callback(runner)
        .callback(MaxSaver::new("val_exact"))
        .max_epoch(epochs);
    let trained = args.configure(config)?.train()?;

    let exact = trained.monitors.latest("val_exact");
    let exact = exact.ok_or_else(|| Error::argument("no epoch was trained"))?;
    let model = trained.get_predictor(&["text", "text_length"], &["written"])?;
    for text in ["3rd of march, 1984", "12/24/2026", "aug. 1999"] {
        let classes = HostTensor::new([1, READ], encoded(text, READ))?;
        let length = HostTensor::new([1], vec![text.len() as i32])?;
        let written = model.predict(&[&classes, &length])?.remove(0);
        let letters = written.as_slice::<i32>()?.iter().take_while(|&&class| class > 0);
        let date: String = letters.filter_map(|&class| ALPHABET.chars().nth(class as usize)).collect();
        say!("{text}: {date}");
    }
    say!("{:.1} % of the dates without a mistake", 100.0 * exact);
    if args.assert && exact < TARGET {
        return Err(Error::argument(format!("fewer than {:.0} % of the dates are right", 100.0 * TARGET)));
    }
    Ok(())
}
