//! A word-level language model on the Penn Treebank: a two-layer LSTM reads 20 sections of the
//! text in parallel, 35 words per step, and carries its state from step to step.
//!
//! `cargo run --release --example ptb_lstm` downloads the text, or generates sentences if that fails.
//! It trains 200 units for 8 epochs and reaches a validation perplexity of at most 110; with `--assert`
//! it fails otherwise.
//!
//! `--full` trains the medium model of Zaremba et al. (2014), 650 units for 39 epochs, and `--full --size
//! large` the large one, 1,500 units for 55 epochs. Their result is the perplexity of the test text, read
//! as one sequence after the last epoch.
//!
//! The text is a constant in the graph. Non-trainable variables hold the position in it and the
//! LSTM state between steps, so checkpoints include both, and the program can be interrupted and
//! restarted at any time.

use clap::{Parser, ValueEnum};
use tensorpack::callback::{GraphCx, HyperParamSetterWithFunc, RunOp, Statistic, TrainCx, When};
use tensorpack::dataflow::dataset::ptb::{self, BpttBatches, Split};
use tensorpack::dataflow::dataset::sentences;
use tensorpack::graph::UPDATE_OPS;
use tensorpack::input::TensorInput;
use tensorpack::prelude::*;
use tensorpack::runtime::IntoFetch;
use tensorpack::say;
use tensorpack::train::TrainArgs;

/// The size of the vocabulary.
pub(crate) const WORDS: usize = 10_000;
/// Number of sections of the text that are read in parallel.
pub(crate) const BATCH: usize = 20;
/// Words of each section per step.
pub(crate) const STEPS: usize = 35;

/// The state of each layer that is carried from step to step.
const STATE: [[&str; 2]; 2] = [["c0", "h0"], ["c1", "h1"]];

#[derive(Clone, Copy)]
pub(crate) struct Model {
    pub(crate) units: usize,
    /// Weights start uniformly between minus this and this.
    pub(crate) init: f64,
    /// The same for biases.
    pub(crate) bias_init: f64,
    /// How many times as fast the biases of the LSTM layers learn.
    pub(crate) bias_rate: f64,
    pub(crate) dropout: f64,
    /// The largest global norm of the gradients; larger ones are scaled down to it.
    pub(crate) clip: f64,
    /// The dtype of the computation.
    pub(crate) dtype: DType,
}

impl Model {
    /// Creates a model in f32 with the usual initialization and clipping. Biases start at zero.
    pub(crate) const fn new(units: usize, dropout: f64) -> Model {
        Model { units, init: 0.05, bias_init: 0.0, bias_rate: 1.0, dropout, clip: 5.0, dtype: DType::F32 }
    }

    /// Creates a model of Zaremba et al. (2014). Biases start like the weights. The authors' LSTM has two
    /// bias vectors, which have the same gradient, so their sum learns twice as fast as one vector.
    const fn published(units: usize, dropout: f64, init: f64, clip: f64) -> Model {
        Model { init, bias_init: init, bias_rate: 2.0, clip, ..Model::new(units, dropout) }
    }

    /// Returns the logits of the next words, and the state of each layer after the last word. `before` is
    /// the state of a layer before the first.
    fn logits(
        &self,
        t: &TowerContext,
        words: &Tensor,
        mut before: impl FnMut(usize) -> LstmState,
    ) -> (Tensor, Vec<LstmState>) {
        let init = || Init::Uniform(-self.init, self.init);
        let dropout = Dropout::new(self.dropout);
        let bias_init = || match self.bias_init {
            0.0 => Init::zeros(),
            limit => Init::Uniform(-limit, limit),
        };
        let lstm = Lstm::new(self.units).forget_bias(0.0).init(init()).recurrent_init(init());
        let lstm = lstm.bias_init(bias_init());

        let embedding = Embedding::new(WORDS, self.units).dtype(self.dtype).init(init());
        let x = embedding.apply(t, "embedding", words);
        let mut x = dropout.apply(t, "dropout", &x);
        let mut after = Vec::new();
        for layer in 0..STATE.len() {
            let (y, state) = lstm.apply(t, &format!("lstm{layer}"), &x, Some(&before(layer)));
            after.push(state);
            x = dropout.apply(t, &format!("dropout{layer}"), &y);
        }
        let fc = Linear::new(WORDS).last_axis().init(init()).bias_init(bias_init());
        (fc.apply(t, "fc", &x), after)
    }
}

impl ModelDesc for Model {
    fn inputs(&self) -> Vec<TensorSpec> {
        ["words", "next"].map(|name| TensorSpec::i32(name, [Some(BATCH), Some(STEPS)])).into()
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let (words, next) = (&inputs[0], &inputs[1]);
        let mut carried = Vec::new();
        let (logits, after) = self.logits(t, words, |layer| {
            let [c, h] = STATE[layer].map(|name| {
                let zeros =
                    VariableSpec::new(name, [BATCH, self.units]).dtype(self.dtype).init(Init::zeros());
                t.variable(zeros.non_trainable())
            });
            let before = LstmState { c: c.value().clone(), h: h.value().clone() };
            carried.push([c, h]);
            before
        });
        for ([c, h], after) in carried.iter().zip(&after) {
            t.graph().add_op_to_collection(UPDATE_OPS, &c.assign(&after.c));
            t.graph().add_op_to_collection(UPDATE_OPS, &h.assign(&after.h));
        }

        // The sum over time of the mean over the batch.
        let cost = (logits.sparse_softmax_cross_entropy(next).mean() * STEPS as f64).named("cost");
        let perplexity = (&cost / STEPS as f64).exp().named("perplexity");
        t.moving_summary(&[&cost, &perplexity]);
        cost
    }

    fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(t.hyper_param("learning_rate", 1.0))
            .process(GlobalNormClip::new(self.clip))
            .process(ScaleGradient::new("lstm./b", self.bias_rate))
            .boxed()
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
        let advance = position.update(|p| {
            let next = p + 1.0;
            // Wrap around after the last step.
            &next * next.less(steps as f64).cast(DType::I64)
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
struct Perplexity(&'static [&'static str]);

impl Callback for Perplexity {
    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        for text in self.0 {
            if let Some(cost) = cx.monitors().latest(&format!("{text}_cost")) {
                cx.put_scalar(&format!("{text}_perplexity"), (cost / STEPS as f64).exp());
            }
        }
        Ok(())
    }

    fn reads(&self) -> Vec<Statistic> {
        self.0.iter().map(|text| Statistic::new(format!("{text}_cost"), When::Epoch)).collect()
    }

    fn produces(&self) -> Vec<Statistic> {
        self.0.iter().map(|text| Statistic::new(format!("{text}_perplexity"), When::Epoch)).collect()
    }
}

/// Reads the test text as one sequence after the last epoch, and reports its perplexity: that of all words
/// but the first.
pub(crate) struct OneSequence {
    words: Vec<i32>,
    model: Model,
    reader: Option<Reader>,
}

/// The model in inference mode on [`STEPS`] words of one text, with its state as inputs and outputs.
struct Reader {
    /// The names of the words, the next words, and the state before the first word.
    inputs: Vec<String>,
    /// The cost of each word, and the state after the last word.
    outputs: Vec<Tensor>,
}

impl Reader {
    fn new(graph: &Graph, model: &Model) -> Reader {
        let [words, next] =
            ["sequence/words", "sequence/next"].map(|name| TensorSpec::i32(name, [Some(1), Some(STEPS)]));
        let state = STATE.concat().into_iter().map(|name| {
            TensorSpec::new(format!("sequence/{name}"), model.dtype, [Some(1), Some(model.units)])
        });
        let inputs: Vec<Tensor> =
            [words, next].into_iter().chain(state).map(|spec| graph.placeholder(&spec)).collect();
        let before = |layer: usize| {
            let [c, h] = [2, 3].map(|i| inputs[i + 2 * layer].clone());
            LstmState { c, h }
        };
        let t = TowerContext::inference(graph);
        let (logits, after) = t.name_scope("sequence", |t| t.reuse(|t| model.logits(t, &inputs[0], before)));
        let costs = logits.sparse_softmax_cross_entropy(&inputs[1]);
        let after = after.iter().flat_map(|state| [&state.c, &state.h]).map(|state| state.cast(model.dtype));
        Reader {
            inputs: inputs.iter().map(Tensor::name).collect(),
            outputs: [costs].into_iter().chain(after).collect(),
        }
    }

    /// Returns the mean cost of all words but the first.
    fn mean_cost(&self, model: &Model, text: &[i32], cx: &TrainCx<'_>) -> Result<f64> {
        let outputs: Vec<&dyn IntoFetch> = self.outputs.iter().map(|tensor| tensor as _).collect();
        let mut state = vec![HostTensor::zeros(model.dtype, [1, model.units])?; self.inputs.len() - 2];
        let mut sum = 0.0;
        let targets = text.len() - 1;
        for start in (0..targets).step_by(STEPS) {
            cx.check_interrupt()?;
            // Words that fill up the last window, and do not count.
            let count = STEPS.min(targets - start);
            let window = |start: usize| {
                let mut words = text[start..start + count].to_vec();
                words.resize(STEPS, 0);
                HostTensor::new([1, STEPS], words)
            };
            let windows = [window(start)?, window(start + 1)?];
            let feeds = self.inputs.iter().map(String::as_str).zip(windows.iter().chain(&state));
            let mut results = cx.session().run(&outputs, &feeds.collect::<Vec<_>>())?;
            sum += results[0].to_f64_vec()[..count].iter().sum::<f64>();
            state = results.split_off(1);
        }
        Ok(sum / targets as f64)
    }
}

impl OneSequence {
    pub(crate) fn new(text: &HostTensor, model: Model) -> Result<OneSequence> {
        let words = text.as_slice::<i32>()?.to_vec();
        if words.len() < 2 {
            return Err(Error::argument("a text needs at least two words"));
        }
        Ok(OneSequence { words, model, reader: None })
    }
}

impl Callback for OneSequence {
    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        self.reader = Some(Reader::new(g.graph(), &self.model));
        Ok(())
    }

    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if let Some(reader) = self.reader.as_ref().filter(|_| cx.epoch_num == cx.max_epoch) {
            let cost = reader.mean_cost(&self.model, &self.words, cx)?;
            cx.put_scalar("test_perplexity", cost.exp());
        }
        Ok(())
    }

    fn produces(&self) -> Vec<Statistic> {
        vec![Statistic::new("test_perplexity", When::Epoch)]
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
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) model: Model,
    pub(crate) constant: u64,
    pub(crate) factor: f64,
    pub(crate) epochs: u64,
    /// Whether the test text is read as one sequence after the last epoch, not in [`BATCH`] sections after
    /// every epoch.
    pub(crate) one_sequence: bool,
}

const SHORT: Plan =
    Plan { model: Model::new(200, 0.2), constant: 3, factor: 0.5, epochs: 8, one_sequence: false };
pub(crate) const MEDIUM: Plan = Plan {
    model: Model::published(650, 0.5, 0.05, 5.0),
    constant: 6,
    factor: 1.0 / 1.2,
    epochs: 39,
    one_sequence: true,
};
pub(crate) const LARGE: Plan = Plan {
    model: Model::published(1500, 0.65, 0.04, 10.0),
    constant: 14,
    factor: 1.0 / 1.15,
    epochs: 55,
    one_sequence: true,
};

/// Trains on the first text, and evaluates the two others, each from its beginning.
pub(crate) fn config(plan: Plan, [train, validation, test]: [HostTensor; 3]) -> Result<TrainConfig> {
    let Plan { model, constant, factor, epochs, one_sequence } = plan;
    let decay = move |epoch: u64, rate: f64| if epoch > constant { factor * rate } else { rate };
    let config = TrainConfig::with_input(model, unrolled(&train)?)
        .callback(ModelSaver::new())
        .callback(HyperParamSetterWithFunc::new("learning_rate", decay))
        .callback(reset())
        .callback(evaluation(validation, "validation")?)
        .callback(reset().no_before_train());
    let config = if one_sequence {
        config.callback(OneSequence::new(&test, model)?).callback(Perplexity(&["validation"]))
    } else {
        config
            .callback(evaluation(test, "test")?)
            .callback(reset().no_before_train())
            .callback(Perplexity(&["validation", "test"]))
    };
    Ok(config.callback(MinSaver::new("validation_perplexity")).max_epoch(epochs))
}

/// Trains a word-level LSTM on the Penn Treebank.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    train: TrainArgs,
    /// The model of --full; defaults to medium.
    #[arg(long, value_enum, value_name = "SIZE")]
    size: Option<Size>,
}

/// A model of Zaremba et al. (2014).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Size {
    /// 650 units, 39 epochs.
    Medium,
    /// 1,500 units, 55 epochs.
    Large,
}

/// The result that `--assert` requires.
enum Goal {
    /// The largest perplexity of the validation text.
    Validation(f64),
    /// The largest perplexity of the test text.
    Test(f64),
}

impl Args {
    fn plan(&self) -> Result<(Plan, Goal)> {
        match (self.train.full, self.size) {
            (false, None) => Ok((SHORT, Goal::Validation(110.0))),
            (false, Some(_)) => Err(Error::argument("--size needs --full")),
            (true, None | Some(Size::Medium)) => Ok((MEDIUM, Goal::Test(83.5))),
            (true, Some(Size::Large)) => Ok((LARGE, Goal::Test(79.5))),
        }
    }
}

fn main() -> Result<()> {
    let args: Args = tensorpack::command_line::parse_without(&["--fake", "--trainer"])?;
    let (plan, goal) = args.plan()?;
    let config = config(plan, texts(args.train.assert)?)?;
    let trained = args.train.configure(config)?.train()?;

    let perplexity = |text: &str| trained.monitors.latest(&format!("{text}_perplexity"));
    let (Some(validation), Some(test)) = (perplexity("validation"), perplexity("test")) else {
        return Err(Error::argument("no epoch was trained"));
    };
    say!("perplexity {validation:.1} on the validation set, {test:.1} on the test set");
    let (name, reached, most) = match goal {
        Goal::Validation(most) => ("validation", validation, most),
        Goal::Test(most) => ("test", test, most),
    };
    if args.train.assert && reached > most {
        return Err(Error::argument(format!("the {name} perplexity is above {most}")));
    }
    Ok(())
}
