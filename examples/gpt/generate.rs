//! Generation of text, one token at a time. Keys and values of earlier tokens are kept, so the work for a
//! token does not depend on how many came before.

use super::model::{Decoding, Gpt, TOKENS};
use super::text::draw;
use tensorpack::prelude::*;
use tensorpack::runtime::IntoFetch;
use tensorpack::tensor::CounterRng;

/// A model that continues several texts at once.
pub(crate) struct Generator {
    session: Session,
    /// The logits, then keys and values of each block.
    outputs: Vec<Tensor>,
    /// The names of the caches' inputs.
    names: Vec<String>,
    caches: Vec<HostTensor>,
    texts: usize,
    position: usize,
}

impl Generator {
    /// Creates a generator of this many texts of at most `capacity` tokens, with the weights of `trained`.
    pub(crate) fn new(gpt: Gpt, trained: &Session, texts: usize, capacity: usize) -> Result<Generator> {
        let graph = Graph::new();
        let text = graph.placeholder(&TensorSpec::i32("text", [None, Some(1)]));
        let position = graph.placeholder(&TensorSpec::i32("position", [None]));
        let caches = (0..gpt.blocks).map(|i| {
            let specs = gpt.attention().cache_specs(&format!("cache{i}"), gpt.features, capacity);
            let [key, value] = specs.map(|spec| graph.placeholder(&spec));
            KvCache::new(&key, &value)
        });
        let parts = |caches: &[KvCache]| -> Vec<Tensor> {
            caches.iter().flat_map(|cache| [cache.key().clone(), cache.value().clone()]).collect()
        };
        let mut decoding = Decoding { caches: caches.collect(), position };
        let names = parts(&decoding.caches).iter().map(Tensor::name).collect();
        let t = TowerContext::inference(&graph);
        let logits = t.build(|t| gpt.logits(t, &text, Some(&mut decoding)));
        let outputs = [vec![logits], parts(&decoding.caches)].concat();
        let session = Session::new(graph.freeze()?)?;
        for variable in session.graph().variables() {
            session.write(&variable.name, &trained.read(&variable.name)?)?;
        }
        let empty =
            HostTensor::zeros(DType::F32, [texts, capacity, gpt.heads, gpt.features / gpt.heads.max(1)])?;
        Ok(Generator { session, outputs, names, caches: vec![empty; 2 * gpt.blocks], texts, position: 0 })
    }

    /// Appends one token to each text. Returns the logits of the next ones.
    pub(crate) fn append(&mut self, tokens: &[u8]) -> Result<Vec<Vec<f64>>> {
        let tokens: Vec<i32> = tokens.iter().map(|&token| token.into()).collect();
        let text = HostTensor::new([self.texts, 1], tokens)?;
        let position = HostTensor::new([self.texts], vec![self.position as i32; self.texts])?;
        let mut feeds = vec![("text", &text), ("position", &position)];
        feeds.extend(self.names.iter().map(String::as_str).zip(&self.caches));
        let fetches: Vec<&dyn IntoFetch> = self.outputs.iter().map(|x| x as _).collect();
        let mut results = self.session.run(&fetches, &feeds)?;
        self.caches = results.split_off(1);
        self.position += 1;
        Ok(results[0].to_f64_vec().chunks(TOKENS).map(<[f64]>::to_vec).collect())
    }

    /// Continues `prompt` in as many ways as there are texts, each until the end of a line or until it has
    /// `length` tokens. Probabilities are the softmax of the logits divided by `temperature`.
    pub(crate) fn generate(
        mut self,
        prompt: &str,
        length: usize,
        temperature: f64,
        seed: u64,
    ) -> Result<Vec<String>> {
        let rng = CounterRng::new(seed, "text");
        // The text starts at the beginning of a line.
        let mut logits = self.append(&vec![b'\n'; self.texts])?;
        for &byte in prompt.as_bytes() {
            logits = self.append(&vec![byte; self.texts])?;
        }
        let mut lines = vec![prompt.as_bytes().to_vec(); self.texts];
        let mut finished = vec![false; self.texts];
        for i in prompt.len()..length {
            let drawn: Vec<u8> = (0..self.texts)
                .map(|text| draw(&logits[text], temperature, rng.uniform(text as u64, i as u64)) as u8)
                .collect();
            for ((line, finished), &token) in lines.iter_mut().zip(&mut finished).zip(&drawn) {
                *finished |= token == b'\n';
                if !*finished {
                    line.push(token);
                }
            }
            if i + 1 == length || finished.iter().all(|&finished| finished) {
                break;
            }
            logits = self.append(&drawn)?;
        }
        Ok(lines.iter().map(|line| String::from_utf8_lossy(line).into_owned()).collect())
    }
}
