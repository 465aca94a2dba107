//! Attention: memory, bits, masks and errors.

use tensorpack::autodiff::gradients;
use tensorpack::graph::{Graph, Op, Tensor, TensorSpec};
use tensorpack::nn::{Linear, MultiHeadAttention};
use tensorpack::ops::AttentionOptions;
use tensorpack::optim::{Sgd, minimize};
use tensorpack::runtime::{Session, SessionOptions};
use tensorpack::tensor::CounterRng;
use tensorpack::tower::TowerContext;
use tensorpack::{DType, ErrorKind, HostTensor};

fn random(name: &str, sizes: &[usize]) -> HostTensor {
    let rng = CounterRng::new(3, name);
    let values: Vec<f64> = (0..sizes.iter().product::<usize>() as u64).map(|i| rng.normal(0, i)).collect();
    HostTensor::from_f64(DType::F32, sizes, &values).unwrap()
}

/// A training step of one attention layer on `time` positions, and its input.
fn training(
    time: usize,
    layer: impl Fn(&TowerContext, &Tensor) -> Tensor,
) -> (Session, Tensor, Op, HostTensor) {
    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    let x = graph.placeholder(&TensorSpec::f32("x", [Some(1), Some(time), Some(16)]));
    let cost = layer(&t, &x).square().mean();
    cost.mark_cost();
    let train = minimize(&cost, &Sgd::new(0.1)).unwrap();
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    (session, cost, train, random("x", &[1, time, 16]))
}

fn tiled(t: &TowerContext, x: &Tensor) -> Tensor {
    MultiHeadAttention::new(1).causal().dropout(0.1).apply(t, "attention", x)
}

/// Attention composed of products and a softmax.
fn composed(t: &TowerContext, x: &Tensor) -> Tensor {
    let y = Linear::new(16).last_axis().apply(t, "linear", x);
    y.matmul(&y.matrix_transpose()).softmax().matmul(&y)
}

/// Returns the bytes of the arena, which holds all temporaries.
fn arena_bytes(time: usize, layer: impl Fn(&TowerContext, &Tensor) -> Tensor) -> usize {
    let (session, cost, train, x) = training(time, layer);
    let plan = session.plan_text(&[&cost, &train], &[("x", &x)]).unwrap();
    let line = plan.lines().find(|l| l.starts_with("arena")).expect("the plan states the arena");
    line.split(' ').nth(1).expect("a number").parse().unwrap()
}

#[test]
fn memory_of_training_grows_linearly_with_time() {
    let [short, long] = [4096, 8192].map(|time| arena_bytes(time, tiled));
    assert!(long <= 2 * short + (1 << 16), "{short} bytes at 4096, {long} at 8192");
    let scores = 8192 * 8192 * 4;
    assert!(long < scores / 16, "{long} bytes at 8192 positions, whose scores take {scores}");
    assert!(arena_bytes(8192, composed) > scores, "the plan counts scores that are stored");
    let (session, cost, train, x) = training(8192, tiled);
    let losses: Vec<f64> = (0..2)
        .map(|_| session.run(&[&cost, &train], &[("x", &x)]).unwrap()[0].to_scalar().unwrap())
        .collect();
    assert!(losses.iter().all(|l| l.is_finite() && *l > 0.0), "{losses:?}");
    assert_ne!(losses[0], losses[1], "the step changed the weights");
}

/// Queries, keys and values of these sizes, and everything that is fetched: the result and the
/// gradients.
fn attended(
    [batch, queries, keys, heads, kv_heads, width]: [usize; 6],
    options: impl Fn(&Graph) -> AttentionOptions,
    threads: usize,
) -> Vec<HostTensor> {
    let graph = Graph::new();
    let sizes =
        [[batch, queries, heads, width], [batch, keys, kv_heads, width], [batch, keys, kv_heads, width]];
    let x: Vec<Tensor> = sizes
        .iter()
        .zip(["q", "k", "v"])
        .map(|(sizes, name)| graph.placeholder(&TensorSpec::f32(name, sizes.map(Some))))
        .collect();
    let y = x[0].attention(&x[1], &x[2], &options(&graph));
    let mut fetches = vec![y.clone()];
    let found = gradients(&(y.square().sum()), &x.iter().collect::<Vec<_>>()).unwrap();
    fetches.extend(found.into_iter().flatten());
    let options = SessionOptions { threads: Some(threads), ..SessionOptions::default() };
    let session = Session::with(graph.freeze().unwrap(), options).unwrap();
    let feeds: Vec<(&str, HostTensor)> =
        sizes.iter().zip(["q", "k", "v"]).map(|(sizes, name)| (name, random(name, sizes))).collect();
    let feeds: Vec<(&str, &HostTensor)> = feeds.iter().map(|(name, value)| (*name, value)).collect();
    let fetched: Vec<_> = fetches.iter().map(|f| f as &dyn tensorpack::runtime::IntoFetch).collect();
    session.run(&fetched, &feeds).unwrap()
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    // Few heads, so that the keys of the gradient are split; and many.
    for sizes in [[1, 300, 333, 2, 1, 24], [5, 70, 65, 4, 4, 16]] {
        let options = |_: &Graph| AttentionOptions::default().causal().dropout(0.2);
        let one = attended(sizes, options, 1);
        assert_eq!(one.len(), 4);
        for threads in [2, 3, 5] {
            for (a, b) in one.iter().zip(attended(sizes, options, threads)) {
                assert!(a.as_bytes() == b.as_bytes(), "{sizes:?} on {threads} threads");
            }
        }
    }
}

#[test]
fn queries_without_keys_give_zeros_and_no_gradient() {
    let sizes = [2, 3, 4, 2, 2, 5];
    let lengths = |g: &Graph| g.constant(HostTensor::new([2], vec![0i32, 3]).unwrap());
    let masked = |g: &Graph| {
        let lowest = HostTensor::new([2, 1, 1, 1], vec![f32::NEG_INFINITY, 0.0]).unwrap();
        AttentionOptions::default().bias(&g.constant(lowest))
    };
    let results = [
        attended(sizes, |g| AttentionOptions::default().lengths(&lengths(g)), 1),
        attended(sizes, masked, 1),
    ];
    for (i, found) in results.iter().enumerate() {
        for (k, tensor) in found.iter().enumerate() {
            let values = tensor.to_f64_vec();
            let (first, second) = values.split_at(values.len() / 2);
            assert!(first.iter().all(|v| *v == 0.0), "mask {i}, result {k}: {first:?}");
            assert!(second.iter().all(|v| v.is_finite()), "mask {i}, result {k}: {second:?}");
            assert!(second.iter().any(|v| *v != 0.0), "mask {i}, result {k}: {second:?}");
        }
    }
}

#[test]
fn inputs_that_do_not_fit_are_errors_at_the_line_of_the_call() {
    type Build = fn(&dyn Fn(&str, DType, &[usize]) -> Tensor) -> Tensor;
    let cases: [(ErrorKind, &str, Build); 11] = [
        (ErrorKind::Shape, "features", |x| {
            let q = x("q", DType::F32, &[2, 3, 2, 4]);
            q.attention(&x("k", DType::F32, &[2, 3, 2, 5]), &q, &AttentionOptions::default())
        }),
        (ErrorKind::Shape, "heads", |x| {
            let k = x("k", DType::F32, &[2, 3, 2, 4]);
            x("q", DType::F32, &[2, 3, 3, 4]).attention(&k, &k, &AttentionOptions::default())
        }),
        (ErrorKind::Shape, "batch", |x| {
            let k = x("k", DType::F32, &[3, 3, 2, 4]);
            x("q", DType::F32, &[2, 3, 2, 4]).attention(&k, &k, &AttentionOptions::default())
        }),
        (ErrorKind::Shape, "keys", |x| {
            let q = x("q", DType::F32, &[2, 3, 2, 4]);
            q.attention(&q, &x("v", DType::F32, &[2, 4, 2, 4]), &AttentionOptions::default())
        }),
        (ErrorKind::Shape, "[batch, time, heads, features]", |x| {
            let q = x("q", DType::F32, &[2, 3, 4]);
            q.attention(&q, &q, &AttentionOptions::default())
        }),
        (ErrorKind::DType, "i32", |x| {
            let q = x("q", DType::I32, &[2, 3, 2, 4]);
            q.attention(&q, &q, &AttentionOptions::default())
        }),
        (ErrorKind::Shape, "lengths", |x| {
            let q = x("q", DType::F32, &[2, 3, 2, 4]);
            let options = AttentionOptions::default().lengths(&x("n", DType::I32, &[2, 3]));
            q.attention(&q, &q, &options)
        }),
        (ErrorKind::Shape, "one length for each example", |x| {
            let q = x("q", DType::F32, &[2, 3, 2, 4]);
            q.attention(&q, &q, &AttentionOptions::default().lengths(&x("n", DType::I32, &[1])))
        }),
        (ErrorKind::Shape, "key mask", |x| {
            let q = x("q", DType::F32, &[2, 3, 2, 4]);
            let options = AttentionOptions::default().lengths(&x("n", DType::I32, &[2]));
            q.attention(&q, &q, &options.key_mask(&x("m", DType::Bool, &[1, 3])))
        }),
        (ErrorKind::Shape, "bias", |x| {
            let q = x("q", DType::F32, &[2, 3, 2, 4]);
            let options = AttentionOptions::default().bias(&x("b", DType::F32, &[3, 2]));
            q.attention(&q, &q, &options)
        }),
        (ErrorKind::Argument, "dropout", |x| {
            let q = x("q", DType::F32, &[2, 3, 2, 4]);
            q.attention(&q, &q, &AttentionOptions::default().dropout(1.0))
        }),
    ];
    for (kind, term, build) in cases {
        let graph = Graph::new();
        let placeholder = |name: &str, dtype: DType, sizes: &[usize]| {
            let sizes: Vec<Option<usize>> = sizes.iter().copied().map(Some).collect();
            graph.placeholder(&TensorSpec::new(name, dtype, sizes))
        };
        build(&placeholder);
        let e = graph.freeze().unwrap_err();
        assert_eq!(e.kind(), kind, "{term}: {e}");
        assert!(e.to_string().contains(term), "{term}: {e}");
        assert!(e.to_string().contains("attention.rs:"), "{term}: {e}");
    }
}

/// Padding changes nothing but the padded positions, in a layer with grouped heads and rotary
/// embeddings, and keys before the length are all seen.
#[test]
fn padding_does_not_change_the_results_of_a_layer() {
    let run = |time: usize, masked: bool| {
        let graph = Graph::new();
        let t = TowerContext::inference(&graph);
        let x = graph.placeholder(&TensorSpec::f32("x", [Some(1), Some(time), Some(16)]));
        let lengths = graph.constant(HostTensor::new([1], vec![5i32]).unwrap());
        let options = AttentionOptions::default();
        let options = if masked { options.lengths(&lengths) } else { options };
        let layer = MultiHeadAttention::new(4).kv_heads(2).rotary(10_000.0);
        let y = layer.apply_with(&t, "attention", &x, &x, &options);
        let session = Session::new(graph.freeze().unwrap()).unwrap();
        let values = random("x", &[1, 9, 16]).to_f64_vec();
        let x = HostTensor::from_f64(DType::F32, [1, time, 16], &values[..time * 16]).unwrap();
        session.run(&[&y], &[("x", &x)]).unwrap()[0].to_f64_vec()
    };
    let (short, padded, unmasked) = (run(5, true), run(9, true), run(9, false));
    let off = |other: &[f64]| short.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(off(&padded) < 1e-6, "{}", off(&padded));
    assert!(off(&unmasked) > 1e-3, "without a mask the padding is seen: {}", off(&unmasked));
}

#[test]
fn a_length_beyond_the_keys_is_an_error_of_the_run() {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [None, None, Some(1), Some(2)]));
    let lengths = graph.placeholder(&TensorSpec::new("lengths", DType::I64, [None]));
    let line = line!() + 1;
    let y = x.attention(&x, &x, &AttentionOptions::default().lengths(&lengths));
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let x = HostTensor::zeros(DType::F32, [1, 3, 1, 2]).unwrap();
    let run = |length: i64| {
        let length = HostTensor::new([1], vec![length]).unwrap();
        session.run(&[&y], &[("x", &x), ("lengths", &length)])
    };
    run(3).unwrap();
    for wrong in [4, -1] {
        let e = run(wrong).unwrap_err();
        assert!(e.to_string().contains("lengths") && e.to_string().contains(&format!("is {wrong}")), "{e}");
        assert_eq!(e.site().map(|s| s.line), Some(line), "{e}");
    }
}
