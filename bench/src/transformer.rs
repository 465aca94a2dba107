//! A transformer: the layers, whose predictions are measured, and a language model of bytes, whose
//! training steps are.

use tensorpack::Result;
use tensorpack::graph::{Init, Op, Tensor, TensorSpec, VariableSpec};
use tensorpack::nn::{Activation, Embedding, LayerNorm, Linear, MultiHeadAttention};
use tensorpack::optim::{Adam, minimize};
use tensorpack::tower::TowerContext;

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

/// Builds the language model and its train op; returns the cost and the op.
pub(crate) fn build(t: &TowerContext) -> Result<(Tensor, Op)> {
    let sequence = |name: &str| t.graph().placeholder(&TensorSpec::i32(name, [None, Some(TOKENS)]));
    let (words, next) = (sequence("words"), sequence("next"));
    let init = || Init::Normal(0.0, 0.02);
    let positions = t.variable(VariableSpec::new("positions/W", [TOKENS, WIDTH]).init(init()));
    let x = Embedding::new(BYTES, WIDTH).init(init()).apply(t, "bytes", &words) + positions.value();
    let x = layers(t, &x, &attention().causal());
    let x = LayerNorm::new().last_axis().apply(t, "norm", &x);
    let logits = Linear::new(BYTES).last_axis().apply(t, "head", &x);
    let cost = logits.sparse_softmax_cross_entropy(&next).mean().named("cost");
    let train = minimize(&cost, &Adam::new(1e-3))?;
    Ok((cost, train))
}
