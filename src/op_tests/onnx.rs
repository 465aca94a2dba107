//! Every case as an ONNX model: `onnx.checker` accepts it, and onnxruntime computes the same.

use super::exported::cases;
use super::trials;
use crate::graph::{Fetch, Graph, Tensor};
use crate::io::write_tensors;
use crate::op_cases::{Case, Draw, Input};
use crate::predict::{OfflinePredictor, OnnxOptions};
use crate::runtime::{Session, SessionOptions};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use tensorpack_tensor::{CounterRng, DType, ErrorKind, HostTensor};

/// The cases that have no ONNX form: dropout, and a sum over unknown dims, which is a gradient.
const WITHOUT_FORM: &[&str] = &["Attention with drawn dropout", "Attention with dropout", "SumLike"];
/// The cases whose outputs are random.
const RANDOM: &[&str] = &["Dropout", "Random"];

/// Returns a trial of a case as a predictor, and its feeds.
fn predictor(case: &Case, seed: u64) -> (OfflinePredictor, Vec<HostTensor>) {
    let rng = CounterRng::new(seed, case.name);
    let choices: Vec<u32> = (0..48).map(|i| rng.word(0, i)).collect();
    let trial = (case.draw)(&mut Draw::new(&choices));
    let graph = Graph::new();
    let names: Vec<String> = (0..trial.inputs.len()).map(|i| format!("x{i}")).collect();
    let placeholder = |(name, x): (&String, &Input)| x.tensor(&graph, name, DType::F32);
    let inputs: Vec<Tensor> = names.iter().zip(&trial.inputs).map(placeholder).collect();
    let outputs = (trial.build)(&inputs);
    let outputs = outputs.iter().enumerate().map(|(i, y)| (format!("y{i}"), Fetch::from(y))).collect();
    let total = trial.inputs.iter().map(|x| x.len()).sum();
    let (mut before, mut fed) = (0, Vec::new());
    for x in &trial.inputs {
        fed.push(x.feed(DType::F32, &x.values(&rng, before, total)));
        before += x.len();
    }
    let options = SessionOptions { threads: Some(1), ..SessionOptions::default() };
    let session = Session::with(graph.freeze().expect("a graph that can be built"), options).unwrap();
    (OfflinePredictor::from_session(session, names, outputs).unwrap(), fed)
}

/// Writes a model, its inputs and its outputs for `check_models.py`.
fn write(dir: &Path, name: &str, model: &OfflinePredictor, fed: &[HostTensor]) -> crate::Result<()> {
    model.export_onnx(dir.join(format!("{name}.onnx")), &OnnxOptions::default())?;
    let outputs = model.predict(&fed.iter().collect::<Vec<_>>())?;
    let inputs = fed.iter().enumerate().map(|(i, x)| (format!("in:x{i}"), x.clone()));
    let outputs = outputs.into_iter().enumerate().map(|(i, y)| (format!("out:y{i}"), y));
    write_tensors(dir.join(format!("{name}.npz")), &inputs.chain(outputs).collect::<Vec<_>>())
}

#[test]
fn every_case_is_written_and_runs_in_onnxruntime() {
    let dir = tempfile::tempdir().unwrap();
    let mut without_form = BTreeSet::new();
    for case in cases().filter(|case| !RANDOM.iter().any(|random| case.name.contains(random))) {
        for seed in 0..u64::from(trials().div_ceil(3)) {
            let (model, fed) = predictor(&case, seed);
            // onnxruntime crashes on some empty tensors.
            if fed.iter().any(HostTensor::is_empty) {
                continue;
            }
            match write(dir.path(), &format!("{}-{seed}", case.name), &model, &fed) {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::Unsupported => drop(without_form.insert(case.name)),
                Err(e) => panic!("{}: {e}", case.name),
            }
        }
    }
    assert_eq!(without_form.into_iter().collect::<Vec<_>>(), WITHOUT_FORM);
    if !tensorpack_testing::opted_in("TENSORPACK_ONNXRUNTIME") {
        return;
    }
    let python = std::env::var_os("TENSORPACK_ONNXRUNTIME").filter(|python| python != "1");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/onnx/check_models.py");
    let output =
        Command::new(python.unwrap_or_else(|| "python3".into())).arg(script).arg(dir.path()).output();
    let output = output.expect("TENSORPACK_ONNXRUNTIME names a Python");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
