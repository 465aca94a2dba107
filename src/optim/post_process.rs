//! Post-processing of variables after each update.

use super::{Gradient, Optimizer};
use crate::graph::{Graph, Op, Tensor, Variable};
use std::fmt;

type Rule = Box<dyn Fn(&Variable, &Tensor) -> Option<Tensor>>;

/// An optimizer wrapper that post-processes updated variables. The rule receives each variable and
/// its updated value, and returns the value to store, or `None` to keep the update. For example, to
/// clip the weights of a critic:
///
/// ```
/// # use tensorpack::optim::{PostProcess, RmsProp};
/// let optimizer = PostProcess::new(RmsProp::new(5e-5), |_, w| Some(w.clip(-0.01, 0.01)));
/// ```
pub struct PostProcess {
    inner: Box<dyn Optimizer>,
    rule: Rule,
}

impl PostProcess {
    /// Creates an optimizer that applies `inner` and then `rule`.
    #[doc(alias = "VariableAssignmentOptimizer")]
    #[doc(alias = "PostProcessOptimizer")]
    pub fn new(
        inner: impl Optimizer + 'static,
        rule: impl Fn(&Variable, &Tensor) -> Option<Tensor> + 'static,
    ) -> PostProcess {
        PostProcess { inner: inner.boxed(), rule: Box::new(rule) }
    }
}

impl Optimizer for PostProcess {
    #[track_caller]
    fn apply(&self, graph: &Graph, gradients: &[Gradient]) -> Vec<Op> {
        let mut updates = self.inner.apply(graph, gradients);
        for Gradient { variable, .. } in gradients {
            if let Some(next) = (self.rule)(variable, &variable.current()) {
                updates.push(variable.update(|_| next));
            }
        }
        updates
    }
}

impl fmt::Debug for PostProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostProcess").field("inner", &self.inner).finish_non_exhaustive()
    }
}
