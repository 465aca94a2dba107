//! Operations on empty inputs. Elementwise operations return an empty tensor; the cases of the
//! others state the result, and `docs/empty-inputs.md` lists them.

use super::completeness::{OF_GRADIENTS, names_in_source};
use crate::graph::{Graph, NodeKind, Tensor, TensorSpec};
use crate::op_cases::{Case, Draw, all_cases};
use crate::runtime::{Device, Session, SessionOptions};
use std::collections::BTreeSet;
use tensorpack_tensor::{CounterRng, DType, HostTensor, Result};

/// Parses a list such as `[0, 3], i32[0]` into dtypes and sizes; the dtype defaults to f32.
fn tensors(text: &str) -> Vec<(DType, Vec<usize>)> {
    let parts = text.split(']').map(|p| p.trim_start_matches(", ")).filter(|p| !p.is_empty());
    let part = |p: &str| {
        let (dtype, sizes) = p.split_once('[').unwrap_or_else(|| panic!("no sizes in {text}"));
        let dtype = DType::ALL.into_iter().find(|d| d.to_string() == dtype).unwrap_or(DType::F32);
        (dtype, sizes.split(", ").filter(|n| !n.is_empty()).map(|n| n.parse().unwrap()).collect())
    };
    parts.map(part).collect()
}

/// Runs a call on inputs filled with ones. If `open`, the first size of the first input is unknown
/// while the graph is built. Returns the result, and the names of the operations that were built
/// and of their scopes.
fn run(
    call: fn(&[Tensor]) -> Tensor,
    inputs: &[(DType, Vec<usize>)],
    open: bool,
    device: Device,
) -> (Result<HostTensor>, Vec<String>) {
    let graph = Graph::new();
    let names: Vec<String> = (0..inputs.len()).map(|i| format!("x{i}")).collect();
    let placeholder = |(i, (dtype, sizes)): (usize, &(DType, Vec<usize>))| {
        let known = |d: usize| !open || i > 0 || d > 0;
        let sizes: Vec<Option<usize>> =
            sizes.iter().enumerate().map(|(d, &n)| known(d).then_some(n)).collect();
        graph.placeholder(&TensorSpec::new(names[i].as_str(), *dtype, sizes))
    };
    let x: Vec<Tensor> = inputs.iter().enumerate().map(placeholder).collect();
    let y = call(&x);
    let frozen = match graph.freeze() {
        Ok(frozen) => frozen,
        Err(e) => return (Err(e), Vec::new()),
    };
    let ops = frozen.nodes().iter().filter(|n| matches!(n.kind, NodeKind::Op(_)));
    let ops = ops.flat_map(|n| n.name.split('/').chain([n.kind.name()])).map(String::from).collect();
    let values: Vec<HostTensor> = inputs
        .iter()
        .map(|(dtype, sizes)| {
            HostTensor::from_f64(*dtype, sizes.clone(), &vec![1.0; sizes.iter().product()]).unwrap()
        })
        .collect();
    let feeds: Vec<(&str, &HostTensor)> = names.iter().map(String::as_str).zip(&values).collect();
    let options = SessionOptions { device, ..SessionOptions::default() };
    let result = Session::with(frozen, options).and_then(|s| Ok(s.run(&[&y], &feeds)?.remove(0)));
    (result, ops)
}

/// Formats a result as in the table.
fn describe(result: &Result<HostTensor>) -> String {
    match result {
        Ok(y) if y.is_empty() => format!("empty {:?}", y.sizes()),
        Ok(y) => {
            let values = y.to_f64_vec();
            assert!(values.iter().all(|v| *v == values[0]), "{y:?} cannot be written in the table");
            let kind = if values[0] == 0.0 { "zeros".into() } else { values[0].to_string() };
            format!("{kind} {:?}", y.sizes())
        }
        Err(e) => format!("error: {}", e.message()),
    }
}

#[test]
fn empty_inputs_give_the_stated_result() {
    for case in all_cases() {
        for empty in &case.empties {
            let what = format!("{}: {} on {}", case.name, empty.call, empty.inputs);
            let inputs = tensors(empty.inputs);
            let found = describe(&run(empty.build, &inputs, false, Device::Cpu(0)).0);
            let reference = describe(&run(empty.build, &inputs, false, Device::Reference).0);
            assert_eq!(found, reference, "{what}, on the reference device");
            match empty.result.strip_prefix("error: ") {
                Some(text) => {
                    assert!(found.starts_with("error: ") && found.contains(text), "{what}: {found}")
                }
                None => assert_eq!(found, empty.result, "{what}"),
            }
            // The result is the same if a size is known only when the graph runs.
            let late = describe(&run(empty.build, &inputs, true, Device::Cpu(0)).0);
            let reference = describe(&run(empty.build, &inputs, true, Device::Reference).0);
            assert_eq!(late, reference, "{what}, with an unknown first size, on the reference device");
            let [early, late] =
                [found, late].map(|f| if f.starts_with("error: ") { "error".to_string() } else { f });
            assert_eq!(early, late, "{what}, with an unknown first size");
        }
    }
}

/// Runs a trial of an elementwise case with an empty input, and checks that the result is empty.
/// Returns the names of its operations.
fn check_elementwise(case: &Case) -> BTreeSet<String> {
    let rng = CounterRng::new(0, case.name);
    for attempt in 0..200 {
        let choices: Vec<u32> = (0..48).map(|i| rng.word(attempt, i)).collect();
        let trial = (case.draw)(&mut Draw::new(&choices));
        if trial.inputs[0].len() > 0 {
            continue;
        }
        let mut names = BTreeSet::new();
        for device in [Device::Cpu(0), Device::Reference] {
            let graph = Graph::new();
            let inputs = trial.inputs.iter().enumerate();
            let x: Vec<Tensor> =
                inputs.map(|(i, x)| x.tensor(&graph, &format!("x{i}"), DType::F32)).collect();
            let y = (trial.build)(&x);
            let frozen = graph.freeze().unwrap();
            let ops = frozen.nodes().iter().filter(|n| matches!(n.kind, NodeKind::Op(_)));
            names.extend(ops.map(|n| n.kind.name().to_string()));
            let options = SessionOptions { device, ..SessionOptions::default() };
            let session = Session::with(frozen, options).unwrap();
            let fed: Vec<(String, HostTensor)> = trial
                .inputs
                .iter()
                .enumerate()
                .map(|(i, x)| (format!("x{i}"), x.feed(DType::F32, &x.values(&rng, 0, x.len()))))
                .collect();
            let feeds: Vec<(&str, &HostTensor)> = fed.iter().map(|(n, v)| (n.as_str(), v)).collect();
            let result = session.run(&[&y[0]], &feeds).unwrap().remove(0);
            assert!(result.is_empty(), "{} on {:?} is {result:?} on {device}", case.name, trial.inputs);
        }
        return names;
    }
    panic!("no trial of {} had an empty input", case.name);
}

#[test]
fn every_operation_has_a_case_with_empty_inputs() {
    let mut covered = BTreeSet::new();
    for case in all_cases() {
        if case.elementwise {
            covered.extend(check_elementwise(&case));
        }
        for empty in &case.empties {
            covered.insert(case.name.to_string());
            covered.extend(run(empty.build, &tensors(empty.inputs), false, Device::Cpu(0)).1);
        }
    }
    let names = names_in_source();
    let missing: Vec<&String> =
        names.iter().filter(|n| !covered.contains(*n) && !OF_GRADIENTS.contains(&n.as_str())).collect();
    assert!(missing.is_empty(), "operations without a case for empty inputs: {missing:?}");
}
