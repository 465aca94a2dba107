//! Defaults in scopes, chains of layers, and regularizers of layers.

use tensorpack::graph::REGULARIZATION_LOSSES;
use tensorpack::prelude::*;
use tensorpack::tower::Mode;

/// Runs a function of a tensor `[2, 2]` with the elements 1, -2, 3, -4, and returns its result.
fn run(build: impl FnOnce(&TowerContext, &Tensor) -> Tensor) -> Vec<f32> {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [Some(2), Some(2)]));
    let y = TowerContext::training(&graph).build(|t| build(t, &x));
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let fed = HostTensor::new([2, 2], vec![1.0f32, -2.0, 3.0, -4.0]).unwrap();
    session.run(&[&y], &[("x", &fed)]).unwrap()[0].as_slice::<f32>().unwrap().to_vec()
}

fn identity(fc: Linear) -> Linear {
    fc.init(Init::Identity).no_bias()
}

#[test]
fn own_settings_win_over_inner_scopes_and_those_over_outer_ones() {
    let y = run(|t, x| {
        t.argscope(identity, |t| {
            t.argscope(
                |fc: Linear| fc.relu(),
                |t| {
                    let relu = Linear::new(2).apply(t, "scope", x);
                    let own = Linear::new(2).activation(Activation::Identity).apply(t, "own", x);
                    let inner = t.argscope(
                        |fc: Linear| fc.activation(Activation::Tanh),
                        |t| Linear::new(2).apply(t, "inner", x),
                    );
                    assert!(t.graph().variable_named("inner/b").is_none());
                    t.graph().concat(&[relu, own, inner - x.tanh()], 0)
                },
            )
        })
    });
    assert_eq!(y, [1.0, 0.0, 3.0, 0.0, 1.0, -2.0, 3.0, -4.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn biases_start_as_they_are_told() {
    let five = || Init::Constant(5.0);
    let y = run(|t, x| {
        let own = Linear::new(2).init(Init::zeros()).bias_init(five()).apply(t, "own", x);
        let from_scope = t.argscope(
            |fc: Linear| fc.init(Init::zeros()).bias_init(five()),
            |t| Linear::new(2).apply(t, "from_scope", x),
        );
        t.graph().concat(&[own, from_scope, Linear::new(2).init(Init::zeros()).apply(t, "unset", x)], 0)
    });
    assert_eq!(y, [[5.0; 8].as_slice(), &[0.0; 4]].concat());

    // All gates have the bias 5, and the weights are zeros.
    let lstm = Lstm::new(1).forget_bias(0.0).init(Init::zeros()).recurrent_init(Init::zeros());
    let y = run(|t, x| lstm.bias_init(five()).apply(t, "lstm", &x.expand_dims(2), None).0);
    let gate = 1.0 / (1.0 + (-5.0f64).exp());
    let first = gate * 5.0f64.tanh();
    let second = gate * first + first;
    for (found, c) in y.iter().zip([first, second, first, second]) {
        assert!((f64::from(*found) - gate * c.tanh()).abs() < 1e-5, "{y:?}");
    }
}

#[test]
fn a_scope_ends_and_holds_for_its_type_of_layer_alone() {
    run(|t, x| {
        t.argscope(|fc: Linear| fc.no_bias(), |t| Linear::new(2).apply(t, "inside", x));
        let image = x.expand_dims(0).expand_dims(3);
        t.argscope(
            |conv: Conv2d| conv.no_bias().stride(2),
            |t| {
                let depthwise = DepthwiseConv2d::new(1).apply(t, "depthwise", &image);
                assert_eq!(depthwise.shape()[1], 2.into());
                assert_eq!(Conv2d::new(1, 1).apply(t, "conv", &image).shape()[1], 1.into());
                Linear::new(2).apply(t, "linear", x);
            },
        );
        let has = |name: &str| t.graph().variable_named(name).is_some();
        assert!(!has("inside/b") && has("linear/b") && has("depthwise/b") && !has("conv/b"));
        Linear::new(2).apply(t, "outside", x);
        assert!(has("outside/b"));
        x.clone()
    });
}

/// The projections of attention are parts of that layer, not linear layers of the model.
#[test]
fn attention_takes_no_defaults_of_linear_layers() {
    let attend = |t: &TowerContext, x: &Tensor| {
        let layer = MultiHeadAttention::new(1).init(Init::Identity);
        layer.apply(t, "attention", &x.expand_dims(1)).squeeze(1)
    };
    let expected = run(attend);
    let found = run(|t, x| t.argscope(|fc: Linear| fc.relu().no_bias(), |t| attend(t, x)));
    assert!(expected.iter().any(|y| *y < 0.0), "{expected:?}");
    assert_eq!(found, expected);
}

#[test]
fn batch_norm_takes_momentum_and_epsilon_of_the_scope() {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(1)]));
    let t = TowerContext::training(&graph);
    let y = t.argscope(
        |norm: BatchNorm| norm.momentum(0.25).epsilon(3.0).no_scale(),
        |t| BatchNorm::new().apply(t, "norm", &x),
    );
    let updates = graph.collection_ops(tensorpack::graph::UPDATE_OPS);
    let all = graph.group(&updates.iter().collect::<Vec<_>>());
    assert!(graph.variable_named("norm/gamma").is_none());
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let fed = HostTensor::new([2, 1], vec![1.0f32, 3.0]).unwrap();
    let found = session.run(&[&y, &all], &[("x", &fed)]).unwrap();
    assert_eq!(found[0].as_slice::<f32>().unwrap(), [-0.5, 0.5]);
    assert_eq!(session.read("norm/mean/EMA").unwrap().as_slice::<f32>().unwrap(), [1.5]);
}

#[test]
fn what_a_layer_is_created_with_has_no_default() {
    let graph = Graph::new();
    TowerContext::training(&graph).argscope(|conv: Conv2d| conv.kernel(3, 1), |_| ());
    let e = graph.freeze().unwrap_err();
    assert!(e.message().contains("the kernel") && e.to_string().contains("argscope.rs"), "{e}");
}

#[test]
fn chained_layers_are_the_layers_themselves() {
    let y = run(|t, x| {
        let scale = |_: &TowerContext, _: &str, x: &Tensor| x * 2.0;
        let chained = LinearWrap::new(t, x)
            .layer("fc", identity(Linear::new(2)).relu())
            .apply(|x| x + 1.0)
            .layer("double", scale)
            .tensor();
        assert!(t.graph().variable_named("fc/W").is_some());
        chained
    });
    assert_eq!(y, [4.0, 2.0, 8.0, 2.0]);
}

/// Returns the regularization losses of two towers with a shared and a frozen layer.
fn tower_losses(mode: Mode) -> Vec<f32> {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [Some(2), Some(2)]));
    let losses: Vec<Tensor> = (0..2)
        .map(|index| {
            let t = TowerContext::new(&graph, mode, index, 2);
            t.build(|t| {
                let fc = Linear::new(2).init(Init::Constant(3.0)).regularizer(l2_regularizer(0.5));
                t.auto_reuse(|t| fc.apply(t, "second", &fc.apply(t, "first", &x)));
                t.reuse(|t| fc.apply(t, "first", &x));
                t.freeze_variables(|t| fc.apply(t, "frozen", &x));
                regularize_cost_from_collection(t)
            })
        })
        .collect();
    let recorded = graph.collection(REGULARIZATION_LOSSES).tensors.len();
    assert_eq!(recorded, if mode == Mode::Training { 4 } else { 0 });
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let fetched = session.run(&[&losses[0], &losses[1]], &[]).unwrap();
    fetched.iter().map(|loss| loss.as_slice::<f32>().unwrap()[0]).collect()
}

#[test]
fn every_tower_has_the_losses_of_its_own_layers_once() {
    // Two layers of four weights: 0.25 * 9 for each weight.
    assert_eq!(tower_losses(Mode::Training), [18.0, 18.0]);
    assert_eq!(tower_losses(Mode::Inference), [0.0, 0.0]);
}
