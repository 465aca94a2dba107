//! What an optimizer is.

use crate::graph::{Graph, Init, Op, Sharing, Tensor, Variable, VariableSpec};
use std::fmt::Debug;
use tensorpack_tensor::DType;

/// A rule that updates variables by their gradients.
pub trait Optimizer: Debug {
    /// Adds the updates of all these variables to the graph.
    fn apply(&self, graph: &Graph, gradients: &[(Variable, Tensor)]) -> Vec<Op>;

    /// In a box, for code that chooses among optimizers.
    fn boxed(self) -> Box<dyn Optimizer>
    where
        Self: Sized + 'static,
    {
        Box::new(self)
    }
}

/// A learning rate: a number, or a scalar in the graph that others may change.
#[derive(Clone, Debug)]
pub enum Rate {
    /// Always this.
    Fixed(f64),
    /// What this scalar is in each run.
    Tensor(Tensor),
}

impl Rate {
    /// The rate as a scalar of type `dtype`.
    #[track_caller]
    pub fn tensor(&self, graph: &Graph, dtype: DType) -> Tensor {
        match self {
            Rate::Fixed(v) => {
                let scalar = tensorpack_tensor::HostTensor::from_f64(dtype, [], &[*v]);
                graph.constant(scalar.expect("one value fills a scalar"))
            }
            Rate::Tensor(t) => t.cast(dtype),
        }
    }
}

impl From<f64> for Rate {
    fn from(v: f64) -> Rate {
        Rate::Fixed(v)
    }
}

impl From<&Tensor> for Rate {
    fn from(t: &Tensor) -> Rate {
        Rate::Tensor(t.clone())
    }
}

impl From<Variable> for Rate {
    fn from(v: Variable) -> Rate {
        Rate::Tensor(v.value().clone())
    }
}

/// A slot: a variable that an optimizer keeps beside each one it trains, `NAME/SLOT`, in a slab of its own.
#[track_caller]
pub(super) fn slot(graph: &Graph, variable: &Variable, slot: &str) -> Variable {
    let sizes = variable.shape().known().unwrap_or_default();
    let spec = VariableSpec::new(format!("{}/{slot}", variable.name()), sizes).dtype(variable.dtype());
    graph.variable(spec.init(Init::zeros()).non_trainable().slab(slot), Sharing::Make)
}
