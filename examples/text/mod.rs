//! Shared code of the language models of characters and bytes: the text, its alphabet, windows for training,
//! and sampling. See `docs/language-models.md`.

#![allow(dead_code, reason = "each example uses a part of this")]

use std::collections::BTreeSet;
use std::sync::Arc;
use tensorpack::dataflow::FromFn;
use tensorpack::dataflow::dataset::ptb::{self, Split};
use tensorpack::dataflow::dataset::sentences;
use tensorpack::prelude::*;

/// Returns the training and validation text of the Treebank, or generated text if the Treebank is
/// unavailable and not `needed`.
pub(crate) fn treebank(needed: bool) -> Result<[String; 2]> {
    let both = |text: fn(Split) -> Result<String>| -> Result<[String; 2]> {
        // Every line of the Treebank starts and ends with a space, which would be trivial to predict.
        let trimmed = |text: String| text.lines().map(|line| line.trim().to_string() + "\n").collect();
        Ok([trimmed(text(Split::Train)?), trimmed(text(Split::Valid)?)])
    };
    match both(ptb::text) {
        Err(e) if !needed => {
            tensorpack::logger::init();
            log::warn!("the Penn Treebank is unavailable; training on generated sentences: {e}");
            both(sentences::text)
        }
        texts => texts,
    }
}

/// The characters of a text, in order; models see indices into it.
pub(crate) struct Alphabet(Vec<char>);

impl Alphabet {
    /// Returns the characters that occur in one of the texts.
    pub(crate) fn of(texts: &[String]) -> Alphabet {
        let characters: BTreeSet<char> = texts.iter().flat_map(|text| text.chars()).collect();
        Alphabet(characters.into_iter().collect())
    }

    /// Returns the number of characters.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the indices of the characters of a text. One that is not in the alphabet is an error.
    pub(crate) fn indices(&self, text: &str) -> Result<Vec<i32>> {
        let index = |c: char| match self.0.binary_search(&c) {
            Ok(index) => Ok(index as i32),
            Err(_) => Err(Error::argument(format!("{c:?} is not in the training text"))),
        };
        text.chars().map(index).collect()
    }

    /// Returns the text of these indices.
    pub(crate) fn text(&self, indices: &[i32]) -> String {
        indices.iter().map(|&index| self.0[index as usize]).collect()
    }
}

/// Windows of a text, each with the window one character later. Each starts `stride` characters after the
/// one before.
pub(crate) fn windows(text: Vec<i32>, length: usize, stride: usize) -> FromFn {
    let text: Arc<[i32]> = text.into();
    let count = if text.len() > length { (text.len() - 1 - length) / stride + 1 } else { 0 };
    FromFn::new(count as u64, move |i| {
        let from = i as usize * stride;
        let window = |from: usize| HostTensor::new([length], text[from..from + length].to_vec());
        Ok(vec![window(from)?, window(from + 1)?])
    })
}

/// Draws from the softmax of the logits divided by `temperature`, with a uniform number from 0 to 1.
pub(crate) fn draw(logits: &[f64], temperature: f64, uniform: f64) -> usize {
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logits.iter().map(|l| ((l - most) / temperature).exp()).collect();
    let mut left = uniform * weights.iter().sum::<f64>();
    let drawn = weights.iter().position(|w| {
        left -= w;
        left < 0.0
    });
    // Rounding may leave nothing for the last one.
    drawn.unwrap_or(logits.len() - 1)
}
