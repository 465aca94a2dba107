//! Local variables: every tower has its own, though it shares all others.

use tensorpack::dataflow::FromFn;
use tensorpack::graph::{LOCAL_VARIABLES, TRAINABLE_VARIABLES, UPDATE_OPS};
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack::tower::{Mode, TowerFunc};

fn names(graph: &Graph, key: &str) -> Vec<String> {
    graph.collection(key).variables.iter().map(|&id| graph.variable_info(id).unwrap().name).collect()
}

/// Creates two local variables and a trainable one.
fn two_local(t: &TowerContext) -> [Variable; 3] {
    let zero = |name: &str| VariableSpec::new(name, []).init(Init::zeros());
    [
        t.variable(zero("w")),
        t.variable(zero("sum").local()),
        t.scope("seen", |t| t.variable(zero("last").local())),
    ]
}

#[test]
fn every_tower_has_its_own_local_variables() {
    let graph = Graph::new();
    let towers: Vec<[Variable; 3]> =
        (0..3).map(|i| TowerContext::new(&graph, Mode::Training, i, 3).build(two_local)).collect();
    graph.first_error().unwrap();
    assert_eq!(names(&graph, TRAINABLE_VARIABLES), ["w"]);
    assert_eq!(
        names(&graph, LOCAL_VARIABLES),
        ["sum", "seen/last", "tower1/sum", "tower1/seen/last", "tower2/sum", "tower2/seen/last"]
    );
    // A second use in the same tower shares them.
    let again: Vec<[Variable; 3]> = (0..3)
        .map(|i| TowerContext::new(&graph, Mode::Training, i, 3).build(|t| t.reuse(two_local)))
        .collect();
    for (first, second) in towers.iter().flatten().zip(again.iter().flatten()) {
        assert_eq!(first.name(), second.name());
    }
    assert_eq!(names(&graph, LOCAL_VARIABLES).len(), 6);
    graph.freeze().unwrap();
}

/// In one tower a local variable is created once, like any other.
#[test]
fn a_local_variable_created_twice_in_one_tower_is_an_error() {
    let graph = Graph::new();
    TowerContext::new(&graph, Mode::Training, 0, 2).build(|t| {
        two_local(t);
        t.variable(VariableSpec::new("sum", []).init(Init::zeros()).local());
    });
    assert!(graph.first_error().unwrap_err().message().contains("sum already exists"));
}

/// Counts the examples of each tower, and keeps the last one.
struct Watch;

impl ModelDesc for Watch {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let [w, sum, last] = two_local(t);
        let x = inputs[0].mean();
        t.graph().add_op_to_collection(UPDATE_OPS, &sum.update(|sum| sum + &x));
        t.graph().add_op_to_collection(UPDATE_OPS, &last.assign(&x));
        (w.value() * x).named("cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(1.0).boxed()
    }
}

#[test]
fn towers_update_their_own_local_variables() {
    let data = FromFn::new(6, |i| Ok(vec![HostTensor::new([1], vec![(i + 1) as f32])?]));
    let config = TrainConfig::new(Watch, data).steps_per_epoch(3).max_epoch(1).no_logdir();
    let trained = launch_train_with_config(config, SyncMultiGpuTrainerReplicated::new(2)).unwrap();
    let read = |name: &str| trained.session.read(name).unwrap().to_scalar().unwrap();
    // The first tower reads batches 1, 3, 5; the second one 2, 4, 6.
    assert_eq!((read("sum"), read("seen/last")), (9.0, 5.0));
    assert_eq!((read("tower1/sum"), read("tower1/seen/last")), (12.0, 6.0));
    assert_eq!(read("w"), -(1.5 + 3.5 + 5.5));
}

/// Inference reads the local variables of the first tower.
#[test]
fn inference_creates_no_local_variable() {
    let graph = Graph::new();
    let mut tower = TowerFunc::new(vec![TensorSpec::f32("x", [])], |t, inputs| {
        let [w, sum, last] = two_local(t);
        vec![&inputs[0] + w.value() + sum.value() + last.value()]
    })
    .unwrap();
    for i in 0..2 {
        let x = graph.placeholder(&TensorSpec::f32(format!("x{i}"), []));
        tower.train(&TowerContext::new(&graph, Mode::Training, i, 2), &[x]).unwrap();
    }
    tower.infer_towers(&TowerContext::inference(&graph), "validation", 2).unwrap();
    assert_eq!(names(&graph, LOCAL_VARIABLES).len(), 4);
    graph.freeze().unwrap();
}

/// The local variables of removed towers are dropped; those of new towers are initialized.
#[test]
fn the_number_of_towers_may_change_on_resume() {
    let dir = tempfile::tempdir().unwrap();
    let train = |towers: usize, epochs: u64| {
        let data = FromFn::new(60, |_| Ok(vec![HostTensor::new([1], vec![1f32])?]));
        let config = TrainConfig::new(Watch, data).steps_per_epoch(2).callback(ModelSaver::new());
        let trainer = SyncMultiGpuTrainerReplicated::new(towers);
        launch_train_with_config(config.max_epoch(epochs).logdir(dir.path()), trainer).unwrap()
    };
    for (towers, epochs, sums) in [(2, 1, vec![2.0, 2.0]), (3, 2, vec![4.0, 4.0, 2.0]), (1, 3, vec![6.0])] {
        let trained = train(towers, epochs);
        let name = |i| if i == 0 { "sum".to_string() } else { format!("tower{i}/sum") };
        let found: Vec<f64> =
            (0..towers).map(|i| trained.session.read(&name(i)).unwrap().to_scalar().unwrap()).collect();
        assert_eq!(found, sums, "{towers} towers");
    }
}
