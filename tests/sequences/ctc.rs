//! The CTC loss: what does not fit, wrong labels, and greedy decoding.

use tensorpack::ctc::ctc_greedy_decode;
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
    assert!(decode(&[6, 6, 6], 3).is_err());
}
