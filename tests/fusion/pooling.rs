//! Operations that are hoisted above the gradient of max pooling.

use super::barrier::{barrier, same_without_fusion};
use super::graph_builder::{Choices, for_random_graphs};
use tensorpack::autodiff::gradients;
use tensorpack::graph::{Fetch, Graph, Tensor, TensorSpec};
use tensorpack::ops::{Layout, Padding, PoolOptions};
use tensorpack::runtime::cpu::Isa;
use tensorpack::runtime::{IntoFetch, Session, SessionOptions};
use tensorpack::tensor::CounterRng;
use tensorpack::{DType, HostTensor};

/// Masks and sums of a pooling gradient are computed before it, unless the values in between are
/// fetched.
#[test]
fn masks_and_sums_before_pooling_are_the_same() {
    for (window, stride, padding) in [(2, 2, Padding::Valid), (3, 2, Padding::Same), (2, 3, Padding::Valid)] {
        let g = Graph::new();
        let x = g.placeholder(&TensorSpec::f32("x", [Some(2), Some(9), Some(8), Some(5)]));
        let bias = g.placeholder(&TensorSpec::f32("bias", [Some(5)]));
        let h = (&x + &bias).relu();
        let options = PoolOptions { stride: [stride; 2], padding, ..PoolOptions::square(window) };
        let cost = h.max_pool_with(options).tanh().square().sum();
        let found = gradients(&cost, &[&h, &x, &bias]).unwrap();
        let [Some(dh), Some(dx), Some(db)] = &found[..] else { panic!("the cost depends on all") };
        let session = Session::new(g.freeze().unwrap()).unwrap();
        let rng = CounterRng::new(1, "x");
        let numbers: Vec<f32> = (0..720).map(|i| (rng.uniform(0, i) - 0.6) as f32).collect();
        let x = HostTensor::new([2, 9, 8, 5], numbers).unwrap();
        let bias = HostTensor::new([5], vec![0.1f32, -0.1, 0.2, 0.0, -0.2]).unwrap();
        let feeds = [("x", &x), ("bias", &bias)];
        let plan = session.plan_text(&[dx, db], &feeds).unwrap();
        let line = |what: &str| plan.lines().position(|l| l.contains(what)).unwrap();
        assert!(line("Select") < line("max-pool-grad"), "{plan}");
        let moved = session.run(&[dx, db], &feeds).unwrap();
        let unfused = session.run(&[dx, db, dh], &feeds).unwrap();
        assert_eq!(moved[0].to_f64_vec(), unfused[0].to_f64_vec());
        for (moved, unfused) in moved[1].to_f64_vec().into_iter().zip(unfused[1].to_f64_vec()) {
            assert!(
                (moved - unfused).abs() <= 1e-5 * unfused.abs() && unfused != 0.0,
                "{moved} and {unfused}"
            );
        }
    }
}

/// The gradient is reshaped, so the summed dims are not the channels of the pooling.
#[test]
fn a_sum_over_dims_of_a_reshaped_gradient_is_not_moved() {
    // The shape of `x`, the length of the bias, the shape of the pooled image, and the gradient of
    // each element of the bias.
    let cases: [([usize; 4], usize, [usize; 4], f64); 4] = [
        ([4, 16, 16, 1], 1, [4, 1, 16, 16], 512.0),
        ([2, 4, 9, 1], 1, [2, 1, 4, 9], 36.0),
        ([2, 4, 6, 2], 2, [2, 2, 12, 2], 24.0),
        ([1, 2, 3, 4], 4, [4, 1, 2, 3], 3.0),
    ];
    for (outer, channels, image, right) in cases {
        let g = Graph::new();
        let x = g.placeholder(&TensorSpec::f32("x", outer.map(Some)));
        let bias = g.placeholder(&TensorSpec::f32("bias", [Some(channels)]));
        let seen = (&x + &bias).reshape(&image.map(|n| n as isize));
        let window = PoolOptions { window: [1, 2], stride: [1, 2], ..PoolOptions::square(2) };
        let cost = seen.max_pool_with(window).sum();
        let found = gradients(&cost, &[&bias]).unwrap();
        let [Some(db)] = &found[..] else { panic!("the cost depends on the bias") };
        let session = Session::new(g.freeze().unwrap()).unwrap();
        let n: usize = outer.iter().product();
        // All maxima are at even positions, or all at odd ones.
        let values: Vec<f32> = (0..n).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
        let feeds = [
            ("x", &HostTensor::new(outer, values).unwrap()),
            ("bias", &HostTensor::new([channels], vec![0.0f32; channels]).unwrap()),
        ];
        let found = session.run(&[db], &feeds).unwrap()[0].to_f64_vec();
        assert_eq!(
            found.iter().sum::<f64>(),
            right * channels as f64,
            "{outer:?} pooled as {image:?}: {found:?}"
        );
    }
}

/// Random poolings between reshaped and transposed tensors, whose gradients are masked and summed
/// over any dims: fused, with everything fetched, and in f64.
#[test]
fn random_gradients_of_pooling_are_the_same() {
    for_random_graphs("pooling", 300, |choices| {
        let found = pooled(choices, DType::F32, Isa::detect(), false)?;
        let right = pooled(choices, DType::F64, Isa::Plain, true)?;
        for (fused, unfused) in
            [(&found.fused, &found.unfused), (&found.fused, &right.unfused), (&right.fused, &right.unfused)]
        {
            for (k, (a, b)) in fused.iter().zip(unfused).enumerate() {
                let (a, b) = (a.to_f64_vec(), b.to_f64_vec());
                let scale = b.iter().fold(1.0, |m: f64, v| m.max(v.abs()));
                if a.len() != b.len() || a.iter().zip(&b).any(|(a, b)| (a - b).abs() > 1e-5 * scale) {
                    return Err(format!("gradient {k} is {a:?}, not {b:?}\n{}", found.text));
                }
            }
        }
        Ok(())
    });
}

/// The gradients with fusion, and with all intermediate results fetched.
struct Pooled {
    fused: Vec<HostTensor>,
    unfused: Vec<HostTensor>,
    text: String,
}

fn pooled(choices: &[u32], dtype: DType, isa: Isa, unfused: bool) -> Result<Pooled, String> {
    let c = &mut Choices(choices.iter());
    let seed = u64::from(choices[0]);
    let graph = Graph::new();
    let image: Vec<usize> = (0..4).map(|_| c.pick(&[2, 1, 3, 4, 1, 6])).collect();
    // The shape of the operand of the sum, and its view as an image.
    let outer = match c.below(4) {
        0 => image.clone(),
        1 => vec![image[0] * image[1], image[2] * image[3]],
        2 => vec![image[0], image[3], image[1], image[2]],
        _ => vec![image[3], image[2], image[1], image[0]],
    };
    let input = |name: &str, sizes: &[usize]| {
        let sizes: Vec<Option<usize>> = sizes.iter().map(|&n| Some(n)).collect();
        graph.placeholder(&TensorSpec::new(name, dtype, sizes))
    };
    let mut bias: Vec<usize> = outer.iter().map(|&n| if c.below(2) == 0 { n } else { 1 }).collect();
    match c.below(4) {
        0 => bias = bias.split_off(c.below(bias.len())),
        1 | 2 => bias = outer[outer.len() - 1..].to_vec(),
        _ => {}
    }
    let (x, b) = (input("x", &outer), input("b", &bias));
    let stored = |x: Tensor| if unfused { barrier(&x) } else { x };
    let sum = stored(&x + &b);
    let h = match c.below(5) {
        0 => sum.relu(),
        1 | 2 => sum,
        3 => sum.greater(&(&sum * 0.0 + 0.25)).select(&sum, &(&sum * 0.5)),
        _ => (&sum * 2.0).relu(),
    };
    let h = stored(h);
    let isizes = |s: &[usize]| s.iter().map(|&n| n as isize).collect::<Vec<isize>>();
    let seen = match c.below(3) {
        0 if outer.len() == 4 => h.transpose(&c.permutation(4)),
        1 => h.reshape(&isizes(&image)).reverse(&[c.below(4) as isize]),
        _ => h.reshape(&isizes(&image)),
    };
    let seen = stored(seen);
    let options = PoolOptions {
        window: [1 + c.below(3), 1 + c.below(3)],
        stride: [1 + c.below(3), 1 + c.below(3)],
        padding: c.pick(&[Padding::Same, Padding::Valid, Padding::Explicit([[1, 0], [0, 1]])]),
        layout: c.pick(&[Layout::Nhwc, Layout::Nchw]),
    };
    let s = seen.shape().known().expect("sizes are known");
    let [height, width] = if options.layout == Layout::Nhwc { [s[1], s[2]] } else { [s[2], s[3]] };
    // Without padding a window must fit.
    let options = match options.padding {
        Padding::Valid => {
            PoolOptions { window: [options.window[0].min(height), options.window[1].min(width)], ..options }
        }
        // Padding must be smaller than the window in every dim.
        Padding::Explicit(_) => PoolOptions { window: [2; 2], ..options },
        Padding::Same => options,
    };
    let y = if c.below(4) == 3 { seen.average_pool_with(options) } else { seen.max_pool_with(options) };
    let y = if c.below(3) == 2 { y.relu() } else { y };
    let y = stored(y);
    let m: usize = y.shape().known().expect("sizes are known").iter().product();
    let weights: Vec<f64> = (0..m).map(|i| (i % 11) as f64 / 4.0 - 1.0).collect();
    let weights = HostTensor::from_f64(dtype, [m], &weights).map_err(|e| e.to_string())?;
    let cost = (y.reshape(&[m as isize]) * graph.constant(weights)).sum();
    let found = gradients(&cost, &[&x, &b, &h]).map_err(|e| e.to_string())?;
    let [dx, db, dh] = &found[..] else { return Err("three gradients".into()) };
    let [Some(dx), Some(db), Some(dh)] = [dx, db, dh] else { return Err("the cost depends on all".into()) };
    // A sum over dims other than those of the bias.
    let rank = outer.len();
    let axes: Vec<isize> = (0..rank as isize).filter(|_| c.below(2) == 1).collect();
    let more = dh.sum_axes(&axes);
    let wanted: Vec<Fetch> = match c.below(3) {
        0 => vec![db.fetch(), more.fetch()],
        1 => vec![dx.fetch(), db.fetch()],
        _ => vec![db.fetch()],
    };
    let frozen = graph.freeze().map_err(|e| e.to_string())?;
    let rng = CounterRng::new(seed, "x");
    let values = |from: u64, sizes: &[usize]| {
        let n: usize = sizes.iter().product();
        // All values differ, so that every maximum is unique.
        let values: Vec<f64> =
            (0..n).map(|i| f64::from(rng.uniform(from, i as u64) as f32) * 2.0 - 1.0).collect();
        HostTensor::from_f64(dtype, sizes.to_vec(), &values)
    };
    let fed = [values(0, &outer), values(1, &bias)].map(|v| v.map_err(|e| e.to_string()));
    let [fed_x, fed_b] = fed;
    let (fed_x, fed_b) = (fed_x?, fed_b?);
    let feeds = [("x", &fed_x), ("b", &fed_b)];
    let failed = |e: tensorpack::Error| e.to_string();
    let all = frozen.nodes().iter().map(|n| frozen.fetch(&n.name).map_err(failed));
    let all = all.collect::<Result<Vec<Fetch>, String>>()?;
    let options =
        SessionOptions { isa: Some(isa), threads: Some(1 + c.below(2)), ..SessionOptions::default() };
    let session = Session::with(frozen, options).map_err(failed)?;
    let outputs: Vec<&dyn IntoFetch> = wanted.iter().map(|f| f as &dyn IntoFetch).collect();
    let everything: Vec<&dyn IntoFetch> = wanted.iter().chain(&all).map(|f| f as &dyn IntoFetch).collect();
    let text =
        format!("{}{}", session.plan_text(&outputs, &feeds).map_err(failed)?, session.graph().to_text());
    let fused = session.run(&outputs, &feeds).map_err(failed)?;
    let mut unfused = session.run(&everything, &feeds).map_err(failed)?;
    unfused.truncate(wanted.len());
    Ok(Pooled { fused, unfused, text })
}

/// Masks of the gradient, and of the same elements permuted or reshaped: only the former may be
/// hoisted above it.
#[test]
fn masks_of_permuted_gradients_are_the_same() {
    for_random_graphs("masks", 200, |choices| {
        same_without_fusion(choices, |b, c| {
            let (batch, n, channels) = (1 + c.below(2), c.pick(&[4, 2, 3, 1]), 1 + c.below(3));
            let x = b.feed(&[batch, n, n, channels], DType::F32);
            let window = 1 + c.below(3);
            let options = PoolOptions {
                stride: [1 + c.below(2), 1 + c.below(2)],
                padding: Padding::Same,
                ..PoolOptions::square(window)
            };
            let y = x.max_pool_with(options);
            let weights = b.feed(&y.shape().known().expect("sizes are known"), DType::F32);
            let dx = gradients(&(y * weights).sum(), &[&x]).ok().and_then(|mut g| g.remove(0));
            let dx = dx.expect("the cost depends on x");
            let turned = |t: &Tensor, way: usize| match way {
                0 => t.transpose(&[0, 2, 1, 3]),
                1 => t.reverse(&[1]),
                2 => t.reshape(&[-1, channels as isize]).reverse(&[0]).reshape_like(t),
                _ => t.clone(),
            };
            let (seen, by) = (turned(&dx, c.below(4)), turned(&x, 10 - c.below(11)));
            let (seen, by) = (b.stored(seen), b.stored(by));
            let zero = b.graph.constant(HostTensor::scalar(0.0f32));
            let passes = by.greater(&zero);
            let masked = match c.below(3) {
                0 => passes.select(&zero, &seen),
                _ => passes.select(&seen, &zero),
            };
            let masked = b.stored(masked);
            match c.below(5) {
                0 | 1 => vec![masked],
                2 | 3 => vec![masked.sum_axes(&[0, 1, 2]), masked],
                _ => vec![masked, b.stored(dx)],
            }
        })
    });
}
