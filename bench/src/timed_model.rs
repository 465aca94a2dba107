//! A model that computes nothing: its layers sleep for as long as they would compute. Its gradients
//! are real, and so is their exchange. More ranks than cores can train it without slowing each other
//! down.

use crate::step::Built;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tensorpack::dataflow::FromList;
use tensorpack::graph::{Fetch, GradCx, Init, OpDef, Spec, Tensor, TensorSpec, VariableSpec};
use tensorpack::input::{FeedInput, InputSource};
use tensorpack::kir::{CustomKernel, LowerCx, View};
use tensorpack::optim::{Optimizer, Sgd};
use tensorpack::tower::TowerContext;
use tensorpack::train::Strategy;
use tensorpack::{HostTensor, Result};

/// The layers of the model: as many as there are buckets, so that each is one.
pub(crate) const LAYERS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TimedModel {
    /// The elements of each layer's weights.
    pub(crate) elements: usize,
    /// The times of each layer.
    pub(crate) forward: Duration,
    pub(crate) backward: Duration,
}

impl TimedModel {
    /// Returns the bytes of a layer's gradient.
    pub(crate) fn bucket(&self) -> f64 {
        (4 * self.elements) as f64
    }

    fn cost(&self, t: &TowerContext, x: &Tensor) -> Tensor {
        let layer = |x: Tensor, i: usize| {
            t.build(|t| {
                let spec =
                    VariableSpec::new(format!("layer{i}/W"), [self.elements]).init(Init::Constant(0.0));
                Tensor::apply_one(Forward(*self), &[&x, &t.variable(spec)])
            })
        };
        (0..LAYERS).fold(x.clone(), layer).sum().named("cost")
    }

    /// Builds the step of a rank.
    pub(crate) fn build(self, trainer: impl Strategy + 'static, rank: usize, ranks: usize) -> Result<Built> {
        // Only the name of its input is used: the step is fed directly.
        let input = FeedInput::new(FromList::new(Vec::new())).boxed();
        let inputs = vec![TensorSpec::f32("x", [Some(1)])];
        let sgd = |_: &TowerContext| -> Box<dyn Optimizer> { Sgd::new(1e-3).boxed() };
        let trainer = trainer.setup_graph(inputs, input, move |t, x| self.cost(t, &x[0]), sgd)?;
        let graph = trainer.graph().clone();
        let in_tower = |name: &str| match ranks {
            1 => name.to_owned(),
            _ => format!("tower{rank}/{name}"),
        };
        Ok(Built {
            cost: Fetch::from(&graph.tensor(&in_tower("cost"))?),
            step: vec![trainer.train_op().clone()],
            inputs: vec![(in_tower("x"), HostTensor::new([1], vec![1f32])?)],
            graph,
        })
    }
}

/// `x` of (`x`, weights), after some time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Forward(TimedModel);

/// The gradients of `x` and the weights for (gradient, weights), after some time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Backward(TimedModel);

impl OpDef for Forward {
    fn name(&self) -> &str {
        "TimedForward"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let gradients = Tensor::apply(Backward(self.0), &[cx.dy(), cx.input(1)]);
        Ok(gradients.into_iter().map(Some).collect())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        Ok(cx.custom(Arc::new(self.clone())))
    }
}

impl CustomKernel for Forward {
    fn run(&self, inputs: &[HostTensor], outputs: &mut [HostTensor]) -> Result<()> {
        thread::sleep(self.0.forward);
        outputs[0].clone_from(&inputs[0]);
        Ok(())
    }
}

impl OpDef for Backward {
    fn name(&self) -> &str {
        "TimedBackward"
    }

    fn output_count(&self) -> usize {
        2
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(inputs.to_vec())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        Ok(cx.custom(Arc::new(self.clone())))
    }
}

impl CustomKernel for Backward {
    fn run(&self, inputs: &[HostTensor], outputs: &mut [HostTensor]) -> Result<()> {
        thread::sleep(self.0.backward);
        outputs[0].clone_from(&inputs[0]);
        outputs[1].as_mut_slice::<f32>()?.fill(1.0);
        Ok(())
    }
}
