//! The input and the carried state of `ptb_lstm`.

use crate::ptb_lstm::{BATCH, Model, Plan, STEPS, config, unrolled};
use std::path::Path;
use tensorpack::dataflow::RandomAccess;
use tensorpack::dataflow::dataset::ptb::{BpttBatches, Split};
use tensorpack::dataflow::dataset::sentences;
use tensorpack::graph::UPDATE_OPS;
use tensorpack::input::InputSource;
use tensorpack::prelude::*;
use tensorpack::runtime::IntoFetch;
use tensorpack::train::Trained;

/// The beginning of a generated text.
fn beginning(split: Split, words: usize) -> HostTensor {
    let text = sentences::token_ids(split).unwrap();
    HostTensor::new([words], text.as_slice::<i32>().unwrap()[..words].to_vec()).unwrap()
}

#[test]
fn the_words_in_the_graph_are_those_of_the_dataflow() {
    // Three steps and a few words too many.
    let words = beginning(Split::Train, BATCH * (3 * STEPS + 9) + 7);
    let flow = BpttBatches::new(words.clone(), BATCH, STEPS).unwrap();
    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    let mut input = unrolled(&words).unwrap();
    let tensors = input.tensors(&t, &Model { units: 1, dropout: 0.0, dtype: DType::F32 }.inputs()).unwrap();
    let on = graph.group(&graph.collection_ops(UPDATE_OPS).iter().collect::<Vec<_>>());
    assert_eq!((input.size(), flow.len()), (Some(3), 3));
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let what: [&dyn IntoFetch; 3] = [&tensors[0], &tensors[1], &on];
    for step in 0..7 {
        let sample = flow.get(step % 3).unwrap();
        assert_eq!(session.run(&what, &[]).unwrap()[..2], sample[..], "step {step}");
    }
}

fn train(dir: &Path, epochs: u64) -> Trained {
    let texts = [Split::Train, Split::Valid, Split::Test].map(|split| beginning(split, 80 * BATCH));
    let plan =
        Plan { model: Model { units: 4, dropout: 0.5, dtype: DType::F32 }, constant: 1, factor: 0.5, epochs };
    let config = config(plan, texts).unwrap().logdir(dir).steps_per_epoch(3);
    launch_train_with_config(config, SimpleTrainer::new()).unwrap()
}

#[test]
fn a_run_in_two_parts_is_one_run() {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let at_once = train(whole.path(), 3);
    train(parts.path(), 1);
    let resumed = train(parts.path(), 3);
    for name in ["fc/W", "lstm1/U", "position", "learning_rate", "c1"] {
        assert_eq!(resumed.session.read(name).unwrap(), at_once.session.read(name).unwrap(), "{name}");
    }
    let stats = |dir: &Path| std::fs::read_to_string(dir.join("stats.jsonl")).unwrap();
    assert_eq!(stats(parts.path()), stats(whole.path()));
    // Constant up to the second epoch, then a half after each.
    assert_eq!(at_once.session.read("learning_rate").unwrap().to_scalar().unwrap(), 0.25);
    assert!(at_once.session.read("c1").unwrap().to_f64_vec().iter().all(|c| *c == 0.0));
    let latest = |name: &str| at_once.monitors.latest(name).unwrap();
    for text in ["validation", "test"] {
        let cost = latest(&format!("{text}_cost"));
        assert_eq!(latest(&format!("{text}_perplexity")), (cost / STEPS as f64).exp());
        assert!(cost < STEPS as f64 * 10_000f64.ln(), "{text}: {cost} is no better than a guess");
    }
}
