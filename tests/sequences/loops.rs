//! Errors of loops, and the size of their programs.

use tensorpack::control::while_loop;
use tensorpack::prelude::*;

fn scalars(graph: &Graph) -> (Tensor, Tensor) {
    let start = graph.placeholder(&TensorSpec::f32("start", []));
    (start, graph.placeholder(&TensorSpec::f32("x", [None])))
}

/// Builds a loop and returns its error and the line of the call.
fn error(body: impl FnOnce(&[Tensor], &[Tensor], &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>)) -> (Error, u32) {
    let graph = Graph::new();
    let (start, x) = scalars(&graph);
    let line = line!() + 1;
    Scan::new(&[&start]).over(&[&x]).run(body);
    (graph.freeze().unwrap_err(), line)
}

#[test]
fn a_body_that_changes_the_state_is_an_error() {
    let (e, line) = error(|state, x, _| (vec![(&state[0] + &x[0]).expand_dims(0)], Vec::new()));
    assert!(e.message().contains("state 0 is f32[] before a step and f32[1] after it"), "{e}");
    assert_eq!(e.site().map(|s| s.line), Some(line));
    let (e, _) = error(|_, _, _| (Vec::new(), Vec::new()));
    assert!(e.message().contains("returned 0 tensors of state"), "{e}");
}

#[test]
fn an_error_in_a_body_points_at_its_line() {
    let mut line = 0;
    let (e, _) = error(|state, _, _| {
        line = line!() + 1;
        (vec![state[0].matmul(&state[0])], Vec::new())
    });
    assert_eq!(e.site().map(|s| s.line), Some(line), "{e}");
}

#[test]
fn tensors_from_outside_must_be_captured() {
    let uses: [fn(&Tensor, &Tensor) -> Tensor; 3] =
        [|outside, _| outside.clone(), |outside, state| outside * state, |outside, state| state * outside];
    for make in uses {
        let graph = Graph::new();
        let (start, x) = scalars(&graph);
        let outside = &start * 2.0;
        Scan::new(&[&start]).over(&[&x]).run(|state, _, _| (vec![make(&outside, &state[0])], Vec::new()));
        let e = graph.freeze().unwrap_err();
        assert!(e.to_string().contains("captured"), "{e}");
        assert_eq!(e.site().map(|s| s.file), Some(file!()), "{e}");
    }
}

#[test]
fn random_numbers_in_a_body_are_an_error() {
    let (e, _) = error(|state, _, _| {
        let noise = Random::uniform(0.0, 1.0).like(&state[0]);
        (vec![&state[0] + noise], Vec::new())
    });
    assert!(e.message().contains("cannot be part of a loop's body"), "{e}");
}

/// States that only gradients read are not stored without gradients.
#[test]
fn a_loop_without_gradients_stores_no_states() {
    let graph = Graph::new();
    let (start, x) = scalars(&graph);
    let (last, _) =
        Scan::new(&[&start]).over(&[&x]).run(|state, x, _| (vec![(&state[0] * &x[0]).sin()], Vec::new()));
    let slope = gradients(&last[0], &[&start]).unwrap().remove(0).unwrap();
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let feeds = [
        ("start", &HostTensor::scalar(0.5f32)),
        ("x", &HostTensor::new([3], vec![1.0f32, 2.0, 3.0]).unwrap()),
    ];
    let concats = |fetch: &Tensor| session.plan_text(&[fetch], &feeds).unwrap().matches("concat").count();
    assert_eq!(concats(&last[0]), 0);
    assert!(concats(&slope) > 0);
}

#[test]
fn a_loop_that_is_too_long_is_an_error() {
    let graph = Graph::new();
    let (start, _) = scalars(&graph);
    Scan::new(&[&start]).length(1 << 20).run(|state, _, _| (vec![state[0].sin()], Vec::new()));
    assert!(graph.freeze().unwrap_err().message().contains("at most 65536 steps"));
}

/// The results can be used, and the error comes when the graph is frozen.
#[test]
fn a_wrong_input_or_body_leaves_as_many_results() {
    for (before, inside) in [(true, false), (false, true)] {
        let graph = Graph::new();
        let x = graph.placeholder(&TensorSpec::f32("x", [Some(2), Some(3)]));
        let wrong = |x: &Tensor, is_wrong: bool| {
            if is_wrong { x.expand_dims(0).matmul(&x.expand_dims(0)) } else { x.clone() }
        };
        let xs = if before { x.matmul(&x) } else { x.clone() };
        let start = x.sum_axes(&[0]);
        let (last, results) = Scan::new(&[&start]).over(&[&xs]).run(|state, x, _| {
            let next = &state[0] + wrong(&x[0], inside);
            (vec![next.clone()], vec![next.clone(), next])
        });
        let _ = results[1].sum() + last[0].sum();
        assert_eq!(results.len(), 2);
        let e = graph.freeze().unwrap_err();
        assert!(e.message().contains("MatMul") || e.to_string().contains("Scan"), "{e}");
    }
}

#[test]
fn a_loop_without_state_is_an_error() {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [None]));
    let line = line!() + 1;
    let (_, results) = Scan::new(&[]).over(&[&x]).run(|_, x, _| (Vec::new(), vec![x[0].sin()]));
    assert_eq!(results.len(), 1);
    let e = graph.freeze().unwrap_err();
    assert!(e.message().contains("at least one tensor of state"), "{e}");
    assert_eq!(e.site().map(|s| (s.file, s.line)), Some((file!(), line)));
}

/// A tensor has a value in every step, so that its name alone does not say what to fetch.
#[test]
fn a_name_in_a_body_is_an_error_that_says_what_to_do() {
    let graph = Graph::new();
    let (start, x) = scalars(&graph);
    Scan::new(&[&start]).over(&[&x]).run(|state, x, _| {
        let (inner, _) =
            Scan::new(&[&state[0]]).length(2).run(|s, _, _| (vec![s[0].sin().named("inner")], Vec::new()));
        (vec![(&inner[0] + &x[0]).named("sum")], Vec::new())
    });
    for name in ["sum", "inner"] {
        let e = graph.tensor(name).unwrap_err();
        assert!(e.to_string().contains("return it from the body"), "{e}");
    }
    let e = graph.freeze().unwrap().fetch("inner").unwrap_err();
    assert!(e.to_string().contains("return it from the body"), "{e}");
}

#[test]
fn a_body_of_while_loop_returns_as_much_state_as_it_gets() {
    for count in [1, 3] {
        let graph = Graph::new();
        let [x, y] = ["x", "y"].map(|name| graph.placeholder(&TensorSpec::f32(name, [])));
        let body = |state: &[Tensor], _: &[Tensor]| vec![state[0].clone(); count];
        while_loop(&[&x, &y], &[], 3, |state, _| state[0].less(&state[1]), body);
        let e = graph.freeze().unwrap_err();
        assert!(e.message().contains(&format!("returned {count} tensors")), "{e}");
        assert!(e.message().contains("began with 2"), "{e}");
    }
}

/// A step after the end computes the root of a negative number, whose value and derivative are NaN.
#[test]
fn steps_after_the_end_have_no_effect_on_gradients() {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", []));
    let one = graph.constant(HostTensor::scalar(1.0f32));
    let body = |s: &[Tensor], one: &[Tensor]| vec![(&s[0] - &one[0]).sqrt()];
    let last = while_loop(&[&x], &[&one], 4, |s, one| s[0].greater(&one[0]), body).remove(0);
    let slopes = gradients(&last, &[&x, &one]).unwrap();
    let [dx, done] = [0, 1].map(|i| slopes[i].clone().unwrap());
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let found = session.run(&[&last, &dx, &done], &[("x", &HostTensor::scalar(10.0f32))]).unwrap();
    let values: Vec<f64> = found.iter().map(|t| t.to_scalar().unwrap()).collect();
    // 10, 3, the root of 2, the root of 0.414.
    let chain = |x: f64, (d_x, d_one): (f64, f64)| {
        let root = (x - 1.0).sqrt();
        (root, (0.5 / root * d_x, 0.5 / root * (d_one - 1.0)))
    };
    let (mut value, mut derivatives) = (10.0, (1.0, 0.0));
    while value > 1.0 {
        (value, derivatives) = chain(value, derivatives);
    }
    let expected = [value, derivatives.0, derivatives.1];
    let near = values.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5 * b.abs().max(1.0));
    assert!(near, "{values:?}, expected {expected:?}");
}

/// After the end the counter is as large as the table, so a step that used it would read beyond its end.
#[test]
fn indices_of_a_while_loop_are_valid_to_its_end() {
    for length in 1..=3u8 {
        let graph = Graph::new();
        let table = graph.placeholder(&TensorSpec::f32("table", [None]));
        let n = table.ones_like().sum();
        let zero = n.zeros_like();
        let body =
            |s: &[Tensor], c: &[Tensor]| vec![&s[0] + 1.0, &s[1] + c[0].gather(&s[0].cast(DType::I64), 0)];
        let last = while_loop(&[&zero, &zero], &[&table, &n], 8, |s, c| s[0].less(&c[1]), body);
        let slope = gradients(&last[1], &[&table]).unwrap().remove(0).unwrap();
        let session = Session::new(graph.freeze().unwrap()).unwrap();
        let table: Vec<f32> = (1..=length).map(f32::from).collect();
        let table = HostTensor::new([table.len()], table).unwrap();
        let found = session.run(&[&last[0], &last[1], &slope], &[("table", &table)]).unwrap();
        let n = f64::from(length);
        assert_eq!(found[0].to_scalar().unwrap(), n);
        assert_eq!(found[1].to_scalar().unwrap(), n * (n + 1.0) / 2.0);
        assert!(found[2].to_f64_vec().iter().all(|&s| s == 1.0));
    }
}

#[test]
fn a_body_reads_no_other_input_not_even_its_shape() {
    let (e, _) = error(|state, _, _| {
        let other = state[0].graph().placeholder(&TensorSpec::f32("other", [Some(3)]));
        (vec![&state[0] + other.ones_like().sum()], Vec::new())
    });
    assert!(e.to_string().contains("captured"), "{e}");
    assert_eq!(e.site().map(|s| s.file), Some(file!()), "{e}");
}
