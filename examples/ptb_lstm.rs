//! A word-level language model on the Penn Treebank: a two-layer LSTM reads 20 sections of the
//! text in parallel, 35 words per step, and carries its state from step to step.
//!
//! `cargo run --release --example ptb_lstm` downloads the text, or generates sentences if that fails.
//! It trains 200 units for 8 epochs and reaches a validation perplexity of at most 110; with `--assert`
//! it fails otherwise. `--full` trains 650 units for 70 epochs.
//!
//! The text is a constant in the graph. Non-trainable variables hold the position in it and the
//! LSTM state between steps, so checkpoints include both, and the program can be interrupted and
//! restarted at any time.

use tensorpack::callback::{HyperParamSetterWithFunc, RunOp, Statistic, TrainCx, When};
use tensorpack::dataflow::dataset::ptb::{self, BpttBatches, Split};
use tensorpack::dataflow::dataset::sentences;
use tensorpack::graph::UPDATE_OPS;
use tensorpack::input::TensorInput;
use tensorpack::prelude::*;
use tensorpack::say;
use tensorpack::train::TrainArgs;

/// The size of the vocabulary.
pub(crate) const WORDS: usize = 10_000;
/// Number of sections of the text that are read in parallel.
pub(crate) const BATCH: usize = 20;
/// Words of each section per step.
pub(crate) const STEPS: usize = 35;

/// The largest validation perplexity that `--assert` accepts.
const TARGET: f64 = 110.0;

/// The state of each layer that is carried from step to step.
const STATE: [[&str; 2]; 2] = [["c0", "h0"], ["c1", "h1"]];

pub(crate) struct Model {
    pub(crate) units: usize,
    pub(crate) dropout: f64,
    /// The dtype of the computation.
    pub(crate) dtype: DType,
}

impl ModelDesc for Model {
    fn inputs(&self) -> Vec<TensorSpec> {
        ["words", "next"].map(|name| TensorSpec::i32(name, [Some(BATCH), Some(STEPS)])).into()
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let (words, next) = (&inputs[0], &inputs[1]);
        let init = || Init::Uniform(-0.05, 0.05);
        let dropout = Dropout::new(self.dropout);
        let lstm = Lstm::new(self.units).forget_bias(0.0).init(init()).recurrent_init(init());

        let embedding = Embedding::new(WORDS, self.units).dtype(self.dtype).init(init());
        let x = embedding.apply(t, "embedding", words);
        let mut x = dropout.apply(t, "dropout", &x);
        for (layer, names) in STATE.iter().enumerate() {
            let [c, h] = names.map(|name| {
                let zeros =
                    VariableSpec::new(name, [BATCH, self.units]).dtype(self.dtype).init(Init::zeros());
                t.variable(zeros.non_trainable())
            });
            let before = LstmState { c: c.value().clone(), h: h.value().clone() };
            let (y, after) = lstm.apply(t, &format!("lstm{layer}"), &x, Some(&before));
            t.graph().add_op_to_collection(UPDATE_OPS, &c.assign(&after.c));
            t.graph().add_op_to_collection(UPDATE_OPS, &h.assign(&after.h));
            x = dropout.apply(t, &format!("dropout{layer}"), &y);
        }
        let logits = Linear::new(WORDS).last_axis().init(init()).apply(t, "fc", &x);

        // The sum over time of the mean over the batch.
        let cost = (logits.sparse_softmax_cross_entropy(next).mean() * STEPS as f64).named("cost");
        let perplexity = (&cost / STEPS as f64).exp().named("perplexity");
        t.moving_summary(&[&cost, &perplexity]);
        cost
    }

    fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(t.hyper_param("learning_rate", 1.0)).process(GlobalNormClip::new(5.0)).boxed()
    }
}

/// The training input, a constant in the graph that is batched like [`BpttBatches`]: step `i` reads
/// columns `35 i` to `35 (i + 1)` of all sections, and the same columns one word later as targets.
pub(crate) fn unrolled(words: &HostTensor) -> Result<TensorInput> {
    let section = words.len() / BATCH;
    let rows = HostTensor::new([BATCH, section], words.as_slice::<i32>()?[..BATCH * section].to_vec())?;
    let steps = (section.saturating_sub(1) / STEPS) as u64;
    let input = TensorInput::new(move |t| {
        let rows = t.graph().constant(rows.clone());
        let position = VariableSpec::new("position", []).dtype(DType::I64).init(Init::zeros());
        let position = t.variable(position.non_trainable());
        let columns = position.value() * STEPS as f64 + t.graph().iota(STEPS, DType::I64);
        let end = t.graph().constant(HostTensor::scalar(steps as i64));
        let advance = position.update(|p| {
            let next = p + 1.0;
            // Wrap around after the last step.
            &next * next.less(&end).cast(DType::I64)
        });
        t.graph().add_op_to_collection(UPDATE_OPS, &advance);
        vec![rows.gather(&columns, 1), rows.gather(&(columns + 1.0), 1)]
    });
    Ok(input.with_size(steps))
}

/// Resets the LSTM state to zeros.
pub(crate) fn reset() -> RunOp {
    RunOp::new(|g| {
        let graph = g.graph();
        let zeros = |variable: Variable| {
            let sizes = variable.shape().known().unwrap_or_default();
            Ok(variable.assign(&graph.constant(HostTensor::zeros(variable.dtype(), sizes)?)))
        };
        let state = STATE.iter().flatten().filter_map(|name| graph.variable_named(name));
        let zeros: Vec<Op> = state.map(zeros).collect::<Result<_>>()?;
        Ok(graph.group(&zeros.iter().collect::<Vec<_>>()))
    })
}

/// Evaluates another text from its beginning, carrying the state from batch to batch.
fn evaluation(text: HostTensor, name: &str) -> Result<InferenceRunner> {
    let runner =
        InferenceRunner::new(BpttBatches::new(text, BATCH, STEPS)?, [ScalarStats::new("cost").prefix(name)]);
    Ok(runner.tower_name(format!("Inference_{name}")).with_updates())
}

/// Reports the perplexity of each text: the exponential of the mean cost per word.
struct Perplexity;

const TEXTS: [&str; 2] = ["validation", "test"];

impl Callback for Perplexity {
    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        for text in TEXTS {
            if let Some(cost) = cx.monitors().latest(&format!("{text}_cost")) {
                cx.put_scalar(&format!("{text}_perplexity"), (cost / STEPS as f64).exp());
            }
        }
        Ok(())
    }

    fn reads(&self) -> Vec<Statistic> {
        TEXTS.map(|text| Statistic::new(format!("{text}_cost"), When::Epoch)).into()
    }

    fn produces(&self) -> Vec<Statistic> {
        TEXTS.map(|text| Statistic::new(format!("{text}_perplexity"), When::Epoch)).into()
    }
}

/// Returns the three texts of the Treebank, or generated ones if it is unavailable and not
/// required.
fn texts(required: bool) -> Result<[HostTensor; 3]> {
    let all = |words: fn(Split) -> Result<HostTensor>| -> Result<[HostTensor; 3]> {
        Ok([words(Split::Train)?, words(Split::Valid)?, words(Split::Test)?])
    };
    match all(ptb::token_ids) {
        Err(e) if !required => {
            tensorpack::logger::init();
            log::warn!("the Penn Treebank is unavailable; training on generated sentences: {e}");
            all(sentences::token_ids)
        }
        texts => texts,
    }
}

/// A model and its schedule: a learning rate of 1, multiplied by `factor` after every epoch but the
/// first `constant` ones.
pub(crate) struct Plan {
    pub(crate) model: Model,
    pub(crate) constant: u64,
    pub(crate) factor: f64,
    pub(crate) epochs: u64,
}

const SHORT: Plan = Plan {
    model: Model { units: 200, dropout: 0.2, dtype: DType::F32 },
    constant: 3,
    factor: 0.5,
    epochs: 8,
};
const FULL: Plan = Plan {
    model: Model { units: 650, dropout: 0.5, dtype: DType::F32 },
    constant: 6,
    factor: 0.8,
    epochs: 70,
};

/// Trains on the first text, and evaluates the two others after every epoch, each from its beginning.
pub(crate) fn config(plan: Plan, [train, validation, test]: [HostTensor; 3]) -> Result<TrainConfig> {
    let Plan { model, constant, factor, epochs } = plan;
    let decay = move |epoch: u64, rate: f64| if epoch > constant { factor * rate } else { rate };
    Ok(TrainConfig::with_input(model, unrolled(&train)?)
        .callback(ModelSaver::new())
        .callback(HyperParamSetterWithFunc::new("learning_rate", decay))
        .callback(reset())
        .callback(evaluation(validation, "validation")?)
        .callback(reset().no_before_train())
        .callback(evaluation(test, "test")?)
        .callback(reset().no_before_train())
        .callback(Perplexity)
        .callback(MinSaver::new("validation_perplexity"))
        .max_epoch(epochs))
}

fn main() -> Result<()> {
    let args =
        TrainArgs::parse_program("Trains a word-level LSTM on the Penn Treebank", &["--fake", "--trainer"])?;
    let config = config(if args.full { FULL } else { SHORT }, texts(args.assert)?)?;
    let trained = args.configure(config)?.train()?;

    let [validation, test] = TEXTS.map(|text| trained.monitors.latest(&format!("{text}_perplexity")));
    let (Some(validation), Some(test)) = (validation, test) else {
        return Err(Error::argument("no epoch was trained"));
    };
    say!("perplexity {validation:.1} on the validation set, {test:.1} on the test set");
    if args.assert && validation > TARGET {
        return Err(Error::argument(format!("the validation perplexity is above {TARGET}")));
    }
    Ok(())
}
