//! Checks that every node points at the user's line, never at a line of this library.

use crate::autodiff::gradients;
use crate::graph::{Graph, Tensor};
use crate::op_cases::{Draw, Gradient, all_cases};
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use tensorpack_tensor::{CounterRng, DType};

/// Returns, for each line of a file, whether it is library code rather than user code.
fn own_lines(file: &str) -> Vec<bool> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap_or_default();
    let tests_only = file.contains("op_tests") || file.contains("op_cases");
    // The cases at the end of a file count as user code.
    let code = text.lines().take_while(|l| !tests_only && *l != "#[cfg(test)]");
    // A case that takes an operation as a function pointer is at the line of its definition. Only
    // in a test of this crate: elsewhere the graph knows a line of the user.
    code.map(|l| !l.contains("pub fn ") && !l.starts_with("methods!")).collect()
}

#[test]
fn every_node_of_an_operation_has_the_line_of_its_caller() {
    let (mut files, mut wrong, mut seen) = (HashMap::new(), BTreeSet::new(), 0);
    for case in all_cases() {
        for attempt in 0..4 {
            let rng = CounterRng::new(attempt, case.name);
            let choices: Vec<u32> = (0..48).map(|i| rng.word(0, i)).collect();
            let trial = (case.draw)(&mut Draw::new(&choices));
            let graph = Graph::new();
            let inputs = trial.inputs.iter().enumerate();
            let inputs: Vec<Tensor> =
                inputs.map(|(i, x)| x.tensor(&graph, &format!("x{i}"), DType::F32)).collect();
            let outputs = (trial.build)(&inputs);
            if matches!(case.gradient, Gradient::Twice) {
                let xs: Vec<&Tensor> = inputs.iter().filter(|x| x.dtype().is_float()).collect();
                let costs = outputs.iter().map(|y| y.square().sum());
                let cost = costs.reduce(|a, b| a + b).expect("a case has outputs");
                gradients(&cost, &xs).expect("a gradient");
            }
            for node in graph.freeze().expect("a graph").nodes() {
                let own = files.entry(node.site.file).or_insert_with(|| own_lines(node.site.file));
                seen += 1;
                if own.get(node.site.line as usize - 1).copied().unwrap_or(false) {
                    wrong.insert(format!("{}: {} at {}", case.name, node.name, node.site));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} nodes: {wrong:#?}", wrong.len());
    assert!(seen > 1000, "only {seen} nodes were checked");
}
