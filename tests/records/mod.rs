//! What a run leaves behind for people and tools: curves, its manifest, tables.

mod checks;
mod curves;
mod manifest;
mod summary;

use std::path::Path;
use tensorpack::dataflow::FromList;
use tensorpack::prelude::*;
use tensorpack::serde_json::{self, Value};

/// Learns `y = x . w` of three numbers, with a learning rate that callbacks can set.
#[derive(Clone)]
pub(crate) struct Line;

impl ModelDesc for Line {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None, Some(3)]), TensorSpec::f32("y", [None, Some(1)])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let out = Linear::new(1).apply(t, "fc", &inputs[0]).named("out");
        let distance = (out - &inputs[1]).abs().mean().named("distance");
        t.moving_summary(&[&distance]);
        distance.square().named("squared")
    }

    fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(t.hyper_param("learning_rate", 0.05)).boxed()
    }
}

/// Returns `n` batches of 4 examples of the line.
pub(crate) fn line(n: usize) -> FromList {
    let batch = |b: usize| {
        let x: Vec<f32> = (0..12).map(|i| ((b * 12 + i).pow(2) as f32 * 0.37).sin()).collect();
        let y: Vec<f32> = x.chunks(3).map(|r| r[0] - 2.0 * r[1] + 0.5 * r[2]).collect();
        vec![HostTensor::new([4, 3], x).unwrap(), HostTensor::new([4, 1], y).unwrap()]
    };
    FromList::new((0..n).map(batch).collect())
}

/// Returns the objects of a file of JSON lines.
pub(crate) fn lines(dir: &Path, file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.join(file)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
