//! Exported models: every case, written to a file and read back, gives identical bits. No file,
//! however damaged, causes a panic.

use super::trials;
use crate::autodiff::gradients;
use crate::graph::{Fetch, Graph, Tensor};
use crate::io::safetensors;
use crate::op_cases::{Case, Draw, Gradient, all_cases};
use crate::predict::{ExportedModel, OfflinePredictor};
use crate::runtime::{Session, SessionOptions};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use tensorpack_tensor::{CounterRng, DType, HostTensor, Result};

/// All cases except all-reduce, which is only for training.
pub(super) fn cases() -> impl Iterator<Item = Case> {
    all_cases().into_iter().filter(|case| case.name != "AllReduce")
}

/// Returns a trial of a case as a predictor, if asked with the gradients it has, and its feeds.
pub(super) fn predictor(case: &Case, seed: u64, with_gradients: bool) -> (OfflinePredictor, Vec<HostTensor>) {
    let rng = CounterRng::new(seed, case.name);
    let choices: Vec<u32> = (0..48).map(|i| rng.word(0, i)).collect();
    let trial = (case.draw)(&mut Draw::new(&choices));
    let graph = Graph::new();
    let names: Vec<String> = (0..trial.inputs.len()).map(|i| format!("x{i}")).collect();
    let placeholder = |(name, x): (&String, &crate::op_cases::Input)| x.tensor(&graph, name, DType::F32);
    let inputs: Vec<Tensor> = names.iter().zip(&trial.inputs).map(placeholder).collect();
    let mut outputs = (trial.build)(&inputs);
    if with_gradients && matches!(case.gradient, Gradient::Twice) {
        let xs: Vec<&Tensor> = inputs.iter().filter(|x| x.dtype().is_float()).collect();
        let mut latest = outputs.clone();
        for _ in 0..2 {
            let cost =
                latest.iter().map(|y| y.square().sum()).reduce(|a, b| a + b).expect("a case has outputs");
            latest = gradients(&cost, &xs).expect("a gradient").into_iter().flatten().collect();
            outputs.extend(latest.iter().cloned());
        }
    }
    let outputs = outputs.iter().enumerate().map(|(i, y)| (format!("y{i}"), Fetch::from(y))).collect();
    let total = trial.inputs.iter().map(|x| x.len()).sum();
    let mut before = 0;
    let mut fed = Vec::new();
    for x in &trial.inputs {
        fed.push(x.feed(DType::F32, &x.values(&rng, before, total)));
        before += x.len();
    }
    let session = Session::with(graph.freeze().expect("a graph that can be built"), options()).unwrap();
    (OfflinePredictor::from_session(session, names, outputs).unwrap(), fed)
}

fn options() -> SessionOptions {
    SessionOptions { threads: Some(1), memory_limit: Some(64 << 20), ..SessionOptions::default() }
}

/// Runs the model of a file on those values of `fed` that are its inputs.
fn run(path: &Path, fed: &[HostTensor]) -> Result<Vec<HostTensor>> {
    let model = ExportedModel::load_with(path, options())?;
    let taken = model.inputs().iter().filter_map(|spec| fed.get(spec.name[1..].parse::<usize>().ok()?));
    model.predict(&taken.collect::<Vec<_>>())
}

/// Reads the description of the graph in a file.
fn description(path: &Path) -> Value {
    let (_, metadata) = safetensors::read_with_metadata(path).unwrap();
    serde_json::from_str(metadata.values().next().unwrap()).unwrap()
}

#[test]
fn exported_cases_give_identical_bits() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    for case in cases() {
        for seed in 0..4 {
            let (direct, fed) = predictor(&case, seed, true);
            let wanted = direct.predict(&fed.iter().collect::<Vec<_>>());
            direct.export(&path).unwrap_or_else(|e| panic!("{}: {e}", case.name));
            let found = run(&path, &fed);
            match (wanted, found) {
                (Ok(wanted), Ok(found)) => {
                    let bits = |all: &[HostTensor]| {
                        all.iter().map(|t| (t.sizes().to_vec(), t.as_bytes().to_vec())).collect::<Vec<_>>()
                    };
                    assert!(bits(&wanted) == bits(&found), "{}: {wanted:?} became {found:?}", case.name);
                }
                (wanted, found) => panic!("{}: {wanted:?} became {found:?}", case.name),
            }
        }
    }
}

/// Mutates the `n`-th value of a description with the random numbers of `round`.
fn mutate(value: &mut Value, n: &mut usize, rng: &CounterRng, round: u64) {
    let pick = |of: usize| (rng.uniform(7, round) * of as f64) as usize;
    if *n == 0 {
        const NUMBERS: [u64; 9] = [0, 1, 2, 3, 7, 1 << 20, 1 << 40, 1 << 62, u64::MAX];
        match value {
            Value::Number(_) => *value = json!(NUMBERS[pick(NUMBERS.len())]),
            Value::String(s) if DType::ALL.iter().any(|d| d.to_string() == *s) => {
                *value = json!(DType::ALL[pick(DType::ALL.len())]);
            }
            Value::String(s) => {
                *s = ["Add", "Max", "Rest", "MatMul", "Last", "x0", "Valid", ""][pick(8)].into()
            }
            Value::Array(a) if pick(3) == 0 => a.reverse(),
            Value::Array(a) if pick(2) == 0 => drop(a.pop()),
            Value::Array(a) => a.extend(a.last().cloned()),
            Value::Bool(b) => *b = !*b,
            Value::Null => *value = json!(3),
            Value::Object(o) => o.clear(),
        }
    }
    *n = n.wrapping_sub(1);
    match value {
        Value::Array(a) => a.iter_mut().for_each(|v| mutate(v, n, rng, round)),
        Value::Object(o) => o.values_mut().for_each(|v| mutate(v, n, rng, round)),
        _ => {}
    }
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(a) => a.iter().map(count).sum::<usize>(),
        Value::Object(o) => o.values().map(count).sum(),
        _ => 0,
    }
}

/// Collects the JSON pointers of all numbers in a description.
fn numbers(value: &Value, at: String, found: &mut Vec<String>) {
    match value {
        Value::Number(n) if n.is_u64() => found.push(at),
        Value::Array(a) => a.iter().enumerate().for_each(|(i, v)| numbers(v, format!("{at}/{i}"), found)),
        Value::Object(o) => o.iter().for_each(|(k, v)| numbers(v, format!("{at}/{k}"), found)),
        _ => {}
    }
}

/// Any sizes in a file give a result or an error within seconds, and never a panic. One, two or
/// three numbers are changed at once: products of some of these sizes wrap to small numbers.
#[test]
fn huge_sizes_in_a_file_neither_hang_nor_panic() {
    const SIZES: [u64; 9] =
        [(1 << 31) - 1, 1 << 31, 1 << 32, 1 << 33, 1 << 40, 1 << 47, (1 << 60) - 9, 1 << 63, u64::MAX];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let (mut wrong, mut tried) = (Vec::new(), 0);
    for case in cases() {
        let (direct, fed) = predictor(&case, 2, true);
        direct.export(&path).unwrap();
        let (tensors, metadata) = safetensors::read_with_metadata(&path).unwrap();
        let (whole, key) = (description(&path), metadata.keys().next().unwrap().clone());
        let mut pointers = Vec::new();
        numbers(&whole, String::new(), &mut pointers);
        // Gradients repeat the same operations, so a sample of the numbers is enough.
        let step = pointers.len().div_ceil(trials().div_ceil(2) as usize).max(1);
        let rng = CounterRng::new(0, case.name);
        let runs = pointers.iter().step_by(step).flat_map(|pointer| (1..=3).map(move |n| (pointer, n)));
        for (i, (first, changes)) in runs.enumerate() {
            let mut mutated = whole.clone();
            let mut changed = Vec::new();
            for change in 0..changes {
                let draw =
                    |stream, of: usize| (rng.uniform(stream, 3 * i as u64 + change) * of as f64) as usize;
                let pointer = if change == 0 { first } else { &pointers[draw(1, pointers.len())] };
                let size = SIZES[draw(2, SIZES.len())];
                *mutated.pointer_mut(pointer).unwrap() = json!(size);
                changed.push(format!("{pointer} set to {size}"));
            }
            let damaged = safetensors::Metadata::from([(key.clone(), mutated.to_string())]);
            safetensors::write_with_metadata(&path, &tensors, &damaged).unwrap();
            let what = format!("{}, {}", case.name, changed.join(", "));
            let (send, done) = std::sync::mpsc::channel();
            let (path, fed) = (path.clone(), fed.clone());
            std::thread::spawn(move || {
                let outcome = std::panic::catch_unwind(|| run(&path, &fed).map(|_| ()));
                // The receiver is gone if this took too long.
                let _ = send.send(outcome.map_err(|_| ()));
            });
            match done.recv_timeout(std::time::Duration::from_secs(20)) {
                Ok(Ok(Ok(()))) => {}
                // A session turns a kernel's panic into an error.
                Ok(Ok(Err(e))) if !e.message().contains("panicked") => {}
                Ok(Ok(Err(e))) => wrong.push(format!("{what}: {e}")),
                Ok(Err(())) => wrong.push(format!("{what}: panicked")),
                Err(_) => wrong.push(format!("{what}: takes too long")),
            }
            tried += 1;
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(tried > 100, "{tried}");
}

/// One, two or three values are changed at once.
#[test]
fn mutated_files_never_panic() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let mut panics = BTreeSet::new();
    for case in cases() {
        let (direct, fed) = predictor(&case, 1, true);
        direct.export(&path).unwrap();
        let (tensors, metadata) = safetensors::read_with_metadata(&path).unwrap();
        let whole = description(&path);
        for attempt in 0..u64::from(trials().div_ceil(3)) {
            let rng = CounterRng::new(attempt, case.name);
            let mut mutated = whole.clone();
            for round in 0..=attempt % 3 {
                let mut at = (rng.uniform(8, round) * count(&mutated) as f64) as usize;
                mutate(&mut mutated, &mut at, &rng, round);
            }
            let key = metadata.keys().next().unwrap().clone();
            let damaged = safetensors::Metadata::from([(key, mutated.to_string())]);
            safetensors::write_with_metadata(&path, &tensors, &damaged).unwrap();
            let outcome = std::panic::catch_unwind(|| run(&path, &fed).map(|_| ()));
            // A session turns a kernel's panic into an error.
            if outcome.is_err() || matches!(outcome, Ok(Err(e)) if e.message().contains("panicked")) {
                panics.insert(format!("{}, attempt {attempt}", case.name));
            }
        }
    }
    assert!(panics.is_empty(), "{panics:#?}");
}
