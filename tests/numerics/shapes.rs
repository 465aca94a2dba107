//! Shapes that would silently give wrong results through broadcasting or an empty dim.

use super::{assert_error, engines, session};
use tensorpack::graph::{Graph, Tensor, TensorSpec};
use tensorpack::nn::{BatchNorm, Gru, GruCell, Lstm, LstmCell, LstmState};
use tensorpack::tower::TowerContext;
use tensorpack::{DType, ErrorKind, HostTensor};

fn zeros(sizes: &[usize]) -> HostTensor {
    HostTensor::zeros(DType::F32, sizes.to_vec()).unwrap()
}

#[test]
fn a_state_with_another_batch_size_is_rejected() {
    /// Applies a recurrent layer to an input, `h` and `c`.
    type Layer = fn(&TowerContext, &Tensor, &Tensor, &Tensor) -> Tensor;
    let layers: [(&str, Layer); 4] = [
        ("Lstm", |t, x, h, c| {
            Lstm::new(4).apply(t, "rnn", x, Some(&LstmState { c: c.clone(), h: h.clone() })).0
        }),
        ("LstmCell", |t, x, h, c| {
            let state = LstmState { c: c.clone(), h: h.clone() };
            LstmCell::new(4).step(t, "rnn", &x.slice_axis(1, 0, Some(1)).squeeze(1), Some(&state)).h
        }),
        ("Gru", |t, x, h, _| Gru::new(4).apply(t, "rnn", x, Some(h)).0),
        ("GruCell", |t, x, h, _| {
            GruCell::new(4).step(t, "rnn", &x.slice_axis(1, 0, Some(1)).squeeze(1), Some(h))
        }),
    ];
    for (name, layer) in layers {
        // Found while building, as all sizes are known.
        for (h, c) in [([1, 4], [7, 4]), ([7, 4], [1, 4]), ([7, 4], [7, 1]), ([7, 1], [7, 4])] {
            if name.starts_with("Gru") && h == [7, 4] {
                continue;
            }
            let graph = Graph::new();
            let t = TowerContext::training(&graph);
            let x = graph.placeholder(&TensorSpec::f32("x", [Some(7), Some(2), Some(3)]));
            let [h, c] =
                [("h", h), ("c", c)].map(|(n, s)| graph.placeholder(&TensorSpec::f32(n, s.map(Some))));
            layer(&t, &x, &h, &c);
            assert_error(graph.freeze().map(|_| ()), ErrorKind::Shape, &["[batch, units]"]);
        }
    }
    // Found when it runs, as the batch is known only then.
    for device in engines() {
        let graph = Graph::new();
        let t = TowerContext::training(&graph);
        let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(2), Some(3)]));
        let [c, h] = ["c", "h"].map(|n| graph.placeholder(&TensorSpec::f32(n, [None, Some(4)])));
        let (y, _) = Lstm::new(4).apply(&t, "rnn", &x, Some(&LstmState { c, h }));
        let session = session(graph, device).unwrap();
        let run = |c: usize, h: usize| {
            let feeds = [("x", &zeros(&[7, 2, 3])), ("c", &zeros(&[c, 4])), ("h", &zeros(&[h, 4]))];
            session.run(&[&y], &feeds)
        };
        assert_eq!(run(7, 7).unwrap()[0].sizes(), [7, 2, 4]);
        assert_error(run(1, 7), ErrorKind::Shape, &["[batch, units]"]);
        assert_error(run(7, 1), ErrorKind::Shape, &["[batch, units]"]);
    }
}

#[test]
fn targets_for_other_rows_are_rejected() {
    let graph = Graph::new();
    let scores = graph.placeholder(&TensorSpec::f32("scores", [Some(5), Some(3)]));
    let targets = graph.placeholder(&TensorSpec::i32("targets", [Some(1)]));
    scores.in_top_k(&targets, 1);
    assert_error(graph.freeze().map(|_| ()), ErrorKind::Shape, &["[5, 3]", "[1]"]);
    for device in engines() {
        let graph = Graph::new();
        let scores = graph.placeholder(&TensorSpec::f32("scores", [None, Some(3)]));
        let targets = graph.placeholder(&TensorSpec::i32("targets", [None]));
        let hit = scores.in_top_k(&targets, 1);
        let session = session(graph, device).unwrap();
        let run = |rows: usize| {
            let targets = HostTensor::zeros(DType::I32, [rows]).unwrap();
            session.run(&[&hit], &[("scores", &zeros(&[5, 3])), ("targets", &targets)])
        };
        assert_eq!(run(5).unwrap()[0], HostTensor::new([5], vec![true; 5]).unwrap());
        assert_error(run(1), ErrorKind::Shape, &["[5, 3]", "[1]"]);
    }
}

#[test]
fn batch_normalization_of_one_value_is_rejected_in_training() {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [Some(1), Some(3)]));
    BatchNorm::new().apply(&TowerContext::training(&graph), "bn", &x);
    assert_error(graph.freeze().map(|_| ()), ErrorKind::Shape, &["one value", "channel"]);
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [Some(4), Some(3)]));
    BatchNorm::new().virtual_batch_size(1).apply(&TowerContext::training(&graph), "bn", &x);
    assert_error(graph.freeze().map(|_| ()), ErrorKind::Shape, &["one value", "channel"]);
    for device in engines() {
        let graph = Graph::new();
        let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(3)]));
        let y = BatchNorm::new().apply(&TowerContext::training(&graph), "bn", &x);
        let still = BatchNorm::new().apply(&TowerContext::inference(&graph), "bn", &x);
        let session = session(graph, device).unwrap();
        assert_error(
            session.run(&[&y], &[("x", &zeros(&[1, 3]))]),
            ErrorKind::Shape,
            &["one value", "channel"],
        );
        assert_eq!(session.run(&[&y], &[("x", &zeros(&[2, 3]))]).unwrap()[0], zeros(&[2, 3]));
        // Inference uses the running statistics.
        assert_eq!(session.run(&[&still], &[("x", &zeros(&[1, 3]))]).unwrap()[0], zeros(&[1, 3]));
    }
}

#[test]
fn unpooling_an_empty_image_is_empty() {
    for device in engines() {
        let graph = Graph::new();
        let x = graph.placeholder(&TensorSpec::f32("x", [Some(3), None, None, Some(2)]));
        let y = x.unpool_zeros(3);
        let session = session(graph, device).unwrap();
        let run = |sizes: &[usize]| session.run(&[&y], &[("x", &zeros(sizes))]).unwrap().remove(0);
        assert_eq!(run(&[3, 0, 0, 2]).sizes(), [3, 0, 0, 2], "{device}");
        assert_eq!(run(&[3, 0, 2, 2]).sizes(), [3, 0, 6, 2], "{device}");
        assert_eq!(run(&[3, 1, 2, 2]).sizes(), [3, 3, 6, 2], "{device}");
    }
}

#[test]
fn hyper_parameters_have_the_models_type() {
    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    let x = graph.placeholder(&TensorSpec::new("x", DType::F64, [None]));
    let share = t.hyper_param("share", 0.1);
    let y = &x * share.value();
    let session = session(graph, tensorpack::runtime::Device::Cpu(0)).unwrap();
    let fed = HostTensor::new([1], vec![3.0f64]).unwrap();
    let found = session.run(&[&y], &[("x", &fed)]).unwrap().remove(0);
    assert_eq!(found, HostTensor::new([1], vec![3.0f64 * 0.1]).unwrap());
}
