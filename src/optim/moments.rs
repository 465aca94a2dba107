//! The moving averages that Adam and its kin keep of gradients.

use super::Gradient;
use super::gradient::state;
use super::setting::{Allowed, check_setting};
use crate::graph::{Graph, Init, Op, Tensor, VariableSpec};
use tensorpack_tensor::DType;

/// ```text
/// m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
/// ```
#[derive(Clone, Debug)]
pub(super) struct Moments {
    pub(super) beta1: f64,
    pub(super) beta2: f64,
    pub(super) epsilon: f64,
}

/// The next averages of one variable, as `mean / left / root` needs them.
pub(super) struct Averages {
    /// `m`.
    pub(super) mean: Tensor,
    /// `1 - b1^t`, which `m` is to be divided by since it began at zero.
    pub(super) left: Tensor,
    /// `sqrt(v / (1 - b2^t)) + epsilon`.
    pub(super) root: Tensor,
}

impl Moments {
    /// Betas 0.9 and 0.999.
    pub(super) fn new(epsilon: f64) -> Moments {
        Moments { beta1: 0.9, beta2: 0.999, epsilon }
    }

    /// The averages of all `gradients`, each seen as `value` sees it, and the updates that keep them in slots named
    /// after the optimizer `who`.
    #[track_caller]
    pub(super) fn follow(
        &self,
        graph: &Graph,
        who: &str,
        gradients: &[Gradient],
        value: impl Fn(&Gradient) -> Tensor,
    ) -> (Vec<Averages>, Vec<Op>) {
        check_setting(graph, who, "beta1", self.beta1, Allowed::Share);
        check_setting(graph, who, "beta2", self.beta2, Allowed::Share);
        let prefix = who.to_lowercase();
        let mut updates = Vec::new();
        // beta^t, in f64: after many steps 1 - beta^t must still be right.
        let mut power = |name: &str, beta: f64| {
            let spec = VariableSpec::new(format!("{prefix}_{name}_power"), []).dtype(DType::F64);
            let power = state(graph, spec.init(Init::Constant(beta)).non_trainable());
            updates.push(power.update(|p| p * beta));
            1.0 - power.value()
        };
        let (left1, left2) = (power("beta1", self.beta1), power("beta2", self.beta2));
        let mut all = Vec::new();
        for gradient in gradients {
            let (m, v) = (gradient.slot(&format!("{prefix}_m")), gradient.slot(&format!("{prefix}_v")));
            let g = value(gradient);
            let mean = m.value() * self.beta1 + &g * (1.0 - self.beta1);
            let square = v.value() * self.beta2 + g.square() * (1.0 - self.beta2);
            updates.push(m.assign(&mean));
            updates.push(v.assign(&square));
            let dtype = gradient.variable.dtype();
            let root = square.sqrt() * left2.cast(dtype).rsqrt() + self.epsilon;
            all.push(Averages { mean, left: left1.cast(dtype), root });
        }
        (all, updates)
    }
}
