//! Tests of the language models in `examples/`, compiled from the same files.

#![allow(clippy::duplicate_mod, reason = "several examples share `text`")]

mod attention;
#[expect(dead_code, reason = "only the model is looked at")]
#[path = "../../examples/char_lm.rs"]
mod char_lm;
#[expect(dead_code, reason = "only model and generator are looked at")]
#[path = "../../examples/char_rnn.rs"]
mod char_rnn;
mod characters;
mod curve;
#[path = "../../examples/gpt/generate.rs"]
mod generate;
mod generation;
#[path = "../../examples/gpt/model.rs"]
mod model;
#[expect(dead_code, reason = "only model, input and callbacks are looked at")]
#[path = "../../examples/ptb_lstm.rs"]
mod ptb_lstm;
mod recurrence;
#[path = "../../examples/text/mod.rs"]
mod text;
