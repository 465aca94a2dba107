//! Dynamic loss scaling in f16: overflows are skipped and counted, and change nothing else.

use super::overflowing_cost::{OVERFLOWS, cost, optimizer, variables};
use tensorpack::optim::{LOSS_SCALE, SKIPPED_STEPS};
use tensorpack::prelude::*;
use tensorpack::{ErrorKind, Result};

const GOOD_STEPS: &str = "loss_scale/good_steps";

/// The devices to test: the CPU engine, the reference, and XLA's CPU if it is installed.
fn devices() -> Vec<Device> {
    let xla = tensorpack_testing::plugin_for_tests("cpu").map(|_| "xla:cpu:0".parse().unwrap());
    [Device::Cpu(0), Device::Reference].into_iter().chain(xla).collect()
}

struct Model {
    session: Session,
    step: Op,
}

impl Model {
    fn new(device: Device, loss_scale: LossScale) -> Model {
        let graph = Graph::new();
        graph.set_precision(Precision::F16);
        graph.set_loss_scale(loss_scale);
        let x = graph.placeholder(&TensorSpec::f32("x", [Some(2), Some(3)]));
        let cost = TowerContext::training(&graph).build(|t| cost(t, &x));
        let minimized = minimize(&cost, &*optimizer()).unwrap();
        let others = graph.collection_ops(tensorpack::graph::UPDATE_OPS);
        let step = graph.group(&others.iter().chain([&minimized]).collect::<Vec<_>>());
        // On the reference device f16 overflows only where results are rounded.
        let stochastic_rounding = (device == Device::Reference)
            .then_some(tensorpack::runtime::StochasticRounding { bits: 53, seed: 0 });
        let options = SessionOptions { device, stochastic_rounding, ..SessionOptions::default() };
        Model { session: Session::with(graph.freeze().unwrap(), options).unwrap(), step }
    }

    fn run(&self, x: f32) -> Result<()> {
        let x = HostTensor::new([2, 3], vec![x, 0.5, 0.25, 1.0, -0.5, x]).unwrap();
        self.session.run(&[&self.step], &[("x", &x)]).map(|_| ())
    }

    fn read(&self, name: &str) -> f64 {
        self.session.read(name).unwrap().to_scalar().unwrap()
    }

    fn state(&self) -> [f64; 3] {
        [LOSS_SCALE, GOOD_STEPS, SKIPPED_STEPS].map(|name| self.read(name))
    }
}

#[test]
fn an_overflow_halves_the_scale_and_changes_nothing_else() {
    for device in devices() {
        let model = Model::new(device, LossScale::new().initial(1024.0).growth_steps(3));
        assert_eq!(model.state(), [1024.0, 0.0, 0.0], "{device}");
        model.run(1.0).unwrap();
        model.run(2.0).unwrap();
        assert_eq!(model.state(), [1024.0, 2.0, 0.0], "{device}");
        let before = variables(&model.session);
        let e = model.run(OVERFLOWS).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Overflow, "{device}: {e}");
        assert_eq!(model.state(), [512.0, 0.0, 1.0], "{device}");
        let changed = |((name, a), (_, b)): (&(String, HostTensor), &(String, HostTensor))| {
            (a != b).then(|| name.clone())
        };
        let after = variables(&model.session);
        let changed: Vec<String> = before.iter().zip(&after).filter_map(changed).collect();
        assert_eq!(changed, [LOSS_SCALE, GOOD_STEPS, SKIPPED_STEPS], "{device}");
        // Three good steps in a row, and the scale doubles again.
        for scale in [512.0, 512.0, 1024.0] {
            model.run(1.0).unwrap();
            assert_eq!(model.read(LOSS_SCALE), scale, "{device}");
        }
        assert_eq!(model.state(), [1024.0, 0.0, 1.0], "{device}");
        assert_ne!(variables(&model.session)[0], after[0], "{device}");
    }
}

#[test]
fn an_overflow_at_the_smallest_scale_is_an_error() {
    for device in devices() {
        let model = Model::new(device, LossScale::new().initial(8.0).smallest(4.0));
        assert_eq!(model.run(OVERFLOWS).unwrap_err().kind(), ErrorKind::Overflow, "{device}");
        let before = variables(&model.session);
        let e = model.run(OVERFLOWS).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFinite, "{device}: {e}");
        assert!(
            e.to_string().contains("smallest") && e.to_string().contains("overflowing_cost.rs"),
            "{device}: {e}"
        );
        assert_eq!(variables(&model.session), before, "{device}");
    }
}

#[test]
fn the_scale_stays_within_its_bounds() {
    for device in devices() {
        let model = Model::new(device, LossScale::new().initial(2.0).growth_steps(1).largest(8.0));
        let scales: Vec<f64> = (0..4)
            .map(|_| {
                model.run(1.0).unwrap();
                model.read(LOSS_SCALE)
            })
            .collect();
        assert_eq!(scales, [4.0, 8.0, 8.0, 8.0], "{device}");
    }
}

#[test]
fn settings_that_are_not_valid_are_errors() {
    let new = LossScale::new;
    for bad in [
        new().initial(1000.0),
        new().initial(0.0),
        new().smallest(f64::NAN),
        new().initial(2.0).smallest(4.0),
        new().largest(4.0),
        new().growth_steps(0),
    ] {
        let graph = Graph::new();
        graph.set_precision(Precision::F16);
        graph.set_loss_scale(bad);
        let w = TowerContext::training(&graph).variable(VariableSpec::new("w", []));
        let e = minimize(&w.value().square(), &Sgd::new(0.1)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Argument, "{bad:?}: {e}");
        assert!(e.message().contains("loss scale"), "{e}");
    }
}

/// A generator and a discriminator, say, in one run.
#[test]
fn a_run_with_two_optimizers_is_one_step() {
    let graph = Graph::new();
    graph.set_precision(Precision::F16);
    graph.set_loss_scale(LossScale::new().initial(4.0).growth_steps(6));
    let t = TowerContext::training(&graph);
    let steps = ["a", "b"].map(|name| {
        let w = t.variable(VariableSpec::new(name, []).init(tensorpack::graph::Init::Constant(1.0)));
        let gradients = tensorpack::optim::compute_gradients_of(&w.value().square(), name).unwrap();
        tensorpack::optim::apply_gradients(&Sgd::new(0.1), &graph, &gradients).unwrap()
    });
    let both = graph.group(&[&steps[0], &steps[1]]);
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let read = |name: &str| session.read(name).unwrap().to_scalar().unwrap();
    for step in 1..6 {
        session.run(&[&both], &[]).unwrap();
        assert_eq!((read(GOOD_STEPS), read(LOSS_SCALE)), (f64::from(step), 4.0));
    }
    // One of them alone is a step, too.
    session.run(&[&steps[1]], &[]).unwrap();
    assert_eq!((read(GOOD_STEPS), read(LOSS_SCALE)), (0.0, 8.0));
    assert!(read("a") > read("b"));
}
