//! The number of steps so far, in the graph.

use crate::graph::{Graph, Init, Op, Sharing, Variable, VariableSpec};
use tensorpack_tensor::DType;

impl Graph {
    /// The number of steps made so far: the i64 variable `global_step`, saved like weights, 0 in the first step. It is
    /// made by the first who asks and shared by all others.
    ///
    /// Nothing counts by itself: whoever owns the training loop runs [`Graph::count_step`] once a step. Trainers do.
    #[track_caller]
    #[doc(alias = "get_global_step_var")]
    pub fn global_step(&self) -> Variable {
        let spec = VariableSpec::new("global_step", []).dtype(DType::I64).init(Init::zeros());
        self.at_root(|| self.variable(spec.non_trainable(), Sharing::Either))
    }

    /// An operation that adds one to the [global step](Graph::global_step). Run with a step, it takes effect after it.
    #[track_caller]
    pub fn count_step(&self) -> Op {
        self.global_step().update(|steps| steps + 1.0)
    }
}
