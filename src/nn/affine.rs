//! What normalisation layers do after they normalised: a scale and a shift for each channel.

use super::bias::channels;
use super::parameter::stored;
use crate::graph::{Init, Tensor, Variable, VariableSpec};
use crate::ops::Layout;
use crate::tower::TowerContext;
use tensorpack_tensor::Error;

/// Whether a normalisation has a scale `gamma` and a shift `beta`, and its other common settings.
#[derive(Clone, Debug)]
pub(super) struct Affine {
    pub(super) epsilon: f64,
    pub(super) center: bool,
    pub(super) scale: bool,
    /// How `gamma` is drawn.
    pub(super) gamma: Init,
    pub(super) layout: Layout,
}

impl Default for Affine {
    fn default() -> Affine {
        Affine { epsilon: 1e-5, center: true, scale: true, gamma: Init::ones(), layout: Layout::Nhwc }
    }
}

impl Affine {
    /// `gamma`, if there is to be one.
    #[track_caller]
    pub(super) fn gamma(&self, t: &TowerContext, x: &Tensor, channels: usize) -> Option<Variable> {
        let spec = VariableSpec::new("gamma", [channels]).dtype(stored(x.dtype())).init(self.gamma.clone());
        self.scale.then(|| t.variable(spec))
    }

    /// `beta`, if there is to be one.
    #[track_caller]
    pub(super) fn beta(&self, t: &TowerContext, x: &Tensor, channels: usize) -> Option<Variable> {
        let spec = VariableSpec::new("beta", [channels]).dtype(stored(x.dtype())).init(Init::zeros());
        self.center.then(|| t.variable(spec))
    }

    /// The layer `name` of the kind `kind`: `x`, of at least `rank` dims, normalised with channels last, then scaled and
    /// shifted, all in f32 where it is bf16.
    #[track_caller]
    pub(super) fn apply(
        &self,
        t: &TowerContext,
        (kind, name, rank): (&str, &str, usize),
        x: &Tensor,
        normalized: impl FnOnce(&Tensor, f64) -> Tensor,
    ) -> Tensor {
        t.layer(name, x, |t| {
            if x.is_poison() {
                return x.clone();
            }
            let rows = self.layout.to_nhwc(x).cast(stored(x.dtype()));
            let Some(channels) = channels(&rows, rank..) else {
                let why = format!("takes at least {rank} dims, and known channels, not {}", x.shape());
                return x.fail(kind, Error::shape(why));
            };
            let mut y = normalized(&rows, self.epsilon);
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
