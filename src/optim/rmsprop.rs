//! RMSProp (Tieleman and Hinton, 2012).

use super::setting::{Allowed, check_setting};
use super::{Gradient, Optimizer, Rate};
use crate::graph::{Graph, Op};

/// RMSProp, as in PyTorch:
///
/// ```text
/// v = alpha v + (1 - alpha) g^2
/// u = g / (sqrt(v) + epsilon)            centered: m = alpha m + (1 - alpha) g, and v - m^2 in place of v
/// w -= rate u                            with momentum: b = momentum b + u, w -= rate b
/// ```
///
/// TensorFlow instead adds epsilon inside the square root and applies the rate before the momentum.
#[derive(Clone, Debug)]
pub struct RmsProp {
    rate: Rate,
    alpha: f64,
    epsilon: f64,
    momentum: f64,
    centered: bool,
}

impl RmsProp {
    /// Creates an optimizer with this learning rate, alpha 0.99, epsilon 1e-8 and no momentum.
    #[doc(alias = "RMSPropOptimizer")]
    pub fn new(rate: impl Into<Rate>) -> RmsProp {
        RmsProp { rate: rate.into(), alpha: 0.99, epsilon: 1e-8, momentum: 0.0, centered: false }
    }

    /// Sets the decay rate of the moving averages (default: 0.99).
    #[must_use]
    #[doc(alias = "decay")]
    pub fn alpha(self, alpha: f64) -> RmsProp {
        RmsProp { alpha, ..self }
    }

    /// Sets epsilon (default: 1e-8).
    #[must_use]
    pub fn epsilon(self, epsilon: f64) -> RmsProp {
        RmsProp { epsilon, ..self }
    }

    /// Sets the momentum (default: 0).
    #[must_use]
    pub fn momentum(self, momentum: f64) -> RmsProp {
        RmsProp { momentum, ..self }
    }

    /// Divides by the estimated standard deviation of the gradients instead of their root mean
    /// square.
    #[must_use]
    pub fn centered(self) -> RmsProp {
        RmsProp { centered: true, ..self }
    }
}

impl Optimizer for RmsProp {
    #[track_caller]
    fn apply(&self, graph: &Graph, gradients: &[Gradient]) -> Vec<Op> {
        check_setting(graph, "RmsProp", "alpha", self.alpha, Allowed::Fraction);
        check_setting(graph, "RmsProp", "the momentum", self.momentum, Allowed::Fraction);
        let mut updates = Vec::new();
        for gradient in gradients {
            let g = gradient.decayed();
            let v = gradient.slot("rmsprop_v");
            let mut variance = v.value() * self.alpha + g.square() * (1.0 - self.alpha);
            updates.push(v.assign(&variance));
            if self.centered {
                let m = gradient.slot("rmsprop_m");
                let mean = m.value() * self.alpha + &g * (1.0 - self.alpha);
                updates.push(m.assign(&mean));
                // Rounding must not make the variance negative.
                variance = (variance - mean.square()).relu();
            }
            let mut direction = g / (variance.sqrt() + self.epsilon);
            if self.momentum != 0.0 {
                let b = gradient.slot("rmsprop_momentum");
                direction = b.value() * self.momentum + direction;
                updates.push(b.assign(&direction));
            }
            updates
                .push(gradient.variable.update(|w| w - direction * self.rate.for_gradient(graph, gradient)));
        }
        updates
    }
}
