//! Batch normalisation (Ioffe and Szegedy, 2015).

use super::Activation;
use crate::graph::{Init, Tensor, UPDATE_OPS, VariableSpec};
use crate::tower::TowerContext;
use tensorpack_tensor::Error;

/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta`, over all dims but the last. Training normalises by the
/// batch's own statistics and keeps running ones (the variance unbiased), which inference uses.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    momentum: f64,
    epsilon: f64,
    activation: Activation,
}

impl Default for BatchNorm {
    fn default() -> BatchNorm {
        BatchNorm::new()
    }
}

impl BatchNorm {
    /// With momentum 0.9 and epsilon 1e-5.
    pub fn new() -> BatchNorm {
        BatchNorm { momentum: 0.9, epsilon: 1e-5, activation: Activation::Identity }
    }

    /// With running statistics that keep this share of what they were.
    #[must_use]
    pub fn momentum(self, momentum: f64) -> BatchNorm {
        BatchNorm { momentum, ..self }
    }

    /// With this epsilon.
    #[must_use]
    pub fn epsilon(self, epsilon: f64) -> BatchNorm {
        BatchNorm { epsilon, ..self }
    }

    /// Followed by ReLU.
    #[must_use]
    pub fn relu(self) -> BatchNorm {
        BatchNorm { activation: Activation::Relu, ..self }
    }

    /// Applies the layer, making (or sharing) `name/gamma`, `name/beta`, `name/mean/EMA` and `name/variance/EMA`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        t.layer(name, |t| {
            if x.is_poison() {
                return x.clone();
            }
            let Some(channels) = x.shape().last().and_then(|d| d.known()).filter(|_| x.rank() >= 2) else {
                let why = format!("takes [batch, ..., channels] with known channels, not {}", x.shape());
                return x.fail("BatchNorm", Error::shape(why));
            };
            let spec = |name: &str, init: f64| {
                VariableSpec::new(name, [channels]).dtype(x.dtype()).init(Init::Constant(init))
            };
            let gamma = t.variable(spec("gamma", 1.0));
            let beta = t.variable(spec("beta", 0.0));
            let running_mean = t.variable(spec("mean/EMA", 0.0).model());
            let running_variance = t.variable(spec("variance/EMA", 1.0).model());
            let (mean, variance) = if t.is_training() {
                let axes: Vec<isize> = (0..x.rank() as isize - 1).collect();
                let (mean, variance) = x.moments(&axes);
                let (mean, variance) = (mean.reshape_like(&beta), variance.reshape_like(&beta));
                let n = x.count_per(&mean);
                // A batch of one value a channel has no unbiased variance; its own, 0, stands in.
                let unbiased = &variance * (&n / (&n - 1.0).maximum(&n.constant_like(1.0)));
                for (running, now) in [(&running_mean, &mean), (&running_variance, &unbiased)] {
                    let update =
                        running.update(|r| r * self.momentum + now.stop_gradient() * (1.0 - self.momentum));
                    t.graph().add_op_to_collection(UPDATE_OPS, &update);
                }
                (mean, variance)
            } else {
                (running_mean.value().clone(), running_variance.value().clone())
            };
            let scale = (variance + self.epsilon).rsqrt() * gamma.value();
            self.activation.apply(&((x - mean) * scale + beta.value()))
        })
    }
}
