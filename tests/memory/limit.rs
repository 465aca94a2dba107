//! Limits on the planned memory, and the largest batch.

use super::recompute::{Part, deep_net};
use super::{arena_bytes, devices, random};
use tensorpack::ErrorKind;
use tensorpack::prelude::*;
use tensorpack::train::largest_batch;

const WIDTH: usize = 32;

/// Builds a net.
type Net = fn(&TowerContext, &Tensor) -> Tensor;

struct Step {
    session: Session,
    cost: Tensor,
    train: Op,
}

impl Step {
    fn new(device: Device, memory_limit: Option<usize>) -> Step {
        Step::with_net(device, memory_limit, |t, x| deep_net(t, x, Part::Scope))
    }

    fn with_net(device: Device, memory_limit: Option<usize>, net: Net) -> Step {
        let options = SessionOptions { device, memory_limit, ..SessionOptions::default() };
        Step::with_options(options, net)
    }

    fn with_options(options: SessionOptions, net: Net) -> Step {
        let graph = Graph::new();
        let t = TowerContext::training(&graph);
        let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(WIDTH)]));
        let cost = net(&t, &x).square().mean();
        let train = minimize(&cost, &Sgd::new(0.1)).unwrap();
        Step { session: Session::with(graph.freeze().unwrap(), options).unwrap(), cost, train }
    }

    fn planned(&self, batch: usize) -> usize {
        self.session.planned_bytes(&[&self.cost, &self.train], &[("x", DType::F32, &[batch, WIDTH])]).unwrap()
    }

    fn run(&self, batch: usize) -> Result<Vec<HostTensor>> {
        let x = random("x", &[batch, WIDTH]);
        let costs = self.session.run(&[&self.cost, &self.train], &[("x", &x)])?;
        let variables = self.session.graph().variables().iter();
        let values = variables.map(|v| self.session.read(&v.name)).collect::<Result<Vec<_>>>()?;
        Ok([costs, values].concat())
    }
}

/// A step that does not fit computes parts of it again, with the same bits.
#[test]
fn a_step_is_planned_to_fit_into_the_limit() {
    let free = Step::new(Device::default(), None);
    let planned = free.planned(2048);
    let limit = planned / 10 * 7;
    let limited = Step::new(Device::default(), Some(limit));
    assert_eq!(limited.run(2048).unwrap(), free.run(2048).unwrap());
    let x = random("x", &[2048, WIDTH]);
    let plan = limited.session.plan_text(&[&limited.cost, &limited.train], &[("x", &x)]).unwrap();
    assert!(arena_bytes(&plan) <= limit, "{} of {limit} bytes", arena_bytes(&plan));
    // The limit leaves the plan of a small batch alone.
    assert_eq!(limited.planned(16), free.planned(16));
}

/// The note of the error has the size of the smallest plan, which is a limit that works.
#[test]
fn an_impossible_limit_is_an_error_with_the_smallest_plan() {
    let planned = Step::new(Device::default(), None).planned(2048);
    let e = Step::new(Device::default(), Some(planned / 5)).run(2048).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Memory, "{e}");
    let text = e.to_string();
    let at = text.find("the smallest plan").unwrap_or_else(|| panic!("{text}"));
    let size = text[at..].split("takes ").nth(1).and_then(|rest| rest.lines().next()).unwrap();
    let smallest = tensorpack::runtime::parse_bytes(size.trim()).unwrap();
    assert!(smallest > planned / 5 && smallest < planned, "{smallest} of {planned} bytes: {text}");
    // The message is rounded to a tenth of a megabyte.
    Step::new(Device::default(), Some(smallest + 100_000)).run(2048).unwrap();
}

/// The search for a value that is not finite stores every result. The limit must not end it.
#[test]
fn a_limit_does_not_hide_what_is_not_finite() {
    // The cost overflows.
    let net: Net = |t, x| deep_net(t, x, Part::Scope) * 3e30;
    let planned = Step::with_net(Device::default(), None, net).planned(2048);
    let e = Step::with_net(Device::default(), Some(planned / 10 * 7), net).run(2048).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFinite, "{e}");
    assert!(e.to_string().contains("Square"), "{e}");
}

struct NetModel(Net);

impl ModelDesc for NetModel {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None, Some(WIDTH)])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        (self.0)(t, &inputs[0]).square().mean()
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(0.1))
    }
}

fn config(session: SessionOptions, limit: usize, net: Net) -> TrainConfig {
    let flow = tensorpack::dataflow::FromList::new(vec![vec![random("x", &[4, WIDTH])]]);
    TrainConfig::new(NetModel(net), flow).session(session).memory_limit(limit).no_logdir()
}

/// Checks that the batch that is found runs within the limit, and that one more example does not.
fn check_largest_batch(options: &SessionOptions, net: Net, limit: usize) -> usize {
    let batch = largest_batch(config(options.clone(), limit, net), SimpleTrainer::new()).unwrap();
    let limited = SessionOptions { memory_limit: Some(limit), ..options.clone() };
    Step::with_options(limited.clone(), net).run(batch).unwrap();
    let e = Step::with_options(limited, net).run(batch + 1).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Memory, "{}: {e}", options.device);
    batch
}

/// With 16 threads, the scratch memory of 128 examples is larger than that of 300.
#[test]
fn the_largest_batch_is_right_to_one_example() {
    let net: Net = |t, x| deep_net(t, x, Part::Scope);
    for (threads, at_least) in [(2, 361), (16, 300)] {
        let options = SessionOptions { threads: Some(threads), ..SessionOptions::default() };
        let limit = Step::with_options(options.clone(), net).planned(300);
        let batch = check_largest_batch(&options, net, limit);
        // Recomputation makes room for more.
        assert!(batch >= at_least, "{threads} threads: {batch} examples");
    }
}

/// XLA compiles every plan, so the net is small.
#[test]
fn the_largest_batch_is_right_to_one_example_on_xla() {
    let net: Net = |t, x| Linear::new(WIDTH).apply(t, "fc", x).tanh();
    for device in devices().into_iter().filter(|device| *device != Device::default()) {
        let limit = Step::with_net(device, None, net).planned(10);
        let options = SessionOptions { device, ..SessionOptions::default() };
        let batch = check_largest_batch(&options, net, limit);
        assert!(batch >= 10, "{batch} examples");
    }
}

#[test]
fn no_batch_fits_into_a_limit_below_one_example() {
    let net: Net = |t, x| deep_net(t, x, Part::Scope);
    let variables = 16 * (WIDTH * WIDTH + WIDTH) * 4;
    let config = config(SessionOptions::default(), variables + 5000, net);
    let e = largest_batch(config, SimpleTrainer::new()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Memory, "{e}");
    assert!(e.message().contains("one example"), "{e}");
}

/// Batch normalization of features takes no single example, and some models take whole groups only.
#[test]
fn the_largest_batch_is_one_that_the_model_takes() {
    let normalized: Net = |t, x| BatchNorm::new().apply(t, "bn", &Linear::new(WIDTH).apply(t, "fc", x));
    let groups: Net =
        |t, x| BatchNorm::new().virtual_batch_size(4).apply(t, "bn", &Linear::new(WIDTH).apply(t, "fc", x));
    for (net, step) in [(normalized, 1), (groups, 4)] {
        let options = SessionOptions { threads: Some(1), ..SessionOptions::default() };
        // The running statistics are updated with the step, and their updates take memory, too.
        for groups in 20..28 {
            let limit = Step::with_options(options.clone(), net).planned(4 * groups);
            let config = |batch: usize| {
                let flow = tensorpack::dataflow::FromList::new(vec![vec![random("x", &[batch, WIDTH])]]);
                let config = TrainConfig::new(NetModel(net), flow).session(options.clone());
                config.memory_limit(limit).no_logdir().max_epoch(1)
            };
            let batch = largest_batch(config(4), SimpleTrainer::new()).unwrap();
            assert!(batch >= 50 && batch % step == 0, "{batch} examples");
            launch_train_with_config(config(batch), SimpleTrainer::new()).unwrap();
            let e = launch_train_with_config(config(batch + step), SimpleTrainer::new()).err().unwrap();
            assert_eq!(e.kind(), ErrorKind::Memory, "{e}");
        }
    }
    let never: Net = |t, x| Linear::new(WIDTH).apply(t, "fc", x).merge_dims(0, 2).split_dim(0, &[-1, 1009]);
    let config = config(SessionOptions::default(), 1 << 30, never);
    assert_eq!(largest_batch(config, SimpleTrainer::new()).unwrap_err().kind(), ErrorKind::Shape);
}

/// The gradient of a sum is one number, however large the tensor is.
#[test]
fn gradients_of_sums_take_no_memory_of_their_own() {
    let planned = |cost: fn(&Tensor) -> Tensor| {
        let graph = Graph::new();
        let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(8)]));
        let cost = TowerContext::training(&graph).build(|t| cost(&Linear::new(256).apply(t, "fc", &x)));
        let train = minimize(&cost, &Sgd::new(0.1)).unwrap();
        let session = Session::new(graph.freeze().unwrap()).unwrap();
        session.planned_bytes(&[&cost, &train], &[("x", DType::F32, &[512, 8])]).unwrap()
    };
    let limit = planned(|y| (y * y).mean()) + 64;
    assert!(planned(|y| y.square().mean()) <= limit);
    let sum = planned(|y| y.square().sum());
    assert!(sum <= limit, "{sum} bytes, {limit} at most");
}
