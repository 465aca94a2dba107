//! The language model: an embedding of 650 features and a two-layer LSTM, unrolled over 35 words.

use tensorpack::Result;
use tensorpack::graph::{Init, Op, Tensor, TensorSpec};
use tensorpack::nn::{Embedding, Linear, Lstm};
use tensorpack::optim::gradproc::GlobalNormClip;
use tensorpack::optim::{Optimizer, Sgd, minimize};
use tensorpack::tower::TowerContext;

/// The size of the vocabulary.
pub(crate) const WORDS: usize = 10_000;
/// The length of a sequence.
pub(crate) const STEPS: usize = 35;
const UNITS: usize = 650;

pub(crate) fn build(t: &TowerContext) -> Result<(Tensor, Op)> {
    let sequence = |name: &str| t.graph().placeholder(&TensorSpec::i32(name, [None, Some(STEPS)]));
    let (words, next) = (sequence("words"), sequence("next"));
    let init = || Init::Uniform(-0.05, 0.05);
    let mut x = Embedding::new(WORDS, UNITS).init(init()).apply(t, "embedding", &words).dropout(0.5);
    for layer in ["lstm0", "lstm1"] {
        let lstm = Lstm::new(UNITS).forget_bias(0.0).init(init()).recurrent_init(init());
        x = lstm.apply(t, layer, &x, None).0.dropout(0.5);
    }
    let logits = Linear::new(WORDS).last_axis().init(init()).apply(t, "fc", &x);
    // The sum over time of the mean over the batch.
    let cost = (logits.sparse_softmax_cross_entropy(&next).mean() * STEPS as f64).named("cost");
    let train = minimize(&cost, &Sgd::new(1.0).process(GlobalNormClip::new(5.0)))?;
    Ok((cost, train))
}
