//! Models with variables that are shared, trained by two costs, or frozen.

use tensorpack::prelude::*;

fn input(graph: &Graph, name: &str, features: usize) -> Tensor {
    graph.placeholder(&TensorSpec::new(name, DType::F64, [None, Some(features)]))
}

fn data(rows: usize, features: usize, from: f64) -> HostTensor {
    let values = (0..rows * features).map(|i| ((i as f64 + from) * 0.7).sin()).collect();
    HostTensor::new([rows, features], values).unwrap()
}

fn names(session: &Session) -> Vec<&str> {
    session.graph().variables().iter().map(|v| v.name.as_str()).collect()
}

/// Returns the gradient of a cost with respect to a weight by central differences.
fn difference(session: &Session, cost: &Tensor, feeds: &[(&str, &HostTensor)], name: &str) -> Vec<f64> {
    let start = session.read(name).unwrap();
    let values = start.to_f64_vec();
    let cost_at = |i: usize, by: f64| {
        let mut moved = values.clone();
        moved[i] += by;
        session.write(name, &HostTensor::from_f64(DType::F64, start.sizes(), &moved).unwrap()).unwrap();
        session.run(&[cost], feeds).unwrap()[0].to_f64_vec()[0]
    };
    let slopes = (0..values.len()).map(|i| (cost_at(i, 1e-5) - cost_at(i, -1e-5)) / 2e-5).collect();
    session.write(name, &start).unwrap();
    slopes
}

fn assert_near(what: &str, a: &[f64], b: &[f64]) {
    let close = |(x, y): (&f64, &f64)| (x - y).abs() < 1e-7 * (1.0 + x.abs());
    assert!(a.len() == b.len() && a.iter().zip(b).all(close), "{what}: {a:?}, {b:?}");
}

/// A siamese network: both branches share variables, whose gradients are the sum over both uses.
#[test]
fn a_shared_layer_sums_the_gradients_of_its_uses() {
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let (a, b) = (input(&graph, "a", 3), input(&graph, "b", 3));
    let arm = |t: &TowerContext, x: &Tensor| {
        let x = Linear::new(4).activation(Activation::Tanh).apply(t, "fc0", x);
        Linear::new(2).apply(t, "fc1", &x)
    };
    let apart = arm(t, &a) - t.reuse(|t| arm(t, &b));
    let cost = apart.square().sum();
    let wanted = ["fc0/W", "fc0/b", "fc1/W"].map(|n| graph.tensor(n).unwrap());
    let grads = gradients(&cost, &wanted.iter().collect::<Vec<_>>()).unwrap();
    let grads: Vec<Tensor> = grads.into_iter().map(Option::unwrap).collect();
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    assert_eq!(names(&session), ["fc0/W", "fc0/b", "fc1/W", "fc1/b"]);
    let feeds = [("a", &data(5, 3, 0.0)), ("b", &data(5, 3, 9.0))];
    for (g, name) in grads.iter().zip(["fc0/W", "fc0/b", "fc1/W"]) {
        let found = session.run(&[g], &feeds).unwrap()[0].to_f64_vec();
        assert_near(name, &found, &difference(&session, &cost, &feeds, name));
    }
}

/// As in adversarial networks, each cost updates its own half and uses the other half unchanged.
#[test]
fn two_costs_train_their_own_variables() {
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let (z, real) = (input(&graph, "z", 2), input(&graph, "real", 3));
    let fake = t.scope("gen", |t| Linear::new(3).apply(t, "fc", &z));
    let judge = |t: &TowerContext, x: &Tensor| {
        t.scope("discrim", |t| Linear::new(1).activation(Activation::Tanh).apply(t, "fc", x).mean())
    };
    let on_real = judge(t, &real);
    let on_fake = t.reuse(|t| judge(t, &fake));
    let (g_loss, d_loss) = (-&on_fake, &on_fake - &on_real);
    let step = |cost: &Tensor, scope: &str| {
        let ids = graph.collection(tensorpack::graph::TRAINABLE_VARIABLES).variables;
        let own: Vec<Variable> =
            ids.iter().map(|&id| graph.variable_handle(id)).filter(|v| v.name().starts_with(scope)).collect();
        let values: Vec<&Tensor> = own.iter().map(Variable::value).collect();
        let grads = gradients(cost, &values).unwrap();
        let updates: Vec<Op> =
            own.iter().zip(grads).map(|(v, g)| v.update(|w| w - g.unwrap() * 0.5)).collect();
        graph.group(&updates.iter().collect::<Vec<_>>())
    };
    let (g_step, d_step) = (step(&g_loss, "gen/"), step(&d_loss, "discrim/"));
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    assert_eq!(names(&session), ["gen/fc/W", "gen/fc/b", "discrim/fc/W", "discrim/fc/b"]);
    let feeds = [("z", &data(4, 2, 0.0)), ("real", &data(4, 3, 5.0))];
    for (train, cost, own, other) in
        [(&g_step, &g_loss, "gen/fc/W", "discrim/fc/W"), (&d_step, &d_loss, "discrim/fc/W", "gen/fc/W")]
    {
        let slope = difference(&session, cost, &feeds, own);
        let (before, beside) = (session.read(own).unwrap().to_f64_vec(), session.read(other).unwrap());
        session.run(&[train], &feeds).unwrap();
        let moved: Vec<f64> = before.iter().zip(&slope).map(|(w, g)| w - g * 0.5).collect();
        assert_near(own, &session.read(own).unwrap().to_f64_vec(), &moved);
        assert_eq!(session.read(other).unwrap(), beside, "{other} belongs to the other cost");
    }
}

#[test]
fn frozen_variables_do_not_change() {
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let x = input(&graph, "x", 3);
    let features = t.freeze_variables(|t| {
        let x = Linear::new(4).activation(Activation::Tanh).apply(t, "body/fc0", &x);
        BatchNorm::new().use_running().apply(t, "body/bn", &x)
    });
    let cost = Linear::new(1).apply(t, "head/fc", &features).square().mean();
    let dx = gradients(&cost, &[&x]).unwrap().remove(0);
    assert!(dx.is_some(), "gradients must flow through frozen layers");
    let train = minimize(&cost, &Adam::new(0.1)).unwrap();
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let trained: Vec<String> =
        session.graph().variables().iter().filter(|v| v.trainable).map(|v| v.name.clone()).collect();
    assert_eq!(
        trained,
        ["body/fc0/W", "body/fc0/b", "body/bn/gamma", "body/bn/beta", "head/fc/W", "head/fc/b"]
    );
    let before: Vec<HostTensor> = trained.iter().map(|n| session.read(n).unwrap()).collect();
    session.run(&[&train], &[("x", &data(5, 3, 0.0))]).unwrap();
    for (name, before) in trained.iter().zip(before) {
        let same = session.read(name).unwrap() == before;
        assert_eq!(same, name.starts_with("body/"), "{name}");
    }
}

/// A cell that is stepped in a loop equals the layer over the whole sequence.
#[test]
fn stepped_cells_equal_the_layer() {
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let x = graph.placeholder(&TensorSpec::new("x", DType::F64, [None, Some(4), Some(3)]));
    let (lstm, last) = Lstm::new(5).forget_bias(0.5).apply(t, "lstm", &x, None);
    let (gru, _) = Gru::new(5).apply(t, "gru", &x, None);
    let (mut state, mut h) = (None, None);
    for step in x.unstack(1) {
        t.reuse(|t| {
            state = Some(LstmCell::new(5).forget_bias(0.5).step(t, "lstm", &step, state.as_ref()));
            h = Some(GruCell::new(5).step(t, "gru", &step, h.as_ref()));
        });
    }
    let (state, h) = (state.unwrap(), h.unwrap());
    let ends = [&lstm, &gru].map(|y| y.slice_axis(1, 3, None).squeeze(1));
    let apart = [&last.c - &state.c, &last.h - &state.h, &ends[0] - &state.h, &ends[1] - &h];
    let apart = apart.map(|d| d.abs().sum()).into_iter().reduce(|a, b| a + b).unwrap();
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    assert_eq!(names(&session), ["lstm/W", "lstm/U", "lstm/b", "gru/W", "gru/U", "gru/c", "gru/b"]);
    let fed = HostTensor::new([2, 4, 3], (0..24).map(|i| f64::from(i).sin()).collect()).unwrap();
    assert!(session.run(&[&apart], &[("x", &fed)]).unwrap()[0].to_f64_vec()[0] < 1e-12);
}

#[test]
fn a_cell_in_a_loop_creates_its_variables_once() {
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(3), Some(2)]));
    let mut state = None;
    for step in x.unstack(1) {
        state = Some(LstmCell::new(4).step(t, "cell", &step, state.as_ref()));
    }
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    assert_eq!(names(&session), ["cell/W", "cell/U", "cell/b"]);
}

#[test]
fn dropout_applies_only_in_training() {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [Some(1000)]));
    let dropped = Dropout::new(0.25).apply(&TowerContext::training(&graph), "dropout", &x);
    let kept = Dropout::new(0.25).apply(&TowerContext::inference(&graph), "dropout", &x);
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let ones = HostTensor::new([1000], vec![1.0f32; 1000]).unwrap();
    let got = session.run(&[&dropped, &kept], &[("x", &ones)]).unwrap();
    assert_eq!(got[1], ones);
    let zeros = got[0].as_slice::<f32>().unwrap().iter().filter(|v| **v == 0.0).count();
    assert!((200..300).contains(&zeros), "{zeros} of 1000 dropped");
    let others = got[0].as_slice::<f32>().unwrap().iter().all(|&v| v == 0.0 || (v - 4.0 / 3.0).abs() < 1e-6);
    assert!(others, "kept elements must be scaled up");
}
