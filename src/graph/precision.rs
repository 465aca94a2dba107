//! The precision in which towers compute, and the casts that implement it.

use super::scope::OnDrop;
use super::{Graph, OpDef, Tensor};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::panic::Location;
use std::str::FromStr;
use tensorpack_tensor::{DType, Error};

/// The precision in which the towers of a graph compute: one word for mixed precision.
///
/// Variables, their gradients and updates are f32 in all of them. With [`Precision::Bf16`] and
/// [`Precision::F16`], contractions (matrix products, convolutions, `einsum`, attention) narrow their
/// f32 inputs; statistics, losses, `softmax`, normalization and reductions stay f32. `f64` tensors
/// are not affected. `docs/precision.md` says which operation does what.
///
/// ```
/// use tensorpack::prelude::*;
///
/// # fn main() -> Result<()> {
/// let graph = Graph::new();
/// graph.set_precision(Precision::Bf16);
/// let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(4)]));
/// TowerContext::training(&graph).build(|t| {
///     let y = Linear::new(3).apply(t, "fc", &x);
///     assert_eq!((y.dtype(), y.softmax().dtype()), (DType::Bf16, DType::F32));
/// });
/// # graph.freeze().map(|_| ())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// f32 with all its digits.
    F32,
    /// f32, except that NVIDIA GPUs round the inputs of products to TF32, with 10 bits of mantissa.
    /// The same as `F32` on other devices. The default.
    #[default]
    Tf32,
    /// Contractions in bf16: the range of f32 with 8 significant bits.
    Bf16,
    /// Contractions in f16: 11 significant bits, but a small range. Gradients are computed from a
    /// scaled cost: see [`LossScale`](super::LossScale).
    F16,
}

impl Precision {
    /// All precisions.
    pub const ALL: [Precision; 4] = [Precision::F32, Precision::Tf32, Precision::Bf16, Precision::F16];

    /// Returns the name, as in `--precision NAME`.
    pub const fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Tf32 => "tf32",
            Precision::Bf16 => "bf16",
            Precision::F16 => "f16",
        }
    }

    /// Returns the type to which contractions narrow their inputs, if they do.
    pub fn narrow_dtype(self) -> Option<DType> {
        match self {
            Precision::F32 | Precision::Tf32 => None,
            Precision::Bf16 => Some(DType::Bf16),
            Precision::F16 => Some(DType::F16),
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Precision {
    type Err = Error;

    fn from_str(text: &str) -> Result<Precision, Error> {
        Precision::ALL.into_iter().find(|p| p.name() == text).ok_or_else(|| {
            Error::argument(format!("unknown precision {text:?}")).note("use f32, tf32, bf16 or f16")
        })
    }
}

/// What an operation does with a float input where a graph computes in mixed precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Autocast {
    /// Takes it in the narrow type: contractions, which accumulate in f32.
    Narrow,
    /// Takes it as f32: sums, and functions whose results vary over orders of magnitude.
    Wide,
    /// Takes it as f32 if another input is f32, otherwise as it is. The default.
    Widest,
    /// Takes it as it is.
    Keep,
}

impl Graph {
    /// Sets the precision of the towers that are built from here on, inference towers included.
    pub fn set_precision(&self, precision: Precision) {
        if let Some(mut b) = self.building() {
            b.precision = precision;
        }
    }

    /// Returns the precision of towers.
    pub fn precision(&self) -> Precision {
        self.built().map_or_else(Precision::default, |b| b.precision)
    }

    /// Runs `build` with the casts of the graph's precision.
    pub(crate) fn autocast<R>(&self, build: impl FnOnce() -> R) -> R {
        self.contracting_in(self.precision().narrow_dtype(), build)
    }

    /// Runs `build` without casts: gradients have the types of what they are gradients of.
    pub(crate) fn without_autocast<R>(&self, build: impl FnOnce() -> R) -> R {
        self.contracting_in(None, build)
    }

    /// Runs `build` with contractions in f32, where they would be narrow.
    pub(crate) fn full_precision<R>(&self, build: impl FnOnce() -> R) -> R {
        self.contracting_in(self.contractions().map(|_| DType::F32), build)
    }

    /// Returns the type of contractions, if there are casts to it.
    pub(crate) fn contractions(&self) -> Option<DType> {
        self.built().and_then(|b| b.contractions)
    }

    fn contracting_in<R>(&self, dtype: Option<DType>, build: impl FnOnce() -> R) -> R {
        let outer = self.building().map(|mut b| std::mem::replace(&mut b.contractions, dtype));
        let _guard = OnDrop(|| {
            if let (Some(mut b), Some(outer)) = (self.building(), outer) {
                b.contractions = outer;
            }
        });
        build()
    }

    /// Returns the inputs of an operation in the types that it takes them in, or `None` if these are
    /// the types they have.
    pub(super) fn autocast_inputs(
        &self,
        op: &dyn OpDef,
        inputs: &[&Tensor],
        caller: &'static Location<'static>,
    ) -> Option<Vec<Tensor>> {
        let narrow = self.contractions()?;
        let has_wide = || {
            let mut values = inputs.iter().enumerate().filter(|(i, _)| !op.shape_only(*i));
            values.any(|(_, x)| x.dtype() == DType::F32)
        };
        let dtypes: Vec<DType> = inputs
            .iter()
            .enumerate()
            .map(|(i, x)| match op.autocast(i) {
                _ if op.shape_only(i) || !(x.dtype() == DType::F32 || x.dtype().is_narrow_float()) => {
                    x.dtype()
                }
                Autocast::Narrow => narrow,
                Autocast::Wide => DType::F32,
                Autocast::Widest if has_wide() => DType::F32,
                Autocast::Widest | Autocast::Keep => x.dtype(),
            })
            .collect();
        if inputs.iter().zip(&dtypes).all(|(x, dtype)| x.dtype() == *dtype) {
            return None;
        }
        let cast = || inputs.iter().zip(&dtypes).map(|(x, dtype)| x.cast(*dtype)).collect();
        Some(self.called_from(caller, cast))
    }
}
