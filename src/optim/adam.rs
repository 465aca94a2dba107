//! Adam (Kingma and Ba, 2014).

use super::optimizer::slot;
use super::{Optimizer, Rate};
use crate::graph::{Graph, Init, Op, Sharing, Tensor, Variable, VariableSpec};
use tensorpack_tensor::DType;

/// ```text
/// m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
/// w -= rate / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + epsilon)
/// ```
#[derive(Clone, Debug)]
pub struct Adam {
    rate: Rate,
    beta1: f64,
    beta2: f64,
    epsilon: f64,
}

impl Adam {
    /// With this learning rate, betas 0.9 and 0.999, epsilon 1e-8.
    #[doc(alias = "AdamOptimizer")]
    pub fn new(rate: impl Into<Rate>) -> Adam {
        Adam { rate: rate.into(), beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }
    }

    /// With these betas.
    #[must_use]
    pub fn betas(self, beta1: f64, beta2: f64) -> Adam {
        Adam { beta1, beta2, ..self }
    }

    /// With this epsilon.
    #[must_use]
    pub fn epsilon(self, epsilon: f64) -> Adam {
        Adam { epsilon, ..self }
    }
}

impl Optimizer for Adam {
    #[track_caller]
    fn apply(&self, graph: &Graph, gradients: &[(Variable, Tensor)]) -> Vec<Op> {
        let mut updates = Vec::new();
        let dtype = gradients.first().map_or(DType::F32, |(v, _)| v.dtype());
        // beta^t, in f64: after many steps 1 - beta^t must still be right.
        let mut power = |name: &str, beta: f64| {
            let spec =
                VariableSpec::new(name, []).dtype(DType::F64).init(Init::Constant(beta)).non_trainable();
            let power = graph.variable(spec, Sharing::Make);
            updates.push(power.update(|p| p * beta));
            (1.0 - power.value()).cast(dtype)
        };
        let left1 = power("adam_beta1_power", self.beta1);
        let left2 = power("adam_beta2_power", self.beta2);
        let rate = self.rate.tensor(graph, dtype) / left1;
        let correction = left2.rsqrt();
        for (w, g) in gradients {
            let (m, v) = (slot(graph, w, "adam_m"), slot(graph, w, "adam_v"));
            let m_next = m.value() * self.beta1 + g * (1.0 - self.beta1);
            let v_next = v.value() * self.beta2 + g.square() * (1.0 - self.beta2);
            updates.push(m.assign(&m_next));
            updates.push(v.assign(&v_next));
            updates.push(w.update(|w| w - &rate * m_next / (v_next.sqrt() * &correction + self.epsilon)));
        }
        updates
    }
}
