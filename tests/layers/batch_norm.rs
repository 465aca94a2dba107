//! Batch normalization with several towers.

use tensorpack::graph::UPDATE_OPS;
use tensorpack::prelude::*;
use tensorpack::runtime::IntoFetch;
use tensorpack::tensor::CounterRng;
use tensorpack::tower::Mode;

/// The results of a network with batch normalization on a batch that is divided among towers.
struct Ran {
    /// The normalized batch, and the gradient with respect to the input.
    values: [Vec<f64>; 2],
    /// The mean gradients with respect to scale and shift.
    gradients: Vec<Vec<f64>>,
    /// The running statistics after one step.
    running: Vec<Vec<f64>>,
}

fn numbers(stream: &str, range: std::ops::Range<usize>) -> Vec<f64> {
    let rng = CounterRng::new(1, stream);
    range.map(|i| rng.normal(0, i as u64) * 1.5 + 3.0).collect()
}

/// Runs `layer` (two applications if `twice`) on 2x2 images with three channels, `share[i]` of them
/// in tower `i`.
fn run(layer: &BatchNorm, share: &[usize], twice: bool) -> Ran {
    const IMAGE: usize = 12;
    let graph = Graph::new();
    let mut fetches = Vec::new();
    let mut fed = Vec::new();
    let mut first = 0;
    for (i, &examples) in share.iter().enumerate() {
        let t = TowerContext::new(&graph, Mode::Training, i, share.len());
        let name = format!("x{i}");
        let sizes = [None, Some(2), Some(2), Some(3)];
        let x = graph.placeholder(&TensorSpec::new(name.as_str(), DType::F64, sizes));
        let weight = graph.placeholder(&TensorSpec::new(format!("w{i}"), DType::F64, sizes));
        let range = first * IMAGE..(first + examples) * IMAGE;
        first += examples;
        for (name, stream) in [(name, "x"), (format!("w{i}"), "w")] {
            let values = numbers(stream, range.clone());
            fed.push((name, HostTensor::new([examples, 2, 2, 3], values).unwrap()));
        }
        let made = t.build(|t| {
            let y = layer.apply(t, "bn", &x);
            let y = if twice { t.reuse(|t| layer.apply(t, "bn", &y.tanh())) } else { y };
            // The cost is a sum over examples, so the sum over towers equals the cost of a single
            // tower.
            let cost = (y.square() * &weight).sum();
            let (gamma, beta) = (graph.tensor("bn/gamma").unwrap(), graph.tensor("bn/beta").unwrap());
            let found = gradients(&cost, &[&x, &gamma, &beta]).unwrap();
            let [dx, dgamma, dbeta]: [Tensor; 3] =
                found.into_iter().map(Option::unwrap).collect::<Vec<_>>().try_into().unwrap();
            let dgamma = t.all_reduce_sum("gamma/gradient", &dgamma);
            [y, dx, dgamma, t.all_reduce_sum("beta/gradient", &dbeta)]
        });
        fetches.extend(made);
    }
    let updates = graph.collection_ops(UPDATE_OPS);
    let update = graph.group(&updates.iter().collect::<Vec<_>>());
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let feeds: Vec<(&str, &HostTensor)> = fed.iter().map(|(n, v)| (n.as_str(), v)).collect();
    let wanted: Vec<&dyn IntoFetch> =
        fetches.iter().map(|f| f as &dyn IntoFetch).chain([&update as &dyn IntoFetch]).collect();
    let got: Vec<Vec<f64>> =
        session.run(&wanted, &feeds).unwrap().iter().map(HostTensor::to_f64_vec).collect();
    let joined = |k: usize| got.iter().skip(k).step_by(4).flatten().copied().collect::<Vec<f64>>();
    let running = ["bn/mean/EMA", "bn/variance/EMA"].map(|n| session.read(n).unwrap().to_f64_vec());
    Ran { values: [joined(0), joined(1)], gradients: got[2..4].to_vec(), running: running.into() }
}

fn assert_equal(a: &Ran, b: &Ran) {
    let all = |r: &Ran| -> Vec<Vec<f64>> {
        r.values.iter().chain(&r.gradients).chain(&r.running).cloned().collect()
    };
    for (k, (a, b)) in all(a).iter().zip(&all(b)).enumerate() {
        let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
        let off = norm(&mut a.iter().zip(b).map(|(x, y)| x - y));
        assert!(
            a.len() == b.len() && off <= 1e-10 * norm(&mut a.iter().copied()),
            "number {k}: {a:?}, {b:?}"
        );
    }
}

#[test]
fn ghost_batches_on_one_tower_equal_batches_on_several_towers() {
    let norm = BatchNorm::new().momentum(0.7);
    let ghost = run(&norm.clone().virtual_batch_size(4), &[12], false);
    assert_equal(&ghost, &run(&norm, &[4, 4, 4], false));
    let one = run(&norm, &[12], false);
    assert!(one.values[0] != ghost.values[0] && one.running != ghost.running, "groups make a difference");
}

#[test]
fn synchronized_towers_equal_one_tower_with_all_examples() {
    let norm = BatchNorm::new().momentum(0.7);
    let one = run(&norm, &[12], false);
    for share in [&[6, 6][..], &[4, 4, 4], &[1, 8, 3]] {
        assert_equal(&one, &run(&norm.clone().synchronized(), share, false));
    }
    assert_equal(&one, &run(&norm.synchronized(), &[12], false));
}

/// A layer that is applied twice updates its running statistics twice, in order, on all towers.
#[test]
fn a_shared_layer_synchronizes_each_application() {
    let norm = BatchNorm::new().momentum(0.7);
    let one = run(&norm, &[8], true);
    assert_equal(&one, &run(&norm.clone().synchronized(), &[3, 5], true));
    assert_equal(&run(&norm.clone().virtual_batch_size(4), &[8], true), &run(&norm, &[4, 4], true));
}

#[test]
fn a_batch_that_the_group_size_does_not_divide_is_an_error() {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [Some(10), Some(3)]));
    let _ = BatchNorm::new().virtual_batch_size(4).apply(&TowerContext::training(&graph), "bn", &x);
    let e = graph.freeze().unwrap_err();
    assert!(e.message().contains("bn/") && e.message().contains("[10, 3] cannot be"), "{e}");
}

#[test]
fn inference_uses_running_statistics_and_changes_nothing() {
    let graph = Graph::new();
    let t = &TowerContext::inference(&graph);
    let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(1)]));
    let y = BatchNorm::new().epsilon(0.0).apply(t, "bn", &x);
    assert!(graph.collection_ops(UPDATE_OPS).is_empty());
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    session.write("bn/mean/EMA", &HostTensor::new([1], vec![1.0f32]).unwrap()).unwrap();
    session.write("bn/variance/EMA", &HostTensor::new([1], vec![4.0f32]).unwrap()).unwrap();
    let fed = HostTensor::new([2, 1], vec![1.0f32, 5.0]).unwrap();
    assert_eq!(session.run(&[&y], &[("x", &fed)]).unwrap()[0].as_slice::<f32>().unwrap(), [0.0, 2.0]);
}

#[test]
fn gamma_uses_its_initializer() {
    let ran = run(&BatchNorm::new().gamma(Init::zeros()), &[4], false);
    assert!(ran.values[0].iter().all(|&y| y == 0.0));
    let ran = run(&BatchNorm::new().gamma(Init::Constant(0.5)), &[4], false);
    let whole = run(&BatchNorm::new(), &[4], false);
    for (half, whole) in ran.values[0].iter().zip(&whole.values[0]) {
        assert!((2.0 * half - whole).abs() < 1e-12, "{half} is half of {whole}");
    }
}
