//! The vision transformer (Dosovitskiy et al., 2020), with the names of timm's: with its weights it
//! computes the same (`tests/torch_nets.rs`).

use tensorpack::graph::VariableSpec;
use tensorpack::nn::Activation;
use tensorpack::ops::Padding;
use tensorpack::prelude::*;

pub(crate) struct Vit {
    /// The side of an image, and of the patches into which it is cut.
    pub(crate) side: usize,
    pub(crate) patch: usize,
    pub(crate) features: usize,
    pub(crate) heads: usize,
    pub(crate) blocks: usize,
    pub(crate) classes: usize,
    pub(crate) dropout: f64,
}

impl Vit {
    /// Maps images `[batch, side, side, 3]` to logits.
    pub(crate) fn logits(&self, t: &TowerContext, images: &Tensor) -> Tensor {
        let (features, patches) = (self.features, (self.side / self.patch).pow(2));
        let normal = Init::TruncatedNormal(0.0, 0.02);
        let norm = LayerNorm::new().last_axis().epsilon(1e-6);
        let drop = Dropout::new(self.dropout);
        let project = Conv2d::new(features, self.patch).stride(self.patch).padding(Padding::Valid);
        let project = project.init(Init::xavier());
        let tokens = project.apply(t, "patch_embed/proj", images).merge_dims(1, 2);
        // A token with the same value in every example, for the class.
        let class = t.variable(VariableSpec::new("cls_token", [1, 1, features]).init(normal.clone()));
        let class = tokens.slice_axis(1, 0, Some(1)).zeros_like() + class.value();
        let position = VariableSpec::new("pos_embed", [1, patches + 1, features]).init(normal);
        let mut x = t.graph().concat(&[class, tokens], 1) + t.variable(position).value();
        for i in 0..self.blocks {
            x = t.scope(&format!("blocks/{i}"), |t| {
                let attention = MultiHeadAttention::new(self.heads);
                let attended = attention.apply(t, "attn", &norm.apply(t, "norm1", &x));
                let x = &x + drop.apply(t, "drop1", &attended);
                let wide = Linear::new(4 * features).last_axis().activation(Activation::Gelu);
                let hidden = wide.init(Init::xavier()).apply(t, "mlp/fc1", &norm.apply(t, "norm2", &x));
                let narrow = Linear::new(features).last_axis().init(Init::xavier());
                &x + drop.apply(t, "drop2", &narrow.apply(t, "mlp/fc2", &hidden))
            });
        }
        let class = norm.apply(t, "norm", &x).slice_axis(1, 0, Some(1)).squeeze(1);
        Linear::new(self.classes).init(Init::Normal(0.0, 0.02)).apply(t, "head", &class)
    }
}
