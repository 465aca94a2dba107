//! A GPT: a decoder-only transformer over bytes, with rotary position embeddings.

use tensorpack::prelude::*;

/// The number of tokens, which are bytes.
pub(crate) const TOKENS: usize = 256;

/// The sizes of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gpt {
    /// The length of the sequences it is trained on.
    pub(crate) context: usize,
    pub(crate) blocks: usize,
    pub(crate) features: usize,
    pub(crate) heads: usize,
    pub(crate) dropout: f64,
}

/// The caches of all blocks, and the position of the next token of each text.
pub(crate) struct Decoding {
    pub(crate) caches: Vec<KvCache>,
    pub(crate) position: Tensor,
}

impl Gpt {
    pub(crate) fn attention(&self) -> MultiHeadAttention {
        MultiHeadAttention::new(self.heads).rotary(10_000.0).causal().no_bias().init(normal())
    }

    /// Maps `text [batch, time]` to logits of the next tokens. With `decoding`, `time` is 1, and its caches
    /// become the next ones.
    pub(crate) fn logits(
        &self,
        t: &TowerContext,
        text: &Tensor,
        mut decoding: Option<&mut Decoding>,
    ) -> Tensor {
        let norm = LayerNorm::new().last_axis();
        let drop = Dropout::new(self.dropout);
        let mut x = Embedding::new(TOKENS, self.features).init(normal()).apply(t, "tokens", text);
        for i in 0..self.blocks {
            x = t.scope(&format!("block{i}"), |t| {
                let attended = norm.apply(t, "norm0", &x);
                let attended = match &mut decoding {
                    None => self.attention().apply(t, "attention", &attended),
                    Some(Decoding { caches, position }) => {
                        let (y, next) =
                            self.attention().apply_cached(t, "attention", &attended, &caches[i], position);
                        caches[i] = next;
                        y
                    }
                };
                let x = &x + drop.apply(t, "drop0", &attended);
                let wide = Linear::new(4 * self.features).last_axis().init(normal()).no_bias();
                let hidden = wide.activation(Activation::Gelu).apply(t, "wide", &norm.apply(t, "norm1", &x));
                let narrow = Linear::new(self.features).last_axis().init(normal()).no_bias();
                &x + drop.apply(t, "drop1", &narrow.apply(t, "narrow", &hidden))
            });
        }
        let x = norm.apply(t, "norm", &x);
        Linear::new(TOKENS).last_axis().init(normal()).no_bias().apply(t, "head", &x)
    }
}

fn normal() -> Init {
    Init::Normal(0.0, 0.02)
}
