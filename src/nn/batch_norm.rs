//! Batch normalization (Ioffe and Szegedy, 2015).

use super::Activation;
use super::affine::AffineSettings;
use super::argscope::ScopedLayer;
use super::bias::channels;
use super::parameter::variable_dtype;
use super::setting::Setting;
use crate::graph::{Init, Tensor, UPDATE_OPS, Variable, VariableSpec};
use crate::ops::Layout;
use crate::tower::TowerContext;
use tensorpack_tensor::Error;

/// Batch normalization: `(x - mean) / sqrt(variance + epsilon) * gamma + beta`, with statistics
/// over all dimensions but the channels.
///
/// Training normalizes with the statistics of the batch and updates running statistics (with the
/// unbiased variance), which inference uses. Training on a batch with a single value per channel is
/// an error, because the variance of one value is zero.
///
/// With several towers, each normalizes with the statistics of its own batch, or with those of
/// [all batches](BatchNorm::synchronized). Either way the running statistics are averaged over the
/// towers, so replicas stay equal.
#[derive(Clone, Debug)]
#[doc(alias = "BNReLU")]
pub struct BatchNorm {
    affine: AffineSettings,
    momentum: Setting<f64>,
    statistics: Setting<Statistics>,
    /// The largest correction of scale and shift towards the running statistics.
    renorm: Option<(f64, f64)>,
    activation: Setting<Activation>,
}

/// The statistics that normalize a batch in training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Statistics {
    /// Those of the batch.
    Batch,
    /// Those of each group of this many examples.
    Groups(usize),
    /// Those of the batches of all towers.
    AllTowers,
    /// The running statistics.
    Running,
}

impl Default for BatchNorm {
    fn default() -> BatchNorm {
        BatchNorm::new()
    }
}

impl BatchNorm {
    /// Creates a layer with momentum 0.9 and epsilon 1e-5.
    pub fn new() -> BatchNorm {
        BatchNorm {
            affine: AffineSettings::default(),
            momentum: Setting::unset(0.9),
            statistics: Setting::unset(Statistics::Batch),
            renorm: None,
            activation: Setting::unset(Activation::Identity),
        }
    }

    /// Sets the decay of the running statistics: the weight of the old value in each update
    /// (default: 0.9).
    #[must_use]
    #[doc(alias = "decay")]
    pub fn momentum(self, momentum: f64) -> BatchNorm {
        BatchNorm { momentum: Setting::set(momentum), ..self }
    }

    /// Sets epsilon (default: 1e-5).
    #[must_use]
    pub fn epsilon(mut self, epsilon: f64) -> BatchNorm {
        self.affine.epsilon = Setting::set(epsilon);
        self
    }

    /// Omits the shift `beta`.
    #[must_use]
    pub fn no_center(mut self) -> BatchNorm {
        self.affine.center = Setting::set(false);
        self
    }

    /// Omits the scale `gamma`.
    #[must_use]
    pub fn no_scale(mut self) -> BatchNorm {
        self.affine.scale = Setting::set(false);
        self
    }

    /// Sets the initializer of `gamma` (default: ones). With zeros, a residual block starts as the
    /// identity.
    #[must_use]
    #[doc(alias = "gamma_initializer")]
    pub fn gamma(mut self, init: Init) -> BatchNorm {
        self.affine.gamma = Setting::set(init);
        self
    }

    /// Sets the layout of the input and the output (default: [`Layout::Nhwc`]).
    #[must_use]
    #[doc(alias = "axis")]
    pub fn layout(mut self, layout: Layout) -> BatchNorm {
        self.affine.layout = Setting::set(layout);
        self
    }

    /// Normalizes each group of this many examples separately, as many towers with small batches
    /// would. The size must divide the batch.
    #[must_use]
    #[doc(alias = "ghost_batch_norm")]
    pub fn virtual_batch_size(self, examples: usize) -> BatchNorm {
        BatchNorm { statistics: Setting::set(Statistics::Groups(examples)), ..self }
    }

    /// Normalizes with the statistics over the batches of all towers, as one tower with all
    /// examples would. The batch sizes may differ.
    #[must_use]
    #[doc(alias = "sync_statistics")]
    pub fn synchronized(self) -> BatchNorm {
        BatchNorm { statistics: Setting::set(Statistics::AllTowers), ..self }
    }

    /// Normalizes with the running statistics in training too, without updating them. Scale and
    /// shift are still trained.
    #[must_use]
    #[doc(alias = "frozen_batch_norm")]
    pub fn use_running(self) -> BatchNorm {
        BatchNorm { statistics: Setting::set(Statistics::Running), ..self }
    }

    /// Corrects scale and shift towards the running statistics, at most by these: see
    /// [`BatchRenorm`](super::BatchRenorm).
    pub(super) fn renorm(self, rmax: f64, dmax: f64) -> BatchNorm {
        BatchNorm { renorm: Some((rmax, dmax)), ..self }
    }

    /// Applies ReLU to the result.
    #[must_use]
    pub fn relu(self) -> BatchNorm {
        self.activation(Activation::Relu)
    }

    /// Applies this activation to the result.
    #[must_use]
    pub fn activation(self, activation: Activation) -> BatchNorm {
        BatchNorm { activation: Setting::set(activation), ..self }
    }

    /// Applies the layer, creating (or sharing) `name/gamma`, `name/beta`, `name/mean/EMA` and
    /// `name/variance/EMA`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        t.with_scope_defaults(self).build(t, name, x)
    }

    /// Applies the layer with these settings, whatever the scope's defaults are.
    #[track_caller]
    pub(super) fn build(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        let affine = self.affine.values();
        t.layer(name, x, |t| {
            if x.is_poison() {
                return x.clone();
            }
            let layout = affine.layout;
            let nhwc = layout.to_nhwc(x);
            let Some(channels) = channels(&nhwc, 2..) else {
                let why = format!("expected [batch, ..., channels] with known channels, got {}", x.shape());
                return x.fail("BatchNorm", Error::shape(why));
            };
            let gamma = affine.gamma(t, x, channels);
            let beta = affine.beta(t, x, channels);
            let model = |name: &str, init: f64| {
                let spec = VariableSpec::new(name, [channels]).init(Init::Constant(init));
                t.variable(spec.dtype(variable_dtype(x.dtype())).model())
            };
            let running = [model("mean/EMA", 0.0), model("variance/EMA", 1.0)];
            let source = if t.is_training() { *self.statistics } else { Statistics::Running };
            let nhwc = match source {
                Statistics::Groups(examples) => nhwc.split_dim(0, &[-1, examples as isize]),
                _ => nhwc,
            };
            if nhwc.is_poison() {
                return nhwc;
            }
            let (mean, variance) = self.mean_and_variance(t, source, &nhwc, &running);
            let deviation = |variance: &Tensor| (variance + affine.epsilon).rsqrt();
            let mut scale = deviation(&variance);
            let mut shift = beta.map(|beta| beta.value().clone());
            if let (Some((rmax, dmax)), true) = (self.renorm, source == Statistics::Batch) {
                let running_scale = deviation(running[1].value());
                let r = (&running_scale / &scale).clip(1.0 / rmax, rmax).stop_gradient();
                let d = ((&mean - running[0].value()) * running_scale).clip(-dmax, dmax).stop_gradient();
                scale = scale * r;
                let d = gamma.as_ref().map_or_else(|| d.clone(), |gamma| &d * gamma.value());
                shift = Some(shift.map_or_else(|| d.clone(), |beta| beta + &d));
            }
            if let Some(gamma) = gamma {
                scale = scale * gamma.value();
            }
            // In a bf16 layer, statistics, scale and shift are f32 and are rounded just before use.
            let [mean, scale] = [mean, scale].map(|s| s.cast(x.dtype()));
            let mut y = (&nhwc - mean) * scale;
            if let Some(shift) = shift {
                y = y + shift.cast(x.dtype());
            }
            if let Statistics::Groups(_) = source {
                y = y.merge_dims(0, 2);
            }
            layout.from_nhwc(&self.activation.apply(&y))
        })
    }

    /// Returns the mean and variance that normalize `x`, and updates the running statistics with
    /// them.
    #[track_caller]
    fn mean_and_variance(
        &self,
        t: &TowerContext,
        source: Statistics,
        x: &Tensor,
        running: &[Variable; 2],
    ) -> (Tensor, Tensor) {
        if source == Statistics::Running {
            return (running[0].value().clone(), running[1].value().clone());
        }
        let x = &x.cast(variable_dtype(x.dtype()));
        let groups = isize::from(matches!(source, Statistics::Groups(_)));
        let axes: Vec<isize> = (groups..x.rank() as isize - 1).collect();
        // Towers that share statistics may have a single value each.
        let several = source != Statistics::AllTowers || t.total() == 1;
        let (mean, variance) = x.moments_of(&axes, several);
        if mean.is_poison() {
            return (mean, variance);
        }
        if groups > 0 {
            let unbiased = unbiased(&variance, &x.count_per(&mean));
            let over_groups = |s: &Tensor| s.merge_dims(0, x.rank() - 1).mean_axes(&[0]);
            self.update_running_with_tower_mean(t, running, [over_groups(&mean), over_groups(&unbiased)]);
            return (mean, variance);
        }
        let [own_mean, own_variance] = [mean, variance].map(|s| s.reshape_like(&running[0]));
        let own_count = x.count_per(&own_mean);
        if source == Statistics::Batch || t.total() == 1 {
            let unbiased = unbiased(&own_variance, &own_count);
            self.update_running_with_tower_mean(t, running, [own_mean.clone(), unbiased]);
            return (own_mean, own_variance);
        }
        // Sum the squares around the common mean: E[x^2] - E[x]^2 would lose digits.
        let counts_and_sums = [own_count.broadcast_like(&own_mean), &own_mean * &own_count];
        let sums = t.all_reduce_sum("sums", &t.graph().stack(&counts_and_sums, 0));
        let [count, sum] = halves(&sums);
        let mean = sum / &count;
        let own_square = own_variance + (own_mean - &mean).square();
        let variance = t.all_reduce_sum("squares", &(own_square * &own_count)) / &count;
        self.update_running(t, running, [mean.clone(), unbiased(&variance, &count)]);
        (mean, variance)
    }

    /// Updates the running statistics with the mean over all towers of these per-tower statistics.
    #[track_caller]
    fn update_running_with_tower_mean(
        &self,
        t: &TowerContext,
        running: &[Variable; 2],
        [mean, variance]: [Tensor; 2],
    ) {
        let statistics = [mean.stop_gradient(), variance.stop_gradient()];
        if t.total() == 1 {
            return self.update_running(t, running, statistics);
        }
        let sums = t.deferred_sum("average", &t.graph().stack(&statistics, 0));
        let [mean, variance] = halves(&sums).map(|s| s * (1.0 / t.total() as f64));
        self.update_running(t, running, [mean, variance]);
    }

    /// Updates the running statistics with statistics that are equal on all towers.
    #[track_caller]
    fn update_running(&self, t: &TowerContext, running: &[Variable; 2], statistics: [Tensor; 2]) {
        if !t.is_main_training_tower() {
            return;
        }
        for (running, new) in running.iter().zip(statistics) {
            let new = new.stop_gradient() * (1.0 - *self.momentum);
            let update = running.update(|r| r * *self.momentum + new);
            t.graph().add_op_to_collection(UPDATE_OPS, &update);
        }
    }
}

impl ScopedLayer for BatchNorm {
    fn blank() -> BatchNorm {
        BatchNorm::new()
    }

    fn or(&self, scope: &BatchNorm) -> BatchNorm {
        BatchNorm {
            affine: self.affine.or(&scope.affine),
            momentum: self.momentum.or(&scope.momentum),
            statistics: self.statistics.or(&scope.statistics),
            renorm: self.renorm,
            activation: self.activation.or(&scope.activation),
        }
    }
}

/// Returns the two vectors that were stacked.
#[track_caller]
fn halves(stacked: &Tensor) -> [Tensor; 2] {
    let parts = stacked.cut(2, 0);
    [parts[0].squeeze(0), parts[1].squeeze(0)]
}

/// Returns the unbiased variance of `n` values, where `n` is at least 2.
fn unbiased(variance: &Tensor, n: &Tensor) -> Tensor {
    variance * (n / (n - 1.0))
}
