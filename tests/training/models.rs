//! Small models and data that the tests train.

use tensorpack::dataflow::FromList;
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;

/// Learns `y = x . w` of three numbers.
#[derive(Clone)]
pub(crate) struct Line;

impl ModelDesc for Line {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None, Some(3)]), TensorSpec::f32("y", [None, Some(1)])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let out = Linear::new(1).apply(t, "fc", &inputs[0]);
        let cost = (out - &inputs[1]).square().mean().named("cost");
        t.moving_summary(&[&cost]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(0.05).boxed()
    }
}

/// [`Line`], with variables for callbacks to change: `knob` and `other` start at 1, the integer
/// `count` at 3.
#[derive(Clone)]
pub(crate) struct Knobs;

impl ModelDesc for Knobs {
    fn inputs(&self) -> Vec<TensorSpec> {
        Line.inputs()
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        for name in ["knob", "other"] {
            t.variable(VariableSpec::new(name, []).init(Init::Constant(1.0)).non_trainable());
        }
        t.variable(
            VariableSpec::new("count", []).dtype(DType::I64).init(Init::Constant(3.0)).non_trainable(),
        );
        Line.build_graph(t, inputs)
    }

    fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer> {
        Line.optimizer(t)
    }
}

/// `n` batches of 4 examples of the line.
pub(crate) fn line(n: usize) -> FromList {
    let batch = |b: usize| {
        let x: Vec<f32> = (0..12).map(|i| ((b * 12 + i).pow(2) as f32 * 0.37).sin()).collect();
        let y: Vec<f32> = x.chunks(3).map(|r| r[0] - 2.0 * r[1] + 0.5 * r[2]).collect();
        vec![HostTensor::new([4, 3], x).unwrap(), HostTensor::new([4, 1], y).unwrap()]
    };
    FromList::new((0..n).map(batch).collect())
}
