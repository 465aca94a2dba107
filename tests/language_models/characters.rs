//! The example `char_rnn`: text that is generated with a carried state, windows, and resumed runs.

use crate::char_rnn::{Args, CharRnn, Generator, LENGTH, Model};
use crate::text::{Alphabet, draw, windows};
use clap::Parser;
use std::path::Path;
use tensorpack::dataflow::{DataFlow, RandomAccess};
use tensorpack::io::DictRestore;
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;
use tensorpack::train::Trained;
use tensorpack_testing::assert_mentions;

const RNN: CharRnn = CharRnn { characters: 7, units: 12 };

/// A text of random characters.
fn random_text(length: usize) -> Vec<i32> {
    let rng = CounterRng::new(0, "text");
    (0..length as u64).map(|i| (rng.word(0, i) % RNN.characters as u32) as i32).collect()
}

/// A model of whole windows, with larger weights than at the start of training.
fn whole() -> OfflinePredictor {
    let model = Model { rnn: RNN, rate: Schedule::constant(0.0) };
    let config = PredictConfig::new(model, ["logits"]).unwrap().inputs(["text"]);
    let predictor = OfflinePredictor::new(config).unwrap();
    let session = predictor.session();
    for variable in session.graph().variables() {
        let value = session.read(&variable.name).unwrap();
        let larger: Vec<f64> = value.to_f64_vec().iter().map(|x| 3.0 * x).collect();
        let larger = HostTensor::from_f64(DType::F32, value.sizes(), &larger).unwrap();
        session.write(&variable.name, &larger).unwrap();
    }
    predictor
}

/// A generator with the weights of `whole`.
fn generator(whole: &OfflinePredictor) -> Generator {
    let session = whole.session();
    let weights =
        session.graph().variables().iter().map(|v| (v.name.clone(), session.read(&v.name).unwrap()));
    Generator::new(RNN, DictRestore::new(weights)).unwrap()
}

#[test]
fn the_carried_state_gives_the_logits_of_the_whole_window() {
    let whole = whole();
    let text = random_text(LENGTH);
    let expected = whole.predict(&[&HostTensor::new([1, LENGTH], text.clone()).unwrap()]).unwrap();
    let expected = expected[0].to_f64_vec();
    let mut generator = generator(&whole);
    for (i, &character) in text.iter().enumerate() {
        let expected = &expected[i * RNN.characters..][..RNN.characters];
        let found = generator.append(character).unwrap();
        let far = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        let scale = expected.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
        assert!(scale > 0.1 && far < 1e-4 * scale, "character {i}: {far} of {scale}");
    }
}

#[test]
fn generated_text_begins_with_the_start_and_follows_the_seed() {
    let whole = whole();
    let start = [3, 1, 4];
    let text = |temperature, seed| generator(&whole).generate(&start, 20, temperature, seed).unwrap();
    let first = text(1.0, 0);
    assert_eq!((first.len(), &first[..3]), (23, &start[..]));
    assert_eq!(first, text(1.0, 0));
    assert_ne!(first, text(1.0, 1));
    // A low temperature leaves only the most probable character.
    assert_eq!(text(1e-3, 0), text(1e-3, 1));
}

#[test]
fn draws_follow_the_temperature() {
    let logits = [0.0, 2f64.ln(), 0.0];
    // Probabilities 1/4, 1/2, 1/4 and, at half the temperature, 1/6, 4/6, 1/6.
    assert_eq!([0.0, 0.24, 0.26, 0.74, 0.76, 1.0].map(|u| draw(&logits, 1.0, u)), [0, 0, 1, 1, 2, 2]);
    assert_eq!([0.16, 0.17, 0.83, 0.84].map(|u| draw(&logits, 0.5, u)), [0, 1, 1, 2]);
}

#[test]
fn windows_cover_the_text() {
    let starts = |flow: tensorpack::dataflow::FromFn| -> Vec<Vec<i32>> {
        let first = |i, part: usize| flow.get(i).unwrap()[part].as_slice::<i32>().unwrap().to_vec();
        (0..flow.len()).map(|i| [first(i, 0), first(i, 1)[2..].to_vec()].concat()).collect()
    };
    let text: Vec<i32> = (0..8).collect();
    assert_eq!(starts(windows(text.clone(), 3, 3)), [[0, 1, 2, 3], [3, 4, 5, 6]]);
    assert_eq!(starts(windows(text.clone(), 3, 1)).last().unwrap(), &[4, 5, 6, 7]);
    assert_eq!(windows(text.clone(), 3, 1).len(), 5);
    assert_eq!(windows(text[..4].to_vec(), 3, 3).len(), 1);
    assert_eq!(windows(text[..3].to_vec(), 3, 3).len(), 0);
    let alphabet = Alphabet::of(&["cab".to_string(), "d".to_string()]);
    assert_eq!(alphabet.indices("abcd").unwrap(), [0, 1, 2, 3]);
    assert_eq!(alphabet.text(&[3, 0]), "da");
    assert!(alphabet.indices("x").is_err_and(|e| e.message().contains("'x'")));
}

fn train(dir: &Path, epochs: u64) -> Trained {
    let flow = windows(random_text(400), LENGTH, 1).shuffle().batch(4);
    let model = Model { rnn: RNN, rate: Schedule::piecewise(2e-3, [(4, 2e-4)]) };
    let config = TrainConfig::new(model, flow).callback(ModelSaver::new()).logdir(dir);
    launch_train_with_config(config.steps_per_epoch(3).max_epoch(epochs), SimpleTrainer::new()).unwrap()
}

/// `--sample` trains nothing, so it would ignore the options of training.
#[test]
fn sampling_rejects_options_of_training() {
    let check = |options: &str| {
        Args::try_parse_from(["char_rnn"].into_iter().chain(options.split_whitespace())).unwrap().check()
    };
    for option in ["--max-epoch 3", "--devices cpu:1", "--full", "--assert", "--dry-run"] {
        check(option).unwrap();
        let e = check(&format!("--sample --load run {option}")).unwrap_err();
        assert_mentions(e.to_string(), &[option.split(' ').next().unwrap(), "--sample"]);
    }
    check("--sample --load run --seed 3 --text file --start a --length 5 --temperature 0.5").unwrap();
    assert_mentions(check("--temperature 0").unwrap_err().to_string(), &["--temperature"]);
}

#[test]
fn a_resumed_char_rnn_equals_an_uninterrupted_one() {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let at_once = train(whole.path(), 3);
    train(parts.path(), 1);
    let resumed = train(parts.path(), 3);
    for name in ["embedding/W", "lstm1/U", "fc/b"] {
        assert_eq!(resumed.session.read(name).unwrap(), at_once.session.read(name).unwrap(), "{name}");
    }
    // Text is generated from the checkpoint, with the weights of the session.
    let mut saved = Generator::new(RNN, tensorpack::io::SaverRestore::new(parts.path())).unwrap();
    let names =
        ["embedding/W", "lstm0/W", "lstm0/U", "lstm0/b", "lstm1/W", "lstm1/U", "lstm1/b", "fc/W", "fc/b"];
    let weights = names.map(|name| (name, at_once.session.read(name).unwrap()));
    let mut current = Generator::new(RNN, DictRestore::new(weights)).unwrap();
    assert_eq!(saved.append(5).unwrap(), current.append(5).unwrap());
}
