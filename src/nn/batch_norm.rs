//! Batch normalisation (Ioffe and Szegedy, 2015).

use super::Activation;
use super::affine::Affine;
use super::bias::channels;
use super::parameter::stored;
use crate::graph::{Init, Tensor, UPDATE_OPS, Variable, VariableSpec};
use crate::ops::Layout;
use crate::tower::TowerContext;
use tensorpack_tensor::Error;

/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta`, with statistics over all dims but the channels. Training
/// normalises by the batch's own statistics and keeps running ones (the variance unbiased), which
/// inference uses. With one value for each channel there is nothing to normalise by, so training on
/// such a batch is an error.
///
/// With several towers each normalises by its own batch, or all [by that of all](BatchNorm::synchronized); the running
/// statistics are the average over the towers either way, so replicas stay equal.
#[derive(Clone, Debug)]
#[doc(alias = "BNReLU")]
pub struct BatchNorm {
    affine: Affine,
    momentum: f64,
    whose: Statistics,
    activation: Activation,
}

/// What a batch is normalised by in training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Statistics {
    /// Its own.
    Batch,
    /// Each group of so many examples by its own.
    Groups(usize),
    /// Those of the batches of all towers.
    AllTowers,
    /// The running ones.
    Running,
}

impl Default for BatchNorm {
    fn default() -> BatchNorm {
        BatchNorm::new()
    }
}

impl BatchNorm {
    /// With momentum 0.9 and epsilon 1e-5.
    pub fn new() -> BatchNorm {
        BatchNorm {
            affine: Affine::default(),
            momentum: 0.9,
            whose: Statistics::Batch,
            activation: Activation::Identity,
        }
    }

    /// With running statistics that keep this share of what they were.
    #[must_use]
    #[doc(alias = "decay")]
    pub fn momentum(self, momentum: f64) -> BatchNorm {
        BatchNorm { momentum, ..self }
    }

    /// With this epsilon.
    #[must_use]
    pub fn epsilon(mut self, epsilon: f64) -> BatchNorm {
        self.affine.epsilon = epsilon;
        self
    }

    /// Without a shift.
    #[must_use]
    pub fn no_center(mut self) -> BatchNorm {
        self.affine.center = false;
        self
    }

    /// Without a scale.
    #[must_use]
    pub fn no_scale(mut self) -> BatchNorm {
        self.affine.scale = false;
        self
    }

    /// With a scale drawn like this; ones unless said. Zeros let a residual block begin as its shortcut alone.
    #[must_use]
    #[doc(alias = "gamma_initializer")]
    pub fn gamma(mut self, init: Init) -> BatchNorm {
        self.affine.gamma = init;
        self
    }

    /// For images of this layout, input and output alike.
    #[must_use]
    #[doc(alias = "axis")]
    pub fn layout(mut self, layout: Layout) -> BatchNorm {
        self.affine.layout = layout;
        self
    }

    /// Normalising each group of so many examples by itself: what as many towers with small batches would do. The size
    /// must divide the batch.
    #[must_use]
    #[doc(alias = "ghost_batch_norm")]
    pub fn virtual_batch_size(self, examples: usize) -> BatchNorm {
        BatchNorm { whose: Statistics::Groups(examples), ..self }
    }

    /// Normalising by the statistics of all towers' batches together, whose sizes may differ: what one tower with all
    /// examples would do.
    #[must_use]
    #[doc(alias = "sync_statistics")]
    pub fn synchronized(self) -> BatchNorm {
        BatchNorm { whose: Statistics::AllTowers, ..self }
    }

    /// Normalising by the running statistics in training too, and leaving them as they are; scale and shift still
    /// train.
    #[must_use]
    #[doc(alias = "frozen_batch_norm")]
    pub fn use_running(self) -> BatchNorm {
        BatchNorm { whose: Statistics::Running, ..self }
    }

    /// Followed by ReLU.
    #[must_use]
    pub fn relu(self) -> BatchNorm {
        self.activation(Activation::Relu)
    }

    /// Followed by this.
    #[must_use]
    pub fn activation(self, activation: Activation) -> BatchNorm {
        BatchNorm { activation, ..self }
    }

    /// Applies the layer, making (or sharing) `name/gamma`, `name/beta`, `name/mean/EMA` and `name/variance/EMA`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        t.layer(name, x, |t| {
            if x.is_poison() {
                return x.clone();
            }
            let layout = self.affine.layout;
            let rows = layout.to_nhwc(x);
            let Some(channels) = channels(&rows, 2..) else {
                let why = format!("takes [batch, ..., channels] with known channels, not {}", x.shape());
                return x.fail("BatchNorm", Error::shape(why));
            };
            let gamma = self.affine.gamma(t, x, channels);
            let beta = self.affine.beta(t, x, channels);
            let model = |name: &str, init: f64| {
                let spec = VariableSpec::new(name, [channels]).init(Init::Constant(init));
                t.variable(spec.dtype(stored(x.dtype())).model())
            };
            let running = [model("mean/EMA", 0.0), model("variance/EMA", 1.0)];
            let whose = if t.is_training() { self.whose } else { Statistics::Running };
            let rows = match whose {
                Statistics::Groups(examples) => rows.split_dim(0, &[-1, examples as isize]),
                _ => rows,
            };
            if rows.is_poison() {
                return rows;
            }
            let (mean, variance) = self.statistics(t, whose, &rows, &running);
            let mut scale = (variance + self.affine.epsilon).rsqrt();
            if let Some(gamma) = gamma {
                scale = scale * gamma.value();
            }
            // Statistics, scale and shift are f32 where the layer computes in bf16, and rounded to be applied.
            let [mean, scale] = [mean, scale].map(|s| s.cast(x.dtype()));
            let mut y = (&rows - mean) * scale;
            if let Some(beta) = beta {
                y = y + beta.cast(x.dtype());
            }
            if let Statistics::Groups(_) = whose {
                y = y.merge_dims(0, 2);
            }
            layout.from_nhwc(&self.activation.apply(&y))
        })
    }

    /// What `x` is normalised by; the running statistics learn of it.
    #[track_caller]
    fn statistics(
        &self,
        t: &TowerContext,
        whose: Statistics,
        x: &Tensor,
        running: &[Variable; 2],
    ) -> (Tensor, Tensor) {
        if whose == Statistics::Running {
            return (running[0].value().clone(), running[1].value().clone());
        }
        let x = &x.cast(stored(x.dtype()));
        let groups = isize::from(matches!(whose, Statistics::Groups(_)));
        let axes: Vec<isize> = (groups..x.rank() as isize - 1).collect();
        // Towers that normalise together may have one value each.
        let alone = whose != Statistics::AllTowers || t.total() == 1;
        let (mean, variance) = x.moments_of(&axes, alone);
        if mean.is_poison() {
            return (mean, variance);
        }
        if groups > 0 {
            let unbiased = unbiased(&variance, &x.count_per(&mean));
            let over_groups = |s: &Tensor| s.merge_dims(0, x.rank() - 1).mean_axes(&[0]);
            self.learn(t, running, [over_groups(&mean), over_groups(&unbiased)]);
            return (mean, variance);
        }
        let [own_mean, own_variance] = [mean, variance].map(|s| s.reshape_like(&running[0]));
        let own = x.count_per(&own_mean);
        if whose == Statistics::Batch || t.total() == 1 {
            self.learn(t, running, [own_mean.clone(), unbiased(&own_variance, &own)]);
            return (own_mean, own_variance);
        }
        // Sums of squares are taken around the mean of all: E[x^2] - E[x]^2 would lose digits.
        let [all, sum] = all_reduced(t, "sums", [own.broadcast_like(&own_mean), &own_mean * &own]);
        let mean = sum / &all;
        let around = own_variance + (own_mean - &mean).square();
        let variance = t.all_reduce_sum("squares", &(around * &own)) / &all;
        self.learn_alike(t, running, [mean.clone(), unbiased(&variance, &all)]);
        (mean, variance)
    }

    /// Moves the running statistics towards the average over all towers of what each has.
    #[track_caller]
    fn learn(&self, t: &TowerContext, running: &[Variable; 2], [mean, variance]: [Tensor; 2]) {
        let now = [mean.stop_gradient(), variance.stop_gradient()];
        if t.total() == 1 {
            return self.learn_alike(t, running, now);
        }
        let [mean, variance] = all_reduced(t, "average", now).map(|s| s * (1.0 / t.total() as f64));
        self.learn_alike(t, running, [mean, variance]);
    }

    /// Moves the running statistics towards what all towers have alike.
    #[track_caller]
    fn learn_alike(&self, t: &TowerContext, running: &[Variable; 2], now: [Tensor; 2]) {
        if !t.is_main_training_tower() {
            return;
        }
        for (running, now) in running.iter().zip(now) {
            let now = now.stop_gradient() * (1.0 - self.momentum);
            let update = running.update(|r| r * self.momentum + now);
            t.graph().add_op_to_collection(UPDATE_OPS, &update);
        }
    }
}

/// The sums over all towers of two vectors, in one exchange.
#[track_caller]
fn all_reduced(t: &TowerContext, name: &str, parts: [Tensor; 2]) -> [Tensor; 2] {
    let sums = t.all_reduce_sum(name, &t.graph().stack(&parts, 0)).cut(2, 0);
    [sums[0].squeeze(0), sums[1].squeeze(0)]
}

/// Returns the unbiased variance of `n` values, where `n` is at least 2.
fn unbiased(variance: &Tensor, n: &Tensor) -> Tensor {
    variance * (n / (n - 1.0))
}
