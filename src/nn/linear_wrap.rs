//! Chains of layers.

use super::{
    BatchNorm, BatchRenorm, Conv1d, Conv2d, Conv2dTranspose, DepthwiseConv2d, Dropout, Embedding, GroupNorm,
    InstanceNorm, LayerNorm, Linear, Maxout, PRelu,
};
use crate::graph::Tensor;
use crate::tower::TowerContext;

/// A layer of one tensor: a layer of this crate, or a function of context, name and input.
pub trait Layer {
    /// Applies the layer under this name.
    fn apply_layer(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor;
}

impl<F: Fn(&TowerContext, &str, &Tensor) -> Tensor> Layer for F {
    #[track_caller]
    fn apply_layer(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        self(t, name, x)
    }
}

macro_rules! layers {
    ($($layer:ty),* $(,)?) => {$(
        impl Layer for $layer {
            #[track_caller]
            fn apply_layer(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
                self.apply(t, name, x)
            }
        }
    )*};
}
layers![
    BatchNorm,
    BatchRenorm,
    Conv1d,
    Conv2d,
    Conv2dTranspose,
    DepthwiseConv2d,
    Dropout,
    Embedding,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    Linear,
    Maxout,
    PRelu,
];

/// A tensor that layers are applied to, one after the other.
///
/// ```
/// use tensorpack::prelude::*;
///
/// # let graph = Graph::new();
/// # let image = graph.placeholder(&TensorSpec::f32("image", [None, Some(28), Some(28), Some(1)]));
/// # let t = &TowerContext::training(&graph);
/// let logits = LinearWrap::new(t, &image)
///     .layer("conv0", Conv2d::new(16, 3).relu())
///     .apply(|x| x.max_pool(2))
///     .layer("block", |t: &TowerContext, name: &str, x: &Tensor| {
///         t.scope(name, |t| x + Conv2d::new(16, 3).relu().apply(t, "conv", x))
///     })
///     .layer("fc", Linear::new(10))
///     .tensor();
/// # graph.freeze().unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct LinearWrap<'a> {
    t: &'a TowerContext,
    tensor: Tensor,
}

impl<'a> LinearWrap<'a> {
    /// Starts a chain at `x`.
    pub fn new(t: &'a TowerContext, x: &Tensor) -> LinearWrap<'a> {
        LinearWrap { t, tensor: x.clone() }
    }

    /// Applies a layer under this name.
    #[must_use]
    #[track_caller]
    pub fn layer(self, name: &str, layer: impl Layer) -> LinearWrap<'a> {
        LinearWrap { tensor: layer.apply_layer(self.t, name, &self.tensor), ..self }
    }

    /// Applies a function that creates no variables, such as a pooling.
    #[must_use]
    #[track_caller]
    pub fn apply(self, function: impl FnOnce(&Tensor) -> Tensor) -> LinearWrap<'a> {
        LinearWrap { tensor: function(&self.tensor), ..self }
    }

    /// Returns the result.
    pub fn tensor(self) -> Tensor {
        self.tensor
    }
}
