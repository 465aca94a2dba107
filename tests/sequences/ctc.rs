//! The CTC loss: what does not fit, wrong labels, and decoding.

use tensorpack::ctc::{CtcBeamSearch, ctc_greedy_decode};
use tensorpack::prelude::*;

fn ints(sizes: &[usize], values: &[i32]) -> HostTensor {
    HostTensor::new(sizes, values.to_vec()).unwrap()
}

/// Runs the loss of logits that are all zero.
fn loss(
    sizes: [usize; 3],
    labels: &[i32],
    steps: &[i32],
    lengths: &[i32],
    options: CtcOptions,
) -> Result<Vec<f64>> {
    let graph = Graph::new();
    let logits = graph.constant(HostTensor::zeros(DType::F32, sizes)?);
    let batch = sizes[0];
    let labels = graph.constant(ints(&[batch, labels.len() / batch], labels));
    let [steps, lengths] = [steps, lengths].map(|n| graph.constant(ints(&[batch], n)));
    let loss = logits.ctc_loss(&labels, &steps, &lengths, &options);
    let session = Session::new(graph.freeze()?)?;
    Ok(session.run(&[&loss], &[])?[0].to_f64_vec())
}

#[test]
fn labels_that_do_not_fit_have_an_infinite_loss() {
    let run = |options| loss([3, 3, 4], &[1, 1, 1, 2, 1, 2], &[3, 2, 1], &[2, 2, 2], options).unwrap();
    let found = run(CtcOptions::default());
    // Equal labels need a blank between: one alignment of three steps.
    assert!((found[0] - 3.0 * 4f64.ln()).abs() < 1e-5, "{found:?}");
    assert!((found[1] - 2.0 * 4f64.ln()).abs() < 1e-5, "{found:?}");
    assert_eq!(found[2], f64::INFINITY);
    assert_eq!(run(CtcOptions::default().zero_infinity())[2], 0.0);
}

/// Logits that are not finite must not look like labels that do not fit.
#[test]
fn logits_that_are_not_finite_have_no_loss() {
    for options in [CtcOptions::default(), CtcOptions::default().zero_infinity()] {
        let graph = Graph::new();
        let x = graph.placeholder(&TensorSpec::f32("x", [Some(1), Some(2), Some(3)]).allow_infinite());
        let [label, steps] = [1, 2].map(|n| graph.constant(ints(&[1], &[n])));
        let loss = x.ctc_loss(&label.expand_dims(0), &steps, &label, &options);
        let session = Session::new(graph.freeze().unwrap()).unwrap();
        let x = HostTensor::new([1, 2, 3], vec![f32::INFINITY, 0.0, 0.0, 0.0, 0.0, 0.0]).unwrap();
        let loss = session.run(&[&loss], &[("x", &x)]).unwrap().remove(0);
        assert!(loss.to_f64_vec()[0].is_nan(), "{loss:?}");
    }
}

#[test]
fn labels_after_the_end_are_ignored_and_others_checked() {
    let clean = loss([1, 4, 3], &[1, 2, 0, 0], &[4], &[2], CtcOptions::default()).unwrap();
    assert_eq!(loss([1, 4, 3], &[1, 2, -7, 99], &[4], &[2], CtcOptions::default()).unwrap(), clean);
    let e = loss([1, 4, 3], &[1, 3], &[4], &[2], CtcOptions::default()).unwrap_err();
    assert!(e.to_string().contains("outside 0..3"), "{e}");
    let e = loss([1, 4, 3], &[1], &[4], &[1], CtcOptions::default().blank(3)).unwrap_err();
    assert!(e.message().contains("the blank is class 3"), "{e}");
}

#[test]
fn greedy_decoding_merges_repetitions() {
    let paths: [[usize; 6]; 3] = [[1, 1, 0, 1, 2, 2], [0, 0, 0, 0, 0, 0], [2, 0, 2, 1, 1, 1]];
    let mut logits = vec![0.0f32; 3 * 6 * 3];
    for (i, class) in paths.iter().flatten().enumerate() {
        logits[i * 3 + class] = 1.0;
    }
    let logits = HostTensor::new([3, 6, 3], logits).unwrap();
    let decode = |lengths: &[i32], blank| ctc_greedy_decode(&logits, &ints(&[3], lengths), blank);
    assert_eq!(decode(&[6, 6, 6], 0).unwrap(), [vec![1, 1, 2], vec![], vec![2, 2, 1]]);
    assert_eq!(decode(&[2, 6, 0], 0).unwrap(), [vec![1], vec![], vec![]]);
    assert_eq!(decode(&[6, 6, 6], 2).unwrap()[0], [1, 0, 1]);
    assert!(decode(&[7, 6, 6], 0).unwrap_err().message().contains("a length is 7"));
    assert!(decode(&[6, -1, 6], 0).unwrap_err().message().contains("a length is -1"));
    assert!(decode(&[6, 6, 6], 3).is_err());
}

/// Lengths in the wrong order must not look like a perfect prediction.
#[test]
fn lengths_outside_of_their_range_make_the_loss_nan() {
    for options in [CtcOptions::default(), CtcOptions::default().zero_infinity()] {
        let steps = 3;
        for (input, label, valid) in
            [(3, 2, true), (0, 0, true), (4, 2, false), (-1, 0, false), (3, 3, false), (3, -1, false)]
        {
            let graph = Graph::new();
            let logits = graph.constant(HostTensor::zeros(DType::F32, [1, steps, 4]).unwrap());
            let tensor = |sizes: &[usize], values: &[i32]| graph.constant(ints(sizes, values));
            let loss = logits.ctc_loss(
                &tensor(&[1, 2], &[1, 2]),
                &tensor(&[1], &[input]),
                &tensor(&[1], &[label]),
                &options,
            );
            let session = Session::new(graph.freeze().unwrap()).unwrap();
            let found = session.run(&[&loss], &[]).unwrap()[0].to_f64_vec()[0];
            assert_eq!(found.is_nan(), !valid, "{input} steps, {label} labels: {found}");
        }
    }
}

/// A probability of zero off the path costs nothing, and on the path makes the labels impossible.
#[test]
fn probabilities_may_be_zero() {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [Some(1), Some(3), Some(4)]).allow_infinite());
    let tensor = |sizes: &[usize], values: &[i32]| graph.constant(ints(sizes, values));
    let options = CtcOptions::default().zero_infinity();
    let loss = x.ctc_loss(&tensor(&[1, 3], &[1, 2, 3]), &tensor(&[1], &[3]), &tensor(&[1], &[3]), &options);
    let gradient = loss.sum().gradient(&x);
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let certain = |path: [usize; 3]| {
        let logit = |i: usize| if path[i / 4] == i % 4 { 0.0 } else { f32::NEG_INFINITY };
        let x = HostTensor::new([1, 3, 4], (0..12).map(logit).collect()).unwrap();
        let found = session.run(&[&loss, &gradient], &[("x", &x)]).unwrap();
        (found[0].to_f64_vec()[0], found[1].to_f64_vec())
    };
    for path in [[1, 2, 3], [1, 1, 3]] {
        let (loss, gradient) = certain(path);
        assert_eq!(loss, 0.0, "{path:?}");
        assert!(gradient.iter().all(|g| g.abs() < 1e-6), "{path:?}: {gradient:?}");
    }
}

/// A label that is repeated takes two steps more than its first one.
#[test]
fn a_beam_holds_only_labels_that_are_possible() {
    let logits = HostTensor::new([1, 2, 2], vec![0.0f32; 4]).unwrap();
    let found = CtcBeamSearch::new(10).decode(&logits, &ints(&[1], &[2])).unwrap().remove(0);
    let labels: Vec<&[usize]> = found.iter().map(|h| &h.labels[..]).collect();
    assert_eq!(labels, [&[1][..], &[]]);
}
