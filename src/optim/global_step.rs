//! The global step counter.

use crate::graph::{GLOBAL_STEP, Graph, Init, Op, Sharing, Variable, VariableSpec};
use tensorpack_tensor::DType;

impl Graph {
    /// Returns the number of completed steps: the i64 variable `global_step`, which is saved in
    /// checkpoints and is 0 in the first step. The first call creates it; later calls share it.
    ///
    /// The counter does not advance on its own: the training loop runs [`Graph::count_step`] once
    /// per step. Trainers do this.
    #[track_caller]
    #[doc(alias = "get_global_step_var")]
    pub fn global_step(&self) -> Variable {
        let spec = VariableSpec::new(GLOBAL_STEP, []).dtype(DType::I64).init(Init::zeros());
        self.at_root(|| self.variable(spec.non_trainable(), Sharing::Either))
    }

    /// Returns an operation that increments the [global step](Graph::global_step). If it runs with
    /// a training step, it takes effect after that step.
    #[track_caller]
    pub fn count_step(&self) -> Op {
        self.global_step().update(|steps| steps + 1.0)
    }
}
