//! Moving averages with a decay of their own, and summaries of activations.

use tensorpack::dataflow::{DataFlow, FromFn};
use tensorpack::prelude::*;

/// A model of one value per step: 1, 2, 3 and so on.
struct Watched;

#[derive(Inputs)]
struct Batch {
    #[input(f32, [None, 4])]
    x: Tensor,
}

impl Model for Watched {
    type Inputs = Batch;

    fn build_graph(&self, t: &TowerContext, Batch { x }: Batch) -> Tensor {
        let value = x.mean();
        let (last, slow) = (value.clone() * 1.0, &value * 1.0 + 0.0);
        t.moving_summary(&[&value.named("usual")]);
        t.moving_summary_with_decay(0.0, &[&last.named("last")]);
        t.moving_summary_with_decay(0.5, &[&slow.named("half")]);
        let hidden = (x - 3.0).relu().named("hidden");
        t.activation_summary(&[&hidden]);
        t.activation_summary(&[&hidden]);
        (Linear::new(1).apply(t, "fc", &hidden).square().mean() + value * 0.0).named("cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(0.0).boxed()
    }
}

fn data() -> impl DataFlow {
    // The mean of sample i is i + 1; its elements are i, i, i + 1 and i + 3.
    FromFn::new(4, |i| {
        let x = i as f32;
        Ok(vec![HostTensor::new([4], vec![x, x, x + 1.0, x + 3.0])?])
    })
}

#[test]
fn averages_have_their_own_decay() {
    for towers in [1, 2] {
        let config = TrainConfig::new(Watched, data().batch(1)).no_logdir().steps_per_epoch(2).max_epoch(1);
        let trained = match towers {
            1 => launch_train_with_config(config, SimpleTrainer::new()),
            _ => launch_train_with_config(config, SyncMultiGpuTrainerReplicated::new(2)),
        };
        let latest = |name: &str| {
            let monitors = &trained.as_ref().unwrap().monitors;
            monitors.latest(name).unwrap_or_else(|| panic!("no statistic {name}"))
        };
        // The first tower sees the means 1 and 2, or with two towers 1 and 3.
        let second = towers as f64 + 1.0;
        assert_eq!(latest("last"), second);
        assert!((latest("half") - (1.0 + 2.0 * second) / 3.0).abs() < 1e-6);
        assert!((latest("usual") - (0.95 + second) / 1.95).abs() < 1e-6);
        // The last batch is 1, 1, 2, 4, or 2, 2, 3, 5; below 3 nothing is active.
        let (sparsity, square) = if towers == 1 { (0.75, 1.0) } else { (0.75, 4.0) };
        assert_eq!(latest("activation-summary/hidden-sparsity"), sparsity);
        assert_eq!(latest("activation-summary/hidden-rms"), (square / 4.0f64).sqrt());
    }
}

#[test]
fn a_decay_of_one_is_an_error_and_so_is_the_summary_of_a_scalar() {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", []));
    TowerContext::training(&graph).moving_summary_with_decay(1.0, &[&x]);
    let e = graph.freeze().unwrap_err();
    assert!(e.message().contains("below 1, not 1") && e.to_string().contains("summaries.rs"), "{e}");

    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", []));
    TowerContext::training(&graph).activation_summary(&[&x]);
    let e = graph.freeze().unwrap_err();
    assert!(e.message().contains("not an activation"), "{e}");
}

#[test]
fn outputs_of_one_operation_have_names_of_their_own() {
    let build = |name: Option<&str>| {
        let graph = Graph::new();
        let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(4)]));
        let (mean, mut variance) = x.moments(&[0]);
        if let Some(name) = name {
            variance = variance.named(name);
            assert_eq!(variance.name(), name);
        }
        TowerContext::training(&graph).activation_summary(&[&mean, &variance]);
        graph.freeze()
    };
    build(Some("variance")).unwrap().fetch("activation-summary/variance-rms").unwrap();
    let e = build(None).unwrap_err();
    assert!(e.message().contains("another activation") && e.to_string().contains("`named`"), "{e}");
}

#[test]
fn an_activation_of_another_graph_is_an_error() {
    let [graph, other] = [Graph::new(), Graph::new()];
    let [x, y] = [&graph, &other].map(|graph| graph.placeholder(&TensorSpec::f32("x", [None])));
    let t = TowerContext::training(&graph);
    t.activation_summary(&[&x]);
    t.activation_summary(&[&y]);
    assert!(graph.freeze().unwrap_err().message().contains("another graph"));
}
