//! A transformer: the layers, whose predictions are measured, and a language model of bytes, whose
//! training steps are.

use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;

/// The tokens of a sequence, and their width.
pub(crate) const TOKENS: usize = 256;
pub(crate) const WIDTH: usize = 384;
/// The size of the vocabulary.
pub(crate) const BYTES: usize = 256;
const LAYERS: usize = 6;
const HEADS: usize = 6;

/// Applies layers that normalize first, as `torch.nn.TransformerEncoderLayer` with `norm_first`.
pub(crate) fn layers(t: &TowerContext, x: &Tensor, attention: &MultiHeadAttention) -> Tensor {
    let norm = LayerNorm::new().last_axis();
    let mut x = x.clone();
    for i in 0..LAYERS {
        x = t.scope(&format!("layer{i}"), |t| {
            let x = &x + attention.apply(t, "attention", &norm.apply(t, "norm1", &x));
            let hidden = Linear::new(4 * WIDTH).last_axis().activation(Activation::Gelu);
            let y = hidden.apply(t, "linear1", &norm.apply(t, "norm2", &x));
            &x + Linear::new(WIDTH).last_axis().apply(t, "linear2", &y)
        });
    }
    x
}

/// The attention of every layer.
pub(crate) fn attention() -> MultiHeadAttention {
    MultiHeadAttention::new(HEADS)
}

/// The language model. In 16 bits, what passes from layer to layer is narrow, too.
pub(crate) struct LanguageModel;

impl ModelDesc for LanguageModel {
    fn inputs(&self) -> Vec<TensorSpec> {
        ["words", "next"].map(|name| TensorSpec::i32(name, [None, Some(TOKENS)])).into()
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let init = || Init::Normal(0.0, 0.02);
        let positions = t.variable(VariableSpec::new("positions/W", [TOKENS, WIDTH]).init(init()));
        let x = Embedding::new(BYTES, WIDTH).init(init()).apply(t, "bytes", &inputs[0]) + positions.value();
        let x = x.cast(t.graph().precision().narrow_dtype().unwrap_or(DType::F32));
        let x = layers(t, &x, &attention().causal());
        let x = LayerNorm::new().last_axis().apply(t, "norm", &x);
        let logits = Linear::new(BYTES).last_axis().apply(t, "head", &x);
        logits.sparse_softmax_cross_entropy(&inputs[1]).mean().named("cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(1e-3).boxed()
    }
}
