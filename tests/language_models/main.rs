//! Tests of the language models in `examples/`, compiled from the same files.

mod attention;
#[expect(dead_code, reason = "only the model is looked at")]
#[path = "../../examples/char_lm.rs"]
mod char_lm;
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
