//! A synthetic text that needs no file and no network.
//!
//! On average every second word is one of four successors of the previous word; the others follow
//! Zipf's law independently. A unigram model reaches a perplexity of about 870, and a model that
//! knows the successors about 117. Ids grow with rarity, as in [`ptb`](super::ptb), and 0 ends a
//! sentence.

use super::ptb::Split;
use tensorpack_tensor::{CounterRng, HostTensor, Result};

/// Size of the vocabulary.
#[doc(alias = "WORDS")]
pub const VOCAB_SIZE: usize = (1 << OCTAVES) - 1;

/// Words whose ids have the same bit length are equally frequent as a group.
const OCTAVES: u32 = 13;
/// Number of words that can be a successor.
const SUCCESSORS: u64 = 511;
const STRIDE: u64 = 2_003;

/// Returns the token ids of a split (i32): 300,000 for training, 30,000 each for validation and
/// testing.
#[doc(alias = "words")]
pub fn token_ids(split: Split) -> Result<HostTensor> {
    let (name, count) = match split {
        Split::Train => ("train sentences", 300_000),
        Split::Valid => ("valid sentences", 30_000),
        Split::Test => ("test sentences", 30_000),
    };
    let rng = CounterRng::new(0, name);
    let mut previous = 0;
    let next = |i: u64| {
        let [follows, octave, within, which] = rng.words(0, i).map(u64::from);
        previous = match follows % 2 {
            0 => (previous * 5 + (which % 4 + 1) * STRIDE) % SUCCESSORS,
            _ => {
                let first = 1 << (octave % u64::from(OCTAVES));
                first - 1 + within % first
            }
        };
        previous as i32
    };
    HostTensor::new([count], (0..count as u64).map(next).collect::<Vec<i32>>())
}

/// Returns the same text spelled out: frequent words are short, and every sentence is a line.
pub fn text(split: Split) -> Result<String> {
    let mut text = String::new();
    for &word in token_ids(split)?.as_slice::<i32>()? {
        match word {
            0 => text.push('\n'),
            _ if text.is_empty() || text.ends_with('\n') => spell(word as usize, &mut text),
            _ => {
                text.push(' ');
                spell(word as usize, &mut text);
            }
        }
    }
    Ok(text)
}

/// Spells a word as a sequence of syllables.
fn spell(word: usize, text: &mut String) {
    const FIRST: &[u8] = b"bdfghjklmnprstvz";
    const SECOND: &[u8] = b"aeiou";
    let mut rest = word;
    while rest > 0 {
        let syllable = (rest - 1) % (FIRST.len() * SECOND.len());
        text.push(char::from(FIRST[syllable % FIRST.len()]));
        text.push(char::from(SECOND[syllable / FIRST.len()]));
        rest = (rest - 1) / (FIRST.len() * SECOND.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};

    /// The perplexity of the text, given the probability of each word after the previous one.
    fn perplexity(words: &[i32], probability: impl Fn(i32, i32) -> f64) -> f64 {
        let bits = words.windows(2).map(|pair| -probability(pair[0], pair[1]).ln());
        (bits.sum::<f64>() / (words.len() - 1) as f64).exp()
    }

    #[test]
    fn previous_word_predicts_the_next() {
        let train = token_ids(Split::Train).unwrap();
        let train = train.as_slice::<i32>().unwrap();
        let mut counts = HashMap::new();
        train.iter().for_each(|word| *counts.entry(*word).or_insert(0.0) += 1.0);
        let valid = token_ids(Split::Valid).unwrap();
        let valid = valid.as_slice::<i32>().unwrap();
        let alone = |word: i32| (counts.get(&word).unwrap_or(&0.0) + 1.0) / (train.len() + VOCAB_SIZE) as f64;
        let by_count = perplexity(valid, |_, word| alone(word));
        // Each of the four successors has probability 1/8.
        let follows = |previous: i32, word: i32| {
            let to = |k: u64| (previous as u64 * 5 + k * STRIDE) % SUCCESSORS == word as u64;
            let by_rule = (1..=4).filter(|k| to(*k)).count() as f64 / 8.0;
            let octave = f64::from(u32::ilog2(word as u32 + 1));
            by_rule + 0.5 / f64::from(OCTAVES) / octave.exp2()
        };
        let by_rule = perplexity(valid, follows);
        assert!((800.0..900.0).contains(&by_count), "{by_count}");
        assert!((105.0..120.0).contains(&by_rule), "{by_rule}");
    }

    #[test]
    fn every_word_has_a_unique_spelling() {
        let spelled: HashSet<String> = (1..VOCAB_SIZE)
            .map(|word| {
                let mut letters = String::new();
                spell(word, &mut letters);
                letters
            })
            .collect();
        assert_eq!(spelled.len(), VOCAB_SIZE - 1);
        let text = text(Split::Test).unwrap();
        assert!(text.lines().count() > 1_000 && !text.contains("  ") && text.is_ascii(), "{}", &text[..200]);
    }
}
