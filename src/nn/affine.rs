//! The affine transform of the normalization layers: a scale and a shift per channel.

use super::bias::channels;
use super::parameter::variable_dtype;
use super::setting::Setting;
use crate::graph::{Init, Tensor, Variable, VariableSpec};
use crate::ops::Layout;
use crate::tower::TowerContext;
use tensorpack_tensor::Error;

/// The settings that all normalization layers share, as they were set on a layer.
#[derive(Clone, Debug)]
pub(super) struct AffineSettings {
    pub(super) epsilon: Setting<f64>,
    pub(super) center: Setting<bool>,
    pub(super) scale: Setting<bool>,
    pub(super) gamma: Setting<Init>,
    pub(super) layout: Setting<Layout>,
}

impl Default for AffineSettings {
    fn default() -> AffineSettings {
        let Affine { epsilon, center, scale, gamma, layout } = Affine::default();
        AffineSettings {
            epsilon: Setting::unset(epsilon),
            center: Setting::unset(center),
            scale: Setting::unset(scale),
            gamma: Setting::unset(gamma),
            layout: Setting::unset(layout),
        }
    }
}

impl AffineSettings {
    /// Returns these settings, with those of `scope` where they were not set.
    pub(super) fn or(&self, scope: &AffineSettings) -> AffineSettings {
        AffineSettings {
            epsilon: self.epsilon.or(&scope.epsilon),
            center: self.center.or(&scope.center),
            scale: self.scale.or(&scope.scale),
            gamma: self.gamma.or(&scope.gamma),
            layout: self.layout.or(&scope.layout),
        }
    }

    /// Returns the values of the settings.
    pub(super) fn values(&self) -> Affine {
        Affine {
            epsilon: *self.epsilon,
            center: *self.center,
            scale: *self.scale,
            gamma: Init::clone(&self.gamma),
            layout: *self.layout,
        }
    }
}

/// The settings that all normalization layers share.
#[derive(Clone, Debug)]
pub(super) struct Affine {
    pub(super) epsilon: f64,
    /// Whether to add `beta`.
    pub(super) center: bool,
    /// Whether to multiply by `gamma`.
    pub(super) scale: bool,
    /// The initializer of `gamma`.
    pub(super) gamma: Init,
    pub(super) layout: Layout,
}

impl Default for Affine {
    fn default() -> Affine {
        Affine { epsilon: 1e-5, center: true, scale: true, gamma: Init::ones(), layout: Layout::Nhwc }
    }
}

impl Affine {
    /// Returns the variable `gamma`, or `None` if the layer has no scale.
    #[track_caller]
    pub(super) fn gamma(&self, t: &TowerContext, x: &Tensor, channels: usize) -> Option<Variable> {
        let spec =
            VariableSpec::new("gamma", [channels]).dtype(variable_dtype(x.dtype())).init(self.gamma.clone());
        self.scale.then(|| t.variable(spec))
    }

    /// Returns the variable `beta`, or `None` if the layer has no shift.
    #[track_caller]
    pub(super) fn beta(&self, t: &TowerContext, x: &Tensor, channels: usize) -> Option<Variable> {
        let spec = VariableSpec::new("beta", [channels]).dtype(variable_dtype(x.dtype())).init(Init::zeros());
        self.center.then(|| t.variable(spec))
    }

    /// Builds the layer `name` of the kind `kind`: normalizes `x` with `normalize`, which sees the
    /// channels last, then scales and shifts it. `x` must have at least `rank` dimensions. A bf16
    /// input is computed in f32.
    #[track_caller]
    pub(super) fn apply(
        &self,
        t: &TowerContext,
        (kind, name, rank): (&str, &str, usize),
        x: &Tensor,
        normalize: impl FnOnce(&Tensor, f64) -> Tensor,
    ) -> Tensor {
        t.layer(name, x, |t| {
            if x.is_poison() {
                return x.clone();
            }
            let nhwc = self.layout.to_nhwc(x).cast(variable_dtype(x.dtype()));
            let Some(channels) = channels(&nhwc, rank..) else {
                let why =
                    format!("expected at least {rank} dimensions and known channels, got {}", x.shape());
                return x.fail(kind, Error::shape(why));
            };
            let mut y = normalize(&nhwc, self.epsilon);
            if let Some(gamma) = self.gamma(t, x, channels) {
                y = y * gamma.value();
            }
            if let Some(beta) = self.beta(t, x, channels) {
                y = y + beta.value();
            }
            self.layout.from_nhwc(&y.cast(x.dtype()))
        })
    }
}
