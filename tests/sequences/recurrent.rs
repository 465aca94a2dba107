//! `Lstm` and `Gru`: a loop over unknown time computes what the unrolled layer does, and masked steps
//! change nothing.

use tensorpack::prelude::*;
use tensorpack_testing::plugin_for_tests;

const STEPS: usize = 5;
const FEATURES: usize = 3;

/// The engines: the CPU, the reference, and XLA if there is a plugin.
fn engines() -> Vec<SessionOptions> {
    let options = |device| SessionOptions { device, ..SessionOptions::default() };
    let mut engines = vec![options(Device::Cpu(0)), options(Device::Reference)];
    if plugin_for_tests("cpu").is_some() {
        engines.push(options("xla:cpu:0".parse().unwrap()));
    }
    engines
}

fn input(batch: usize, steps: usize) -> HostTensor {
    let values = (0..batch * steps * FEATURES).map(|i| ((i * i) as f64 * 0.37).sin()).collect();
    HostTensor::new([batch, steps, FEATURES], values).unwrap()
}

#[derive(Clone, Copy, Debug)]
enum Layer {
    Lstm,
    Gru,
}

/// The outputs, the last state, and the gradients of their weighted sum.
fn results(
    layer: Layer,
    known: bool,
    lengths: Option<&[i32]>,
    reverse: bool,
    x: &HostTensor,
    engine: &SessionOptions,
) -> Vec<HostTensor> {
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let steps = known.then_some(x.sizes()[1]);
    let fed = graph.placeholder(&TensorSpec::new("x", DType::F64, [None, steps, Some(FEATURES)]));
    let mut options = RecurrentOptions::default();
    if let Some(lengths) = lengths {
        options =
            options.lengths(&graph.constant(HostTensor::new([lengths.len()], lengths.to_vec()).unwrap()));
    }
    if reverse {
        options = options.reverse();
    }
    let (y, last) = match layer {
        Layer::Lstm => {
            let (y, state) = Lstm::new(4).apply_with(t, "rnn", &fed, None, &options);
            (y, vec![state.c, state.h])
        }
        Layer::Gru => {
            let (y, state) = Gru::new(4).apply_with(t, "rnn", &fed, None, &options);
            (y, vec![state])
        }
    };
    let weights = y.iota_like(1, DType::F64) + y.iota_like(2, DType::F64) * 0.3 + 1.0;
    let ends = last.iter().map(|s| s.square().sum()).reduce(|a, b| a + b).unwrap();
    let cost = (&y * weights).sum() + ends;
    let names = ["rnn/W", "rnn/U", "rnn/b"].map(|n| graph.tensor(n).unwrap());
    let wanted: Vec<&Tensor> = [&fed].into_iter().chain(&names).collect();
    let grads: Vec<Tensor> = gradients(&cost, &wanted).unwrap().into_iter().map(Option::unwrap).collect();
    let fetches: Vec<Tensor> = [y].into_iter().chain(last).chain(grads).collect();
    let session = Session::with(graph.freeze().unwrap(), engine.clone()).unwrap();
    let fetches: Vec<&dyn tensorpack::runtime::IntoFetch> = fetches.iter().map(|t| t as _).collect();
    session.run(&fetches, &[("x", x)]).unwrap()
}

fn assert_close(what: &str, found: &[HostTensor], expected: &[HostTensor]) {
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert_eq!(a.sizes(), b.sizes(), "{what}, result {i}");
        for (a, b) in a.to_f64_vec().iter().zip(b.to_f64_vec()) {
            assert!((a - b).abs() < 1e-10 * (1.0 + b.abs()), "{what}, result {i}: {a}, expected {b}");
        }
    }
}

#[test]
fn unknown_time_gives_what_known_time_gives() {
    let x = input(3, STEPS);
    for layer in [Layer::Lstm, Layer::Gru] {
        for (lengths, reverse) in
            [(None, false), (None, true), (Some(&[5, 2, 0][..]), false), (Some(&[1, 5, 3][..]), true)]
        {
            let expected = results(layer, true, lengths, reverse, &x, &SessionOptions::default());
            // Compiling for XLA takes seconds, so each layer has one case there.
            let for_xla = lengths.is_some() && reverse == matches!(layer, Layer::Lstm);
            for engine in
                engines().into_iter().filter(|e| for_xla || !e.device.to_string().starts_with("xla"))
            {
                let found = results(layer, false, lengths, reverse, &x, &engine);
                assert_close(
                    &format!("{layer:?} {lengths:?} {reverse} on {}", engine.device),
                    &found,
                    &expected,
                );
            }
        }
    }
}

#[test]
fn no_steps_keep_the_state_whether_their_number_is_known_or_not() {
    for layer in [Layer::Lstm, Layer::Gru] {
        let [known, unknown] = [true, false]
            .map(|known| results(layer, known, None, false, &input(3, 0), &SessionOptions::default()));
        assert_eq!(known[0].sizes(), [3, 0, 4]);
        assert!(known[1].to_f64_vec().iter().all(|h| *h == 0.0), "{layer:?}: {:?}", known[1]);
        assert_close(&format!("{layer:?} without steps"), &known, &unknown);
    }
}

/// Each example of a padded batch gives what it gives alone, without padding.
#[test]
fn padding_changes_nothing() {
    let (x, lengths) = (input(3, STEPS), [4, 5, 2]);
    for layer in [Layer::Lstm, Layer::Gru] {
        for reverse in [false, true] {
            let padded = results(layer, true, Some(&lengths), reverse, &x, &SessionOptions::default());
            let states = if matches!(layer, Layer::Lstm) { 2 } else { 1 };
            for (example, &length) in lengths.iter().enumerate() {
                let length = length as usize;
                let row = |t: &HostTensor, steps: usize| {
                    let width = t.len() / t.sizes()[0];
                    let values = t.to_f64_vec()[example * width..][..width / t.sizes()[1] * steps].to_vec();
                    HostTensor::new([1, steps, t.sizes()[2]], values).unwrap()
                };
                let alone = row(&x, length);
                let expected = results(layer, true, None, reverse, &alone, &SessionOptions::default());
                let what = format!("{layer:?} {reverse}, example {example}");
                assert_close(&what, &[row(&padded[0], length)], &expected[..1]);
                let after = padded[0].to_f64_vec()[(example * STEPS + length) * 4..(example + 1) * STEPS * 4]
                    .to_vec();
                assert!(after.iter().all(|&v| v == 0.0), "{what}: {after:?}");
                for state in 1..=states {
                    let own = padded[state].to_f64_vec()[example * 4..][..4].to_vec();
                    assert_close(&what, &[HostTensor::new([1, 4], own).unwrap()], &expected[state..=state]);
                }
                // The gradient of padding is zero, and that of the rest as if alone.
                assert_close(&what, &[row(&padded[1 + states], length)], &expected[1 + states..2 + states]);
            }
        }
    }
}

#[test]
fn one_graph_runs_any_number_of_steps() {
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let x = graph.placeholder(&TensorSpec::new("x", DType::F64, [None, None, Some(FEATURES)]));
    let (y, _) = Gru::new(2).apply(t, "gru", &x, None);
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let run = |steps: usize| session.run(&[&y], &[("x", &input(1, steps))]).unwrap().remove(0);
    assert_eq!(run(0).sizes(), [1, 0, 2]);
    let (three, nine) = (run(3).to_f64_vec(), run(9).to_f64_vec());
    assert_eq!(three, nine[..6]);
}

#[test]
fn wrong_lengths_are_errors_at_the_callers_line() {
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let x = graph.placeholder(&TensorSpec::f32("x", [Some(2), Some(3), Some(4)]));
    let wrong = graph.placeholder(&TensorSpec::f32("lengths", [Some(2)]));
    let line = line!() + 1;
    Lstm::new(2).apply_with(t, "lstm", &x, None, &RecurrentOptions::default().lengths(&wrong));
    let e = graph.freeze().unwrap_err();
    assert!(e.message().contains("integer lengths [batch]"), "{e}");
    assert_eq!(e.site().map(|s| s.line), Some(line));
}

/// A length beyond the padding would otherwise stand for the whole sequence, and a negative one for none.
#[test]
fn a_length_that_does_not_fit_is_an_error_of_the_run() {
    for steps in [Some(3), None] {
        let graph = Graph::new();
        let t = &TowerContext::training(&graph);
        let x = graph.placeholder(&TensorSpec::f32("x", [None, steps, Some(4)]));
        let lengths = graph.placeholder(&TensorSpec::i32("lengths", [None]));
        let options = RecurrentOptions::default().lengths(&lengths);
        let line = line!() + 1;
        let (y, _) = Lstm::new(2).apply_with(t, "lstm", &x, None, &options);
        let session = Session::new(graph.freeze().unwrap()).unwrap();
        let x = HostTensor::zeros(DType::F32, [2, 3, 4]).unwrap();
        let run = |lengths: [i32; 2]| {
            let lengths = HostTensor::new([2], lengths.to_vec()).unwrap();
            session.run(&[&y], &[("x", &x), ("lengths", &lengths)])
        };
        run([0, 3]).unwrap();
        for wrong in [4, -1] {
            let e = run([3, wrong]).unwrap_err();
            assert!(
                e.to_string().contains("lengths") && e.to_string().contains(&format!("is {wrong}")),
                "{e}"
            );
            assert_eq!(e.site().map(|s| s.line), Some(line), "{e}");
        }
    }
}
