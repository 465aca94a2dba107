//! `BatchRenorm` against its formula, and `remap_variables`.

use tensorpack::prelude::*;

/// Returns the output and the running mean after one training step on two channels, and the inference
/// output before it.
fn step(rmax: f64, dmax: f64, x: &HostTensor) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    let fed = graph.placeholder(&TensorSpec::new("x", DType::F64, [None, Some(2)]));
    let layer = BatchRenorm::new(rmax, dmax).momentum(0.75).gamma(Init::Constant(1.5));
    let y = layer.apply(&t, "norm", &fed);
    let inferred = TowerContext::inference(&graph).name_scope("inference", |t| layer.apply(t, "norm", &fed));
    let updates = graph.collection_ops(tensorpack::graph::UPDATE_OPS);
    let all = graph.group(&updates.iter().collect::<Vec<_>>());
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let vector = |values: [f64; 2]| HostTensor::new([2], values.to_vec()).unwrap();
    session.write("norm/mean/EMA", &vector([0.6, -1.0])).unwrap();
    session.write("norm/variance/EMA", &vector([1.2, 0.25])).unwrap();
    session.write("norm/beta", &vector([0.1, 0.2])).unwrap();
    let before = session.run(&[&inferred], &[("x", x)]).unwrap().remove(0).to_f64_vec();
    let found = session.run(&[&y, &all], &[("x", x)]).unwrap().remove(0).to_f64_vec();
    (found, session.read("norm/mean/EMA").unwrap().to_f64_vec(), before)
}

#[test]
fn batch_renorm_follows_its_formula() {
    let values = [1.0, 2.0, -0.5, 0.3, 2.5, 1.1, 0.0, -0.7];
    let x = HostTensor::new([4, 2], values.to_vec()).unwrap();
    let (running_mean, running_variance, beta) = ([0.6, -1.0], [1.2, 0.25], [0.1, 0.2]);
    let mut clipped = [false; 2];
    for (rmax, dmax) in [(1.0, 0.0), (1.5, 0.5), (100.0, 100.0)] {
        let (found, mean_after, inferred) = step(rmax, dmax, &x);
        for channel in 0..2 {
            let own: Vec<f64> = values.iter().skip(channel).step_by(2).copied().collect();
            let mean = own.iter().sum::<f64>() / 4.0;
            let variance = own.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 4.0;
            let (deviation, running) =
                ((variance + 1e-5).sqrt(), (running_variance[channel] + 1e-5f64).sqrt());
            let (r, d) = (deviation / running, (mean - running_mean[channel]) / running);
            clipped[usize::from(!(1.0 / 1.5..=1.5).contains(&r) || d.abs() > 0.5)] = true;
            let (r, d) = (r.clamp(1.0 / rmax, rmax), d.clamp(-dmax, dmax));
            for (i, v) in own.iter().enumerate() {
                let expected = ((v - mean) / deviation * r + d) * 1.5 + beta[channel];
                assert!((found[i * 2 + channel] - expected).abs() < 1e-12, "{rmax} {dmax}: {found:?}");
            }
            let after = 0.75 * running_mean[channel] + 0.25 * mean;
            assert!((mean_after[channel] - after).abs() < 1e-12, "{mean_after:?}");
        }
        if rmax > 10.0 {
            // Without limits, training computes what inference does.
            assert!(
                found.iter().zip(&inferred).all(|(a, b)| (a - b).abs() < 1e-12),
                "{found:?} {inferred:?}"
            );
        }
    }
    assert_eq!(clipped, [true, true], "the limits must matter for one channel and not for the other");
}

/// No gradient flows through the corrections.
#[test]
fn batch_renorm_without_room_is_batch_norm() {
    let build = |renorm: bool| {
        let graph = Graph::new();
        let t = TowerContext::training(&graph);
        let x = graph.placeholder(&TensorSpec::new("x", DType::F64, [None, Some(2)]));
        let y = match renorm {
            true => BatchRenorm::new(1.0, 0.0).apply(&t, "norm", &x),
            false => BatchNorm::new().apply(&t, "norm", &x),
        };
        let cost = (&y * y.iota_like(0, DType::F64)).sum();
        let slope = gradients(&cost, &[&x]).unwrap().remove(0).unwrap();
        let session = Session::new(graph.freeze().unwrap()).unwrap();
        let fed = HostTensor::new([3, 2], vec![1.0, 4.0, 2.0, -1.0, 0.5, 0.0]).unwrap();
        session
            .run(&[&y, &slope], &[("x", &fed)])
            .unwrap()
            .iter()
            .flat_map(HostTensor::to_f64_vec)
            .collect::<Vec<_>>()
    };
    assert!(build(true).iter().zip(build(false)).all(|(a, b)| (a - b).abs() < 1e-12));
}

#[test]
fn wrong_limits_are_errors() {
    for (rmax, dmax) in [(0.5, 1.0), (2.0, -1.0), (f64::NAN, 1.0)] {
        let graph = Graph::new();
        let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(2)]));
        BatchRenorm::new(rmax, dmax).apply(&TowerContext::training(&graph), "norm", &x);
        let e = graph.freeze().unwrap_err();
        assert!(e.message().contains("rmax must be at least 1"), "{e}");
    }
}

#[test]
fn remapped_variables_train_through_the_function() {
    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    let x = graph.placeholder(&TensorSpec::new("x", DType::F64, [None, Some(2)]));
    let double = |v: &Variable| if v.name().ends_with("/W") { v.value() * 2.0 } else { v.value().clone() };
    let layer = Linear::new(1).init(Init::Constant(3.0));
    // The outer function is applied first: (2 w) + 1.
    let y =
        t.remap_variables(double, |t| t.remap_variables(|v| v.value() + 1.0, |t| layer.apply(t, "fc", &x)));
    let plain = Linear::new(1).init(Init::Constant(3.0)).apply(&t, "plain", &x);
    let weight = graph.tensor("fc/W").unwrap();
    let slope = gradients(&y.sum(), &[&weight]).unwrap().remove(0).unwrap();
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let fed = HostTensor::new([1, 2], vec![1.0, 10.0]).unwrap();
    let found = session.run(&[&y, &slope, &plain], &[("x", &fed)]).unwrap();
    assert_eq!(found[0].to_f64_vec(), [7.0 * 11.0 + 1.0]);
    assert_eq!(found[1].to_f64_vec(), [2.0, 20.0]);
    assert_eq!(found[2].to_f64_vec(), [33.0], "outside the scope");
    assert_eq!(session.read("fc/W").unwrap().to_f64_vec(), [3.0, 3.0], "the variable itself");
}

#[test]
fn a_remap_that_changes_the_shape_is_an_error() {
    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(2)]));
    t.remap_variables(|v| v.value().sum(), |t| Linear::new(3).apply(t, "fc", &x));
    let e = graph.freeze().unwrap_err();
    assert!(e.message().contains("fc/W is f32[2, 3], but remap_variables returned f32[] for it"), "{e}");
}
