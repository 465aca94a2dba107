//! Random numbers: their distributions in both float types. Also checks that k towers draw the
//! numbers that one tower would draw for all their examples.

use tensorpack::prelude::*;
use tensorpack::tower::Mode;
use tensorpack_testing::assert_mentions;

/// Draws a million numbers.
fn numbers(random: Random) -> Vec<f64> {
    let graph = Graph::new();
    let drawn = random.shape(&graph, &[1000, 1000]);
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let first = session.run(&[&drawn], &[]).unwrap().remove(0);
    let second = session.run(&[&drawn], &[]).unwrap().remove(0);
    assert_ne!(first, second, "every run draws new numbers");
    first.to_f64_vec()
}

/// Returns mean, variance, skewness and kurtosis.
fn moments(x: &[f64]) -> [f64; 4] {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let central = |k: i32| x.iter().map(|v| (v - mean).powi(k)).sum::<f64>() / n;
    let variance = central(2);
    [mean, variance, central(3) / variance.powf(1.5), central(4) / variance.powi(2)]
}

fn fraction(x: &[f64], test: impl Fn(f64) -> bool) -> f64 {
    x.iter().filter(|&&v| test(v)).count() as f64 / x.len() as f64
}

/// Checks each value to within about five standard errors for a million samples.
fn check(what: &str, found: &[f64], right: &[f64], within: f64) {
    for (f, r) in found.iter().zip(right) {
        assert!((f - r).abs() < within, "{what}: {found:?}, not {right:?}");
    }
}

#[test]
fn uniform() {
    for dtype in [DType::F32, DType::F64] {
        let x = numbers(Random::uniform(-1.0, 3.0).dtype(dtype));
        check("uniform", &moments(&x), &[1.0, 16.0 / 12.0, 0.0, 1.8], 0.01);
        assert!(x.iter().all(|v| (-1.0..=3.0).contains(v)));
    }
}

#[test]
fn normal_including_its_tails() {
    for dtype in [DType::F32, DType::F64] {
        let x: Vec<f64> =
            numbers(Random::normal(2.0, 0.5).dtype(dtype)).iter().map(|v| (v - 2.0) / 0.5).collect();
        check("normal", &moments(&x), &[0.0, 1.0, 0.0, 3.0], 0.03);
        // The tail probabilities, to half a percent or five standard deviations of the count.
        for (z, beyond) in [(0.5f64, 0.308_537_5), (1.0, 0.158_655_3), (2.0, 0.022_750_1), (3.0, 0.001_349_9)]
        {
            let within = 5.0 * (beyond / 1e6f64).sqrt();
            check("above", &[fraction(&x, |v| v > z)], &[beyond], within);
            check("below", &[fraction(&x, |v| v < -z)], &[beyond], within);
        }
        assert!(x.iter().any(|v| v.abs() > 4.5), "a million samples reach 4.5 deviations");
    }
}

#[test]
fn truncated_normal_stays_within_two_deviations() {
    let [density, left] = [0.053_990_966_513_188_06, 0.954_499_736_103_641_6];
    let variance = 1.0 - 4.0 * density / left;
    for dtype in [DType::F32, DType::F64] {
        let x: Vec<f64> = numbers(Random::truncated_normal(2.0, 0.5).dtype(dtype))
            .iter()
            .map(|v| (v - 2.0) / 0.5)
            .collect();
        assert!(x.iter().all(|v| v.abs() <= 2.0 + 1e-6), "a value is more than two deviations from the mean");
        check("truncated", &moments(&x)[..3], &[0.0, variance, 0.0], 0.01);
        for (z, beyond) in [(0.5f64, 0.308_537_5), (1.0, 0.158_655_3), (1.5, 0.066_807_2)] {
            let right = (beyond - 0.022_750_1) / left;
            check("above", &[fraction(&x, |v| v > z)], &[right], 5.0 * (right / 1e6f64).sqrt());
        }
    }
}

#[test]
fn bernoulli() {
    for dtype in [DType::F32, DType::U8, DType::Bool] {
        let x = numbers(Random::bernoulli(0.3).dtype(dtype));
        assert!(x.iter().all(|&v| v == 0.0 || v == 1.0));
        check("bernoulli", &moments(&x)[..1], &[0.3], 0.0025);
    }
}

#[test]
fn dropout_of_every_float_type_keeps_the_mean() {
    for dtype in [DType::F32, DType::F64, DType::Bf16, DType::F16] {
        let graph = Graph::new();
        let ones = Random::bernoulli(1.0).dtype(dtype).shape(&graph, &[1000, 100]);
        let kept = ones.dropout(0.25).cast(DType::F64);
        let session = Session::new(graph.freeze().unwrap()).unwrap();
        let x = session.run(&[&kept], &[]).unwrap()[0].to_f64_vec();
        check("zeros", &[fraction(&x, |v| v == 0.0)], &[0.25], 0.007);
        assert!(x.iter().all(|&v| v == 0.0 || (v - 4.0 / 3.0).abs() < 0.01), "{dtype}");
    }
}

/// Returns the numbers that `towers` towers with `rows` examples each draw, concatenated along
/// `axis`.
fn by_towers(random: Random, towers: usize, rows: usize, axis: usize) -> Vec<HostTensor> {
    let graph = Graph::new();
    let drawn: Vec<Tensor> = (0..towers)
        .map(|i| {
            let t = TowerContext::new(&graph, Mode::Training, i, towers);
            let sizes = if axis == 0 { [rows, 3] } else { [3, rows] };
            t.build(|_| random.shape(&graph, &sizes))
        })
        .collect();
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let fetches: Vec<&dyn tensorpack::runtime::IntoFetch> = drawn.iter().map(|t| t as _).collect();
    session.run(&fetches, &[]).unwrap()
}

#[test]
fn towers_together_draw_the_numbers_of_one_tower() {
    for random in [Random::normal(0.0, 1.0), Random::truncated_normal(0.0, 1.0), Random::uniform(0.0, 1.0)] {
        let rows = by_towers(random, 1, 6, 0)[0].to_f64_vec();
        let apart = by_towers(random, 3, 2, 0);
        let joined: Vec<f64> = apart.iter().flat_map(HostTensor::to_f64_vec).collect();
        assert_eq!(rows, joined);
        let random = random.batch_axis(1);
        let columns = by_towers(random, 1, 6, 1)[0].to_f64_vec();
        let apart: Vec<Vec<f64>> = by_towers(random, 3, 2, 1).iter().map(HostTensor::to_f64_vec).collect();
        let joined: Vec<f64> =
            (0..3).flat_map(|r| apart.iter().flat_map(move |t| t[r * 2..][..2].to_vec())).collect();
        assert_eq!(columns, joined);
        let same = by_towers(random.same_on_all_towers(), 3, 2, 1);
        assert!(same[0] == same[1] && same[1] == same[2]);
    }
}

#[test]
fn invalid_distributions_are_errors() {
    let message = |random: Random| {
        let graph = Graph::new();
        let _ = random.shape(&graph, &[2]);
        graph.freeze().unwrap_err().message().to_string()
    };
    assert_mentions(message(Random::bernoulli(1.5)), &["1.5", "probability"]);
    assert!(message(Random::normal(0.0, -1.0)).contains("Normal(0.0, -1.0)"));
    assert!(message(Random::uniform(0.0, 1.0).dtype(DType::I32)).contains("got i32"));
    assert_mentions(message(Random::uniform(0.0, 1.0).batch_axis(1)), &["[2]", "batch axis 1"]);
}
