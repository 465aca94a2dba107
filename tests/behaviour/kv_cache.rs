//! A decoder with a cache of keys and values generates the same text as one that sees all of it.

use tensorpack::ErrorKind;
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;

const CHARACTERS: usize = 13;
const FEATURES: usize = 16;
const BLOCKS: usize = 2;
const CAPACITY: usize = 32;

fn attention() -> MultiHeadAttention {
    MultiHeadAttention::new(4).kv_heads(2).rotary(100.0).causal()
}

/// A decoder of `text [batch, time]`. With caches, `time` is 1; returns the logits and the next caches.
fn decoder(t: &TowerContext, text: &Tensor, cached: Option<(&[KvCache], &Tensor)>) -> (Tensor, Vec<KvCache>) {
    let norm = LayerNorm::new().last_axis();
    let wide = Init::Normal(0.0, 0.5);
    let mut x =
        Embedding::new(CHARACTERS, FEATURES).init(Init::Normal(0.0, 1.0)).apply(t, "characters", text);
    let mut next = Vec::new();
    for i in 0..BLOCKS {
        x = t.scope(&format!("block{i}"), |t| {
            let normal = norm.apply(t, "norm0", &x);
            let attended = match cached {
                None => attention().apply(t, "attention", &normal),
                Some((caches, position)) => {
                    let (y, cache) = attention().apply_cached(t, "attention", &normal, &caches[i], position);
                    next.push(cache);
                    y
                }
            };
            let x = &x + attended;
            let hidden =
                Linear::new(32).last_axis().init(wide.clone()).apply(t, "fc", &norm.apply(t, "norm1", &x));
            &x + Linear::new(FEATURES).last_axis().apply(t, "out", &hidden.gelu())
        });
    }
    (Linear::new(CHARACTERS).last_axis().init(wide).apply(t, "head", &x), next)
}

fn options(device: Device) -> SessionOptions {
    SessionOptions { device, seed: 3, profile: true, ..SessionOptions::default() }
}

/// Sees the whole text, padded to the capacity, for every character.
struct Whole {
    session: Session,
    logits: Tensor,
}

impl Whole {
    fn new(device: Device) -> Whole {
        let graph = Graph::new();
        let text = graph.placeholder(&TensorSpec::i32("text", [None, Some(CAPACITY)]));
        // A training tower creates the variables; nothing in it depends on the mode.
        let (logits, _) = TowerContext::training(&graph).build(|t| decoder(t, &text, None));
        Whole { session: Session::with(graph.freeze().unwrap(), options(device)).unwrap(), logits }
    }

    fn logits(&self, text: &[i32]) -> Vec<f64> {
        let mut padded = text.to_vec();
        padded.resize(CAPACITY, 0);
        let padded = HostTensor::new([1, CAPACITY], padded).unwrap();
        let all = self.session.run(&[&self.logits], &[("text", &padded)]).unwrap()[0].to_f64_vec();
        all[(text.len() - 1) * CHARACTERS..][..CHARACTERS].to_vec()
    }
}

/// Sees one character at a time, and keeps the caches.
struct Cached {
    session: Session,
    outputs: Vec<Tensor>,
    names: Vec<String>,
    state: Vec<HostTensor>,
}

impl Cached {
    fn new(device: Device) -> Cached {
        let graph = Graph::new();
        let text = graph.placeholder(&TensorSpec::i32("text", [None, Some(1)]));
        let position = graph.placeholder(&TensorSpec::i32("position", [None]));
        let specs: Vec<[TensorSpec; 2]> =
            (0..BLOCKS).map(|i| attention().cache_specs(&format!("cache{i}"), FEATURES, CAPACITY)).collect();
        let caches: Vec<KvCache> = specs
            .iter()
            .map(|[key, value]| KvCache::new(&graph.placeholder(key), &graph.placeholder(value)))
            .collect();
        let names = caches.iter().flat_map(|c| [c.key().name(), c.value().name()]).collect();
        let (logits, next) =
            TowerContext::training(&graph).build(|t| decoder(t, &text, Some((&caches, &position))));
        let mut outputs = vec![logits];
        outputs.extend(next.iter().flat_map(|c| [c.key().clone(), c.value().clone()]));
        let zeros = HostTensor::zeros(DType::F32, [1, CAPACITY, 2, FEATURES / 4]).unwrap();
        let session = Session::with(graph.freeze().unwrap(), options(device)).unwrap();
        Cached { session, outputs, names, state: vec![zeros; 2 * BLOCKS] }
    }

    fn next(&mut self, character: i32, position: usize) -> Result<Vec<f64>> {
        let text = HostTensor::new([1, 1], vec![character])?;
        let position = HostTensor::new([1], vec![position as i32])?;
        let mut feeds = vec![("text", &text), ("position", &position)];
        feeds.extend(self.names.iter().map(String::as_str).zip(&self.state));
        let fetches: Vec<&dyn tensorpack::runtime::IntoFetch> = self.outputs.iter().map(|x| x as _).collect();
        let mut found = self.session.run(&fetches, &feeds)?.into_iter();
        let logits = found.next().expect("the logits are fetched first").to_f64_vec();
        self.state = found.collect();
        Ok(logits)
    }
}

/// Draws a character from the distribution of logits.
fn draw(logits: &[f64], uniform: f64) -> i32 {
    let weights: Vec<f64> = logits.iter().map(|l| l.exp()).collect();
    let mut left = uniform * weights.iter().sum::<f64>();
    let drawn = weights.iter().position(|w| {
        left -= w;
        left < 0.0
    });
    drawn.unwrap_or(CHARACTERS - 1) as i32
}

/// Returns the floating point operations of one run of each kernel.
fn flops(session: &Session) -> f64 {
    session.profile().unwrap().iter().map(|kernel| kernel.flops).sum()
}

#[test]
fn a_cache_generates_the_same_text_with_less_work() {
    let xla = tensorpack_testing::plugin_for_tests("cpu").map(|_| "xla:cpu:0".parse().unwrap());
    for device in [Device::default()].into_iter().chain(xla) {
        let (whole, mut cached) = (Whole::new(device), Cached::new(device));
        let rng = CounterRng::new(0, "text");
        let mut text = vec![1];
        for i in 0..CAPACITY {
            let right = whole.logits(&text);
            let found = cached.next(text[i], i).unwrap();
            let far = right.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(far < 1e-4, "{device}, character {i}: {far}");
            let uniform = rng.uniform(0, i as u64);
            let drawn = [&right, &found].map(|logits| draw(logits, uniform));
            assert_eq!(drawn[0], drawn[1], "{device}, character {i}");
            text.push(drawn[0]);
        }
        text.sort_unstable();
        text.dedup();
        assert!(text.len() > 5, "{device}: the text has only the characters {text:?}");
        if device == Device::default() {
            let [all, one] = [flops(&whole.session), flops(&cached.session)];
            assert!(one * 12.0 < all, "{one} of {all} operations");
        }
        // The cache is full.
        let e = cached.next(0, CAPACITY).unwrap_err();
        assert!(e.to_string().contains(&CAPACITY.to_string()), "{device}: {e}");
        assert_eq!(e.kind(), ErrorKind::Argument, "{device}: {e}");
    }
}
