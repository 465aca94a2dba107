//! `#[derive(Inputs)]` and `Model`: inputs by name.

use crate::models::{Line, line};
use tensorpack::ErrorKind;
use tensorpack::prelude::*;

#[derive(Inputs)]
struct Batch {
    #[input(f32, [None, 3])]
    x: Tensor,
    #[input(f32, [None, 1])]
    y: Tensor,
}

/// [`Line`] with named inputs.
struct NamedLine;

impl Model for NamedLine {
    type Inputs = Batch;

    fn build_graph(&self, t: &TowerContext, Batch { x, y }: Batch) -> Tensor {
        Line.build_graph(t, &[x, y])
    }

    fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer> {
        Line.optimizer(t)
    }
}

#[test]
fn a_model_trains_like_a_model_desc() {
    assert_eq!(NamedLine.inputs(), Line.inputs());
    let weights = |config: TrainConfig| {
        let config = config.no_logdir().max_epoch(2);
        let trained = launch_train_with_config(config, SimpleTrainer::new()).unwrap();
        ["fc/W", "fc/b"].map(|name| trained.session.read(name).unwrap())
    };
    assert_eq!(weights(TrainConfig::new(NamedLine, line(2))), weights(TrainConfig::new(Line, line(2))));
}

#[test]
fn attributes_describe_the_inputs() {
    const SIDE: usize = 3;
    #[derive(Inputs)]
    #[expect(dead_code, reason = "only the signature is used")]
    struct Everything {
        #[input(bf16, [None, 2 * SIDE, usize::MAX], name = "a-name")]
        named: Tensor,
        #[input(f64, [], allow_infinite)]
        scalar: Tensor,
        #[input(bool, [None])]
        r#use: Tensor,
    }
    let expected = [
        TensorSpec::new("a-name", DType::Bf16, [None, Some(6), Some(usize::MAX)]),
        TensorSpec::new("scalar", DType::F64, []).allow_infinite(),
        TensorSpec::new("use", DType::Bool, [None]),
    ];
    assert_eq!(Everything::signature(), expected);
}

#[test]
fn the_number_of_tensors_is_checked() {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(2)]));
    let e = Batch::from_tensors(std::slice::from_ref(&x)).err().expect("one tensor is not enough");
    assert_eq!(e.kind(), ErrorKind::Argument);
    assert!(e.message().contains("x, y") && e.message().contains("2 inputs"), "{e}");

    ModelDesc::build_graph(&NamedLine, &TowerContext::training(&graph), &[x]);
    let e = graph.freeze().expect_err("the graph keeps the error");
    assert!(e.message().contains("2 inputs"), "{e}");
}
