//! Every case as an ONNX model: `onnx.checker` accepts it, onnxruntime computes the same, and so does
//! the model that is read back.

use super::exported::{cases, predictor};
use super::trials;
use crate::io::write_tensors;
use crate::predict::{ExportedModel, Module, OfflinePredictor, OnnxOptions};
use crate::runtime::SessionOptions;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use tensorpack_tensor::{ErrorKind, HostTensor};

/// The cases that have no ONNX form: dropout, loops, layers that quantize their inputs, suppression
/// by given overlaps, and a sum over unknown dims, which is a gradient.
const WITHOUT_FORM: &[&str] = &[
    "Attention with drawn dropout",
    "Attention with dropout",
    "CtcLoss",
    "Int8Conv2d",
    "Int8MatMul",
    "Nms",
    "Scan",
    "SumLike",
    "While",
];
/// The cases whose outputs are random.
const RANDOM: &[&str] = &["Dropout", "Random"];

fn options() -> SessionOptions {
    SessionOptions { threads: Some(1), ..SessionOptions::default() }
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
            let (model, fed) = predictor(&case, seed, false);
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

/// Returns whether an ONNX file has this input.
fn is_input(path: &Path, name: &str) -> bool {
    Module::load(path).is_ok_and(|module| module.inputs().iter().any(|spec| spec.name == name))
}

/// Compares a model with the one that is read back from its ONNX file.
fn read_back(path: &Path, model: &OfflinePredictor, fed: &[HostTensor]) -> Result<(), String> {
    let names: Vec<String> = (0..fed.len()).map(|i| format!("x{i}")).collect();
    let read = match ExportedModel::load_with(path, options()) {
        // Some cases need the sizes of their inputs while the graph is built.
        Err(e) if matches!(e.kind(), ErrorKind::Shape | ErrorKind::Unsupported) => {
            let sizes = names.iter().zip(fed).map(|(name, x)| (name.as_str(), x.sizes()));
            // An input that no output depends on is not in the file.
            let sizes: Vec<_> = sizes.filter(|(name, _)| is_input(path, name)).collect();
            ExportedModel::load_sized(path, &sizes, options())
        }
        read => read,
    };
    let read = read.map_err(|e| e.to_string())?;
    let inputs = read.inputs().iter().filter_map(|spec| fed.get(spec.name[1..].parse::<usize>().ok()?));
    let found = read.predict(&inputs.collect::<Vec<_>>()).map_err(|e| e.to_string())?;
    let wanted = model.predict(&fed.iter().collect::<Vec<_>>()).map_err(|e| e.to_string())?;
    for (wanted, found) in wanted.iter().zip(&found) {
        let described = |t: &HostTensor| (t.dtype(), t.sizes().to_vec());
        if described(wanted) != described(found) {
            return Err(format!("{:?} became {:?}", described(wanted), described(found)));
        }
        super::chain::close(&wanted.to_f64_vec(), &found.to_f64_vec(), 1e-5)?;
    }
    Ok(())
}

#[test]
fn every_case_is_read_back_from_onnx() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("case.onnx");
    let (mut failures, mut compared) = (Vec::new(), 0);
    for case in cases().filter(|case| !RANDOM.iter().any(|random| case.name.contains(random))) {
        for seed in 0..u64::from(trials().div_ceil(3)) {
            let (model, fed) = predictor(&case, seed, false);
            let is_empty = fed.iter().any(HostTensor::is_empty);
            if is_empty || model.export_onnx(&path, &OnnxOptions::default()).is_err() {
                continue;
            }
            compared += 1;
            if let Err(e) = read_back(&path, &model, &fed) {
                failures.push(format!("{} {seed}: {e}", case.name));
            }
        }
    }
    assert!(failures.is_empty() && compared > 500, "{compared} compared\n{}", failures.join("\n"));
}
