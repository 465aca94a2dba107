//! The attention of `char_lm` is causal.

use crate::char_lm::{CONTEXT, Model};
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;

const CHARACTERS: usize = 11;

#[test]
fn a_later_character_changes_no_earlier_logit() {
    let config = PredictConfig::new(Model { characters: CHARACTERS, steps: 1 }, ["logits"]).unwrap();
    let model = OfflinePredictor::new(config.inputs(["text"])).unwrap();
    let rng = CounterRng::new(0, "text");
    let text: Vec<i32> = (0..CONTEXT as u64).map(|i| (rng.word(0, i) % CHARACTERS as u32) as i32).collect();
    let logits = |text: &[i32]| {
        let text = HostTensor::new([1, CONTEXT], text.to_vec()).unwrap();
        model.predict(&[&text]).unwrap()[0].to_f64_vec()
    };
    let before = logits(&text);
    assert_eq!(before.len(), CONTEXT * CHARACTERS);
    for changed in [0, 1, 17, 64, CONTEXT - 1] {
        let mut other = text.clone();
        other[changed] = (other[changed] + 1) % CHARACTERS as i32;
        let after = logits(&other);
        let differs =
            |at: usize| before[at * CHARACTERS..][..CHARACTERS] != after[at * CHARACTERS..][..CHARACTERS];
        let seen: Vec<usize> = (0..CONTEXT).filter(|&at| differs(at)).collect();
        assert_eq!(seen, (changed..CONTEXT).collect::<Vec<_>>(), "character {changed} was changed");
    }
}
