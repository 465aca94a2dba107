//! Checks that every operation of `src/ops` occurs in a case.
//!
//! The chain of comparisons runs every case on the reference device, so an operation without
//! `OpDef::evaluate` fails there.

use crate::autodiff::gradients;
use crate::graph::{Graph, NodeKind, Tensor};
use crate::op_cases::{Case, Draw, Gradient, all_cases};
use std::collections::BTreeSet;
use std::path::Path;
use tensorpack_tensor::{CounterRng, DType};

/// Operations that only gradients create; users have no method for them.
pub(super) const OF_GRADIENTS: [&str; 17] = [
    "AddAlongAxis",
    "AttentionDropout",
    "AttentionGrad",
    "AttentionScoreGrad",
    "AveragePoolGrad",
    "Conv2dFilterGrad",
    "Conv2dInputGrad",
    "DepthwiseConv2dFilterGrad",
    "DepthwiseConv2dInputGrad",
    "MaxPoolGrad",
    "MaxPoolPick",
    "OtherProducts",
    "OtherProductsGrad",
    "PartOf",
    "Unpad",
    "Unslice",
    "Untile",
];

/// The text of every file in `src/ops`.
fn sources() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops");
    let entries = std::fs::read_dir(folder).expect("src/ops exists");
    let paths = entries.map(|entry| entry.expect("the folder can be read").path());
    let files = paths.filter(|path| path.extension().is_some_and(|e| e == "rs"));
    files.map(|path| std::fs::read_to_string(path).expect("a source file is text")).collect()
}

/// Every name that a `fn name` in `src/ops` can return.
pub(super) fn names_in_source() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for text in sources() {
        for after in text.split("fn name(&self) -> &str {").skip(1) {
            let body = after.split("\n    }").next().unwrap_or(after);
            names.extend(body.split('"').skip(1).step_by(2).map(String::from));
        }
    }
    names
}

/// The names of the operations in the graphs of a case: its own, and those of its gradients.
fn names_in_case(case: &Case, seed: u64) -> [BTreeSet<String>; 2] {
    let rng = CounterRng::new(seed, case.name);
    let choices: Vec<u32> = (0..48).map(|i| rng.word(0, i)).collect();
    let trial = (case.draw)(&mut Draw::new(&choices));
    let build = |twice: bool| {
        let graph = Graph::new();
        let inputs: Vec<Tensor> = trial
            .inputs
            .iter()
            .enumerate()
            .map(|(i, x)| x.tensor(&graph, &format!("x{i}"), DType::F32))
            .collect();
        let mut outputs = (trial.build)(&inputs);
        let xs: Vec<&Tensor> = inputs.iter().filter(|x| x.dtype().is_float()).collect();
        for _ in 0..if twice { 2 } else { 0 } {
            let cost =
                outputs.iter().map(|y| y.square().sum()).reduce(|a, b| a + b).expect("a case has outputs");
            outputs = gradients(&cost, &xs).expect("a gradient").into_iter().flatten().collect();
        }
        let frozen = graph.freeze().expect("a graph that can be built");
        let ops = frozen.nodes().iter().filter(|n| matches!(n.kind, NodeKind::Op(_)));
        ops.map(|n| n.kind.name().to_string()).collect::<BTreeSet<String>>()
    };
    [build(false), build(matches!(case.gradient, Gradient::Twice))]
}

#[test]
fn every_operation_has_a_case() {
    let (mut direct, mut all) = (BTreeSet::new(), BTreeSet::new());
    for case in all_cases() {
        for seed in 0..6 {
            let [own, with_gradients] = names_in_case(&case, seed);
            direct.extend(own);
            all.extend(with_gradients);
        }
    }
    let names = names_in_source();
    assert!(names.len() > 50, "found too few names in src/ops: {names:?}");
    let missing: Vec<&String> = names
        .iter()
        .filter(|n| !if OF_GRADIENTS.contains(&n.as_str()) { all.contains(*n) } else { direct.contains(*n) })
        .collect();
    assert!(missing.is_empty(), "operations without a case at the end of their file: {missing:?}");
}
