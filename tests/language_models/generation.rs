//! The example `gpt` generates text with caches: its logits are those of a model that sees the whole text.

use crate::generate::Generator;
use crate::model::{Gpt, TOKENS};
use tensorpack::prelude::*;

const LENGTH: usize = 12;
const GPT: Gpt = Gpt { context: LENGTH, blocks: 2, features: 16, heads: 2, dropout: 0.0 };

/// A model of the whole text, with larger weights than at the start of training.
fn whole() -> (Session, Tensor) {
    let graph = Graph::new();
    let text = graph.placeholder(&TensorSpec::i32("text", [None, Some(GPT.context)]));
    let logits = TowerContext::training(&graph).build(|t| GPT.logits(t, &text, None));
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    for variable in session.graph().variables().iter().filter(|v| v.name.ends_with("/W")) {
        let value = session.read(&variable.name).unwrap();
        let larger: Vec<f64> = value.to_f64_vec().iter().map(|x| 20.0 * x).collect();
        session
            .write(&variable.name, &HostTensor::from_f64(DType::F32, value.sizes(), &larger).unwrap())
            .unwrap();
    }
    (session, logits)
}

#[test]
fn caches_give_the_logits_of_the_whole_text() {
    let (session, logits) = whole();
    let texts = [b"a dictionary", b"words in row"];
    let bytes: Vec<i32> = texts.iter().flat_map(|text| text.iter().map(|&byte| byte.into())).collect();
    let fed = HostTensor::new([2, LENGTH], bytes).unwrap();
    let expected = session.run(&[&logits], &[("text", &fed)]).unwrap()[0].to_f64_vec();
    let mut generator = Generator::new(GPT, &session, 2, LENGTH).unwrap();
    for i in 0..LENGTH {
        let found = generator.append(&[texts[0][i], texts[1][i]]).unwrap();
        for (text, found) in found.iter().enumerate() {
            let expected = &expected[(text * LENGTH + i) * TOKENS..][..TOKENS];
            let far = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            let scale = expected.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
            assert!(scale > 0.1 && far < 1e-4 * scale, "position {i} of text {text}: {far} of {scale}");
        }
    }
    assert!(generator.append(b"no").is_err(), "the cache is full");
}

#[test]
fn lines_begin_with_the_prompt() {
    let (session, _) = whole();
    let lines = |seed| {
        let generator = Generator::new(GPT, &session, 3, LENGTH).unwrap();
        generator.generate("word", LENGTH - 1, 1.0, seed).unwrap()
    };
    let (first, second) = (lines(0), lines(1));
    assert!(first.iter().all(|line| line.starts_with("word") && !line.contains('\n')), "{first:?}");
    assert!(first.iter().any(|line| line.len() > "word".len()), "{first:?}");
    assert!(first[0] != first[1] && first != second, "{first:?} {second:?}");
    assert_eq!(first, lines(0));
}
