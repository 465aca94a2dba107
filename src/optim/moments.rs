//! The first and second moment estimates of Adam, AdamW and LAMB.

use super::Gradient;
use super::gradient::state;
use super::setting::{Allowed, check_setting};
use crate::graph::{Graph, Init, Op, Tensor, VariableSpec};
use tensorpack_tensor::DType;

/// Exponential moving averages of the gradient and its square:
///
/// ```text
/// m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
/// ```
#[derive(Clone, Debug)]
pub(super) struct Moments {
    pub(super) beta1: f64,
    pub(super) beta2: f64,
    pub(super) epsilon: f64,
}

/// The moment estimates of one variable after this step. The update direction is
/// `mean / bias_correction / denominator`.
pub(super) struct Estimates {
    /// `m`.
    pub(super) mean: Tensor,
    /// `1 - b1^t`, the bias correction of `m`, which starts at zero.
    pub(super) bias_correction: Tensor,
    /// `sqrt(v / (1 - b2^t)) + epsilon`.
    pub(super) denominator: Tensor,
}

impl Moments {
    /// Creates the settings with betas 0.9 and 0.999.
    pub(super) fn new(epsilon: f64) -> Moments {
        Moments { beta1: 0.9, beta2: 0.999, epsilon }
    }

    /// Returns the moment estimates for all `gradients`, and the updates that store them in slots
    /// named after `optimizer`. `value` computes the gradient to average.
    #[track_caller]
    pub(super) fn update(
        &self,
        graph: &Graph,
        optimizer: &str,
        gradients: &[Gradient],
        value: impl Fn(&Gradient) -> Tensor,
    ) -> (Vec<Estimates>, Vec<Op>) {
        check_setting(graph, optimizer, "beta1", self.beta1, Allowed::Fraction);
        check_setting(graph, optimizer, "beta2", self.beta2, Allowed::Fraction);
        let prefix = optimizer.to_lowercase();
        let mut updates = Vec::new();
        // beta^t, in f64, so that 1 - beta^t stays accurate after many steps.
        let mut power = |name: &str, beta: f64| {
            let spec = VariableSpec::new(format!("{prefix}_{name}_power"), []).dtype(DType::F64);
            let power = state(graph, spec.init(Init::Constant(beta)).non_trainable());
            updates.push(power.update(|p| p * beta));
            1.0 - power.value()
        };
        let (correction1, correction2) = (power("beta1", self.beta1), power("beta2", self.beta2));
        let mut all = Vec::new();
        for gradient in gradients {
            let (m, v) = (gradient.slot(&format!("{prefix}_m")), gradient.slot(&format!("{prefix}_v")));
            let g = value(gradient);
            let mean = m.value() * self.beta1 + &g * (1.0 - self.beta1);
            let square = v.value() * self.beta2 + g.square() * (1.0 - self.beta2);
            updates.push(m.assign(&mean));
            updates.push(v.assign(&square));
            let dtype = gradient.variable.dtype();
            let denominator = square.sqrt() * correction2.cast(dtype).rsqrt() + self.epsilon;
            all.push(Estimates { mean, bias_correction: correction1.cast(dtype), denominator });
        }
        (all, updates)
    }
}
