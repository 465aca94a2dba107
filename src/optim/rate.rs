//! Learning rates.

use super::setting::{Allowed, check_setting};
use super::{Gradient, Schedule};
use crate::graph::{Graph, Tensor, Variable};
use tensorpack_tensor::{DType, Error, HostTensor};

/// A learning rate: a constant, a schedule over the global step, or a scalar tensor of the graph.
#[derive(Clone, Debug)]
pub enum Rate {
    /// A constant.
    Fixed(f64),
    /// The value of this schedule at the [global step](Graph::global_step).
    Scheduled(Schedule),
    /// The value of this scalar in each run.
    Tensor(Tensor),
}

impl Rate {
    /// Returns the rate as a scalar of type `dtype`.
    #[track_caller]
    pub fn tensor(&self, graph: &Graph, dtype: DType) -> Tensor {
        match self {
            Rate::Fixed(v) => {
                check_setting(graph, "Rate", "the learning rate", *v, Allowed::Finite);
                let scalar = HostTensor::from_f64(dtype, [], &[*v]);
                graph.constant(scalar.expect("one value fills a scalar"))
            }
            Rate::Scheduled(schedule) => schedule.at(&graph.global_step()).cast(dtype),
            Rate::Tensor(t) if t.rank() == 0 => t.cast(dtype),
            Rate::Tensor(t) => {
                t.fail("Rate", Error::shape(format!("a learning rate must be a scalar, got {}", t.shape())))
            }
        }
    }

    /// Returns the rate for one gradient: in its data type, multiplied by the factor of its group.
    #[track_caller]
    #[doc(alias = "of")]
    pub fn for_gradient(&self, graph: &Graph, gradient: &Gradient) -> Tensor {
        let dtype = gradient.variable.dtype();
        match self {
            Rate::Fixed(v) => Rate::Fixed(v * gradient.rate).tensor(graph, dtype),
            _ if gradient.rate == 1.0 => self.tensor(graph, dtype),
            _ => self.tensor(graph, dtype) * gradient.rate,
        }
    }
}

impl From<f64> for Rate {
    fn from(v: f64) -> Rate {
        Rate::Fixed(v)
    }
}

impl From<Schedule> for Rate {
    fn from(schedule: Schedule) -> Rate {
        Rate::Scheduled(schedule)
    }
}

impl From<&Tensor> for Rate {
    fn from(t: &Tensor) -> Rate {
        Rate::Tensor(t.clone())
    }
}

impl From<Tensor> for Rate {
    fn from(t: Tensor) -> Rate {
        Rate::Tensor(t)
    }
}

impl From<Variable> for Rate {
    fn from(v: Variable) -> Rate {
        Rate::Tensor(v.value().clone())
    }
}

impl From<&Variable> for Rate {
    fn from(v: &Variable) -> Rate {
        Rate::Tensor(v.value().clone())
    }
}
