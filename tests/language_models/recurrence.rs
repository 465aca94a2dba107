//! The input and the recurrent state of `ptb_lstm`.

use crate::ptb_lstm::{BATCH, LARGE, MEDIUM, Model, Plan, STEPS, config, unrolled};
use std::path::Path;
use tensorpack::dataflow::RandomAccess;
use tensorpack::dataflow::dataset::ptb::{BpttBatches, Split};
use tensorpack::dataflow::dataset::sentences;
use tensorpack::graph::UPDATE_OPS;
use tensorpack::input::InputSource;
use tensorpack::prelude::*;
use tensorpack::runtime::IntoFetch;
use tensorpack::train::Trained;

/// Returns the first words of a generated text.
fn beginning(split: Split, words: usize) -> HostTensor {
    let text = sentences::token_ids(split).unwrap();
    HostTensor::new([words], text.as_slice::<i32>().unwrap()[..words].to_vec()).unwrap()
}

#[test]
fn the_words_in_the_graph_are_those_of_the_dataflow() {
    // Three steps, and a few words that do not fill a batch.
    let words = beginning(Split::Train, BATCH * (3 * STEPS + 9) + 7);
    let flow = BpttBatches::new(words.clone(), BATCH, STEPS).unwrap();
    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    let mut input = unrolled(&words).unwrap();
    let tensors = input.tensors(&t, &Model::new(1, 0.0).inputs()).unwrap();
    let on = graph.group(&graph.collection_ops(UPDATE_OPS).iter().collect::<Vec<_>>());
    assert_eq!((input.size(), flow.len()), (Some(3), 3));
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let what: [&dyn IntoFetch; 3] = [&tensors[0], &tensors[1], &on];
    for step in 0..7 {
        let sample = flow.get(step % 3).unwrap();
        assert_eq!(session.run(&what, &[]).unwrap()[..2], sample[..], "step {step}");
    }
}

/// A tiny model with a short schedule.
fn tiny(epochs: u64, one_sequence: bool) -> Plan {
    Plan { model: Model::new(4, 0.5), constant: 1, factor: 0.5, epochs, one_sequence }
}

fn run(plan: Plan, texts: [HostTensor; 3], dir: &Path) -> Trained {
    let config = config(plan, texts).unwrap().logdir(dir).steps_per_epoch(3);
    launch_train_with_config(config, SimpleTrainer::new()).unwrap()
}

fn train(dir: &Path, epochs: u64) -> Trained {
    let texts = [Split::Train, Split::Valid, Split::Test].map(|split| beginning(split, 80 * BATCH));
    run(tiny(epochs, false), texts, dir)
}

#[test]
fn a_resumed_run_equals_an_uninterrupted_one() {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let at_once = train(whole.path(), 3);
    train(parts.path(), 1);
    let resumed = train(parts.path(), 3);
    for name in ["fc/W", "lstm1/U", "position", "learning_rate", "c1"] {
        assert_eq!(resumed.session.read(name).unwrap(), at_once.session.read(name).unwrap(), "{name}");
    }
    let stats = |dir: &Path| std::fs::read_to_string(dir.join("stats.jsonl")).unwrap();
    assert_eq!(stats(parts.path()), stats(whole.path()));
    // Constant up to the second epoch, then halved after each.
    assert_eq!(at_once.session.read("learning_rate").unwrap().to_scalar().unwrap(), 0.25);
    assert!(at_once.session.read("c1").unwrap().to_f64_vec().iter().all(|c| *c == 0.0));
    let latest = |name: &str| at_once.monitors.latest(name).unwrap();
    for text in ["validation", "test"] {
        let cost = latest(&format!("{text}_cost"));
        assert_eq!(latest(&format!("{text}_perplexity")), (cost / STEPS as f64).exp());
        assert!(cost < STEPS as f64 * 10_000f64.ln(), "{text}: {cost} is no better than a guess");
    }
}

/// Compares with a text of [`BATCH`] equal sections: each starts from a state of zeros, so their mean cost is
/// that of one of them as one sequence.
#[test]
fn one_sequence_counts_every_word_but_the_first() {
    let (train, validation) = (beginning(Split::Train, 80 * BATCH), beginning(Split::Valid, 80 * BATCH));
    let section = beginning(Split::Test, 2 * STEPS + 1);
    let repeated = section.as_slice::<i32>().unwrap().repeat(BATCH);
    let in_sections = HostTensor::new([repeated.len()], repeated).unwrap();
    let test_perplexity = |plan: Plan, test: &HostTensor| {
        let dir = tempfile::tempdir().unwrap();
        let texts = [train.clone(), validation.clone(), test.clone()];
        let trained = run(plan, texts, dir.path());
        trained.monitors.history("test_perplexity").to_vec()
    };
    let expected = test_perplexity(tiny(2, false), &in_sections);
    let found = test_perplexity(tiny(2, true), &section);
    assert_eq!((expected.len(), found.len()), (2, 1), "after the last epoch only");
    assert_eq!(expected[1].0, found[0].0);
    assert!((found[0].1 / expected[1].1 - 1.0).abs() < 1e-5, "{found:?} {expected:?}");

    // Two words in a window of 35: the others do not count.
    let cost = test_perplexity(tiny(1, true), &beginning(Split::Test, 2))[0].1.ln();
    assert!(cost > 0.0 && cost < 10_000f64.ln() + 2.0, "{cost}");
}

#[test]
fn the_published_models_resume() {
    for (plan, rate) in [(MEDIUM, 1.0 / 1.2), (LARGE, 1.0 / 1.15)] {
        let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let texts = [Split::Train, Split::Valid, Split::Test].map(|split| beginning(split, 80 * BATCH));
        let train = |dir: &Path, epochs| {
            let plan = Plan { model: Model { units: 4, ..plan.model }, epochs, ..plan };
            run(plan, texts.clone(), dir)
        };
        let epochs = plan.constant + 1;
        let at_once = train(whole.path(), epochs);
        train(parts.path(), epochs - 1);
        let resumed = train(parts.path(), epochs);
        for name in ["fc/W", "lstm1/U", "learning_rate"] {
            assert_eq!(resumed.session.read(name).unwrap(), at_once.session.read(name).unwrap(), "{name}");
        }
        let latest = |trained: &Trained| trained.monitors.latest("test_perplexity").unwrap();
        assert_eq!(latest(&resumed), latest(&at_once));
        // As in the authors' program, the rate falls after the epoch that follows the constant ones.
        let last = at_once.session.read("learning_rate").unwrap().to_scalar().unwrap();
        assert!((last - rate).abs() < 1e-6, "{last}");
    }
}

#[test]
fn biases_of_the_published_models_start_like_the_weights() {
    let short = Model::new(4, 0.0);
    for (model, limit) in [(MEDIUM.model, 0.05), (LARGE.model, 0.04), (short, 0.0)] {
        let model = Model { units: 4, ..model };
        let graph = Graph::new();
        let inputs: Vec<Tensor> = model.inputs().iter().map(|spec| graph.placeholder(spec)).collect();
        TowerContext::training(&graph).build(|t| model.build_graph(t, &inputs));
        let session = Session::new(graph.freeze().unwrap()).unwrap();
        for name in ["lstm0/b", "lstm1/b", "fc/b"] {
            let largest =
                session.read(name).unwrap().to_f64_vec().into_iter().fold(0.0, |m, b| f64::max(m, b.abs()));
            assert!(largest <= limit && largest >= 0.5 * limit, "{name}: {largest}, not {limit}");
        }
    }
}

#[test]
fn biases_of_the_published_models_learn_twice_as_fast() {
    let step = |bias_rate| {
        let dir = tempfile::tempdir().unwrap();
        let texts = [Split::Train, Split::Valid, Split::Test].map(|split| beginning(split, 80 * BATCH));
        // Biases start at zero, so after one step they are the update.
        let model = Model { bias_rate, ..Model::new(4, 0.0) };
        let config = config(Plan { model, ..tiny(1, false) }, texts).unwrap().logdir(dir.path());
        let trained = launch_train_with_config(config.steps_per_epoch(1), SimpleTrainer::new()).unwrap();
        move |name: &str| trained.session.read(name).unwrap().to_f64_vec()
    };
    assert_eq!((MEDIUM.model.bias_rate, LARGE.model.bias_rate), (2.0, 2.0));
    let (one, two) = (step(1.0), step(2.0));
    for (name, factor) in [("lstm0/b", 2.0), ("lstm1/b", 2.0), ("lstm0/U", 1.0), ("fc/b", 1.0)] {
        let expected: Vec<f64> = one(name).into_iter().map(|value| factor * value).collect();
        assert!(expected.iter().any(|value| *value != 0.0), "{name}");
        assert_eq!(two(name), expected, "{name}");
    }
}
