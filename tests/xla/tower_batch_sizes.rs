//! Towers with batches of different sizes run programs of their own. What they do together, sums and
//! updates, is one more program.

use crate::{device, devices};
use tensorpack::ErrorKind;
use tensorpack::dataflow::FromList;
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack::runtime::IntoFetch;
use tensorpack::tensor::CounterRng;
use tensorpack::tower::Mode;
use tensorpack::train::NanPolicy;
use tensorpack_testing::assert_mentions;

/// A net with dropout and batch normalization.
#[derive(Clone, Copy, Default)]
struct Net {
    synchronized: bool,
    /// Whether the cost divides by the last column of `x`.
    divides: bool,
}

impl ModelDesc for Net {
    fn inputs(&self) -> Vec<TensorSpec> {
        let spec = |name: &str, columns| TensorSpec::new(name, DType::F64, [None, Some(columns)]);
        // The last input does not change the cost, but makes programs differ.
        vec![spec("x", 4), spec("y", 1), TensorSpec::i32("row", [None]), spec("rest", 1)]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let [x, y, row, rest] = inputs else { panic!("there are four inputs") };
        let table = t.variable(VariableSpec::new("table", [7, 8]).dtype(DType::F64));
        let batch_norm = match self.synchronized {
            true => BatchNorm::new().synchronized(),
            false => BatchNorm::new(),
        };
        let h = batch_norm.apply(
            t,
            "bn",
            &(Linear::new(8).no_bias().apply(t, "fc0", x) + table.value().gather(row, 0)),
        );
        let h = Dropout::new(0.25).apply(t, "dropout", &h.tanh());
        let mut cost = (Linear::new(1).apply(t, "fc1", &h) - y).square().mean() + rest.sum() * 0.0;
        if self.divides {
            cost = &cost / x.slice_axis(1, 3, None).mean();
        }
        let cost = cost.named("cost");
        t.moving_summary(&[&cost]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(0.05).boxed()
    }
}

/// A batch of `rows` examples; `rest` is the size of the last input.
fn batch(index: usize, rows: usize, rest: usize) -> Vec<HostTensor> {
    let rng = CounterRng::new(5, "examples");
    let normal = |stream: u64, sizes: [usize; 2]| {
        let len = (sizes[0] * sizes[1]) as u64;
        let values: Vec<f64> = (0..len).map(|i| rng.normal(stream, index as u64 * 1000 + i)).collect();
        HostTensor::from_f64(DType::F64, sizes, &values).unwrap()
    };
    let rows_of_table = (0..rows).map(|i| ((i * 3 + index) % 7) as i32).collect();
    let row = HostTensor::new([rows], rows_of_table).unwrap();
    vec![normal(0, [rows, 4]), normal(1, [rows, 1]), row, normal(2, [rest, 1])]
}

/// Batches of these sizes.
fn batches(sizes: &[usize]) -> FromList {
    FromList::new(sizes.iter().enumerate().map(|(i, &rows)| batch(i, rows, 2)).collect())
}

fn config(net: Net, data: FromList, steps: u64) -> TrainConfig {
    let options = SessionOptions { full_precision: true, ..SessionOptions::default() };
    TrainConfig::new(net, data).session(options).steps_per_epoch(steps).max_epoch(2).no_logdir()
}

/// Trains on these towers. Returns all variables and the last mean cost.
fn train(config: TrainConfig, trainer: SyncMultiGpuTrainerReplicated) -> (Vec<(String, Vec<f64>)>, f64) {
    let trained = launch_train_with_config(config, trainer).unwrap();
    let session = &trained.session;
    let read = |name: &String| (name.clone(), session.read(name).unwrap().to_f64_vec());
    let names: Vec<String> = session.graph().variables().iter().map(|v| v.name.clone()).collect();
    (names.iter().map(read).collect(), trained.monitors.latest("cost").unwrap())
}

type Trained = (Vec<(String, Vec<f64>)>, f64);

fn assert_close(found: &Trained, right: &Trained) {
    assert_eq!(found.0.len(), right.0.len());
    for ((name, a), (_, b)) in found.0.iter().zip(&right.0) {
        let norm = b.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-30);
        let off = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt() / norm;
        assert!(off <= 1e-9, "{name} differs by {off}");
    }
    assert!((found.1 - right.1).abs() <= 1e-9 * right.1.abs(), "{} {}", found.1, right.1);
}

/// Returns the validation cost of two towers on batches, the last of which is smaller.
fn validated(device: Device) -> f64 {
    let validation = InferenceRunner::new(batches(&[6, 6, 6, 5]), [ScalarStats::new("cost")]).towers(2);
    let config = TrainConfig::new(Net::default(), batches(&[6, 6]))
        .callback(validation)
        .session(SessionOptions { device, full_precision: true, ..SessionOptions::default() })
        .max_epoch(2)
        .no_logdir();
    let trained = launch_train_with_config(config, SimpleTrainer::new()).unwrap();
    trained.monitors.latest("validation_cost").unwrap()
}

#[test]
fn validation_with_different_batch_sizes_agrees_with_the_cpu_engine() {
    let (Some(device), Some(_)) = (device(), devices(2)) else { return };
    let (found, right) = (validated(device), validated(Device::Cpu(0)));
    assert!((found - right).abs() <= 1e-9 * right.abs(), "{found}, on the CPU engine {right}");
}

/// The sizes change from step to step, and are equal in some.
#[test]
fn training_with_different_batch_sizes_agrees_with_the_cpu_engine() {
    let sizes = [6, 5, 4, 4, 3, 7, 5, 6, 6, 6, 2, 3];
    for towers in [2, 3] {
        let Some(devices) = devices(towers) else { return };
        let steps = (sizes.len() / towers) as u64;
        let config = || config(Net::default(), batches(&sizes), steps);
        let on = || SyncMultiGpuTrainerReplicated::on(devices.clone());
        let right = train(config(), SyncMultiGpuTrainerReplicated::new(towers));
        assert_close(&train(config(), on()), &right);
        // The weights of the towers depend on the number of examples in all of them.
        let weighted = train(config(), SyncMultiGpuTrainerReplicated::new(towers).weighted_by_batch());
        assert!(weighted != right, "the weights make no difference");
        assert_close(&train(config(), on().weighted_by_batch()), &weighted);
    }
}

/// Towers whose programs differ, but not what they compute, train like equal towers.
#[test]
fn unlike_towers_train_like_equal_ones() {
    let train = |rest: [usize; 2]| {
        let data = FromList::new((0..6).map(|i| batch(i, 5, rest[i % 2])).collect());
        Some(train(config(Net::default(), data, 3), SyncMultiGpuTrainerReplicated::on(devices(2)?)))
    };
    let Some(right) = train([2, 2]) else { return };
    assert_close(&train([2, 3]).unwrap(), &right);
    assert_close(&train([3, 2]).unwrap(), &right);
}

/// A batch whose cost is infinite, with rows of its own number.
fn infinite(rows: usize) -> Vec<HostTensor> {
    let mut batch = batch(9, rows, 2);
    let mut x = batch[0].to_f64_vec();
    x.iter_mut().skip(3).step_by(4).for_each(|x| *x = 0.0);
    batch[0] = HostTensor::from_f64(DType::F64, [rows, 4], &x).unwrap();
    batch
}

/// If a value is not finite in any tower, no variable changes, on any device: the steps that follow
/// are those of the CPU engine.
#[test]
fn a_step_that_is_not_finite_in_one_tower_changes_nothing() {
    let Some(devices) = devices(2) else { return };
    let net = Net { divides: true, ..Net::default() };
    for bad in [0, 1] {
        let list = |bad: Option<usize>| {
            let batch = |i: usize| match bad {
                Some(at) if i == 2 + at => infinite(5 + i % 2),
                _ => batch(i, 5 + i % 2, 2),
            };
            FromList::new((0..6).map(batch).collect())
        };
        let on = || SyncMultiGpuTrainerReplicated::on(devices.clone());
        let e = launch_train_with_config(config(net, list(Some(bad)), 3), on()).err().unwrap();
        assert_eq!(e.kind(), ErrorKind::NotFinite, "{e}");
        assert_mentions(&e, &["no variable was changed"]);
        assert!(e.site().is_some_and(|s| s.file.ends_with("tower_batch_sizes.rs")), "{e}");
        assert!(e.to_string().contains("tower1") == (bad == 1), "{e}");
        let skips = || config(net, list(Some(bad)), 3).nan_policy(NanPolicy::Skip(10));
        let right = train(skips(), SyncMultiGpuTrainerReplicated::new(2));
        assert_close(&train(skips(), on()), &right);
    }
}

/// An index out of range in any tower is an error that names it.
#[test]
fn a_bad_index_in_one_tower_is_an_error() {
    let Some(devices) = devices(2) else { return };
    let mut list: Vec<_> = (0..2).map(|i| batch(i, 5 + i, 2)).collect();
    list[1][2] = HostTensor::new([6], vec![0, 1, 2, 99, 3, 4]).unwrap();
    let config = config(Net::default(), FromList::new(list), 1);
    let e = launch_train_with_config(config, SyncMultiGpuTrainerReplicated::on(devices)).err().unwrap();
    assert_mentions(&e, &["99"]);
    assert!(e.site().is_some_and(|s| s.file.ends_with("tower_batch_sizes.rs")), "{e}");
}

/// A normalization over all towers would need them to meet in the middle of their programs.
#[test]
fn synchronized_batch_norm_with_different_batch_sizes_is_an_error() {
    let Some(devices) = devices(2) else { return };
    let net = Net { synchronized: true, ..Net::default() };
    let on = || SyncMultiGpuTrainerReplicated::on(devices.clone());
    launch_train_with_config(config(net, batches(&[6, 6]), 1), on()).unwrap();
    let e = launch_train_with_config(config(net, batches(&[6, 5]), 1), on()).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    assert_mentions(&e, &["towers", "sizes", "synchronized batch normalization"]);
    assert!(e.site().is_some_and(|s| s.file.ends_with("tower_batch_sizes.rs")), "{e}");
}

/// Sums of unlike towers are added in the order of the CPU engine, to the bit, and every tower can
/// fetch them and what depends on them.
#[test]
fn sums_of_unlike_towers_have_the_bits_of_the_cpu_engine() {
    const TOWERS: usize = 5;
    let Some(devices) = devices(TOWERS) else { return };
    let feeds: Vec<(String, HostTensor)> = (0..TOWERS)
        .map(|tower| {
            let rng = CounterRng::new(3, "summands");
            let len = 100 + tower;
            let values = (0..len).map(|i| rng.normal(tower as u64, i as u64) as f32).collect();
            (format!("x{tower}"), HostTensor::new([len], values).unwrap())
        })
        .collect();
    let feeds: Vec<(&str, &HostTensor)> = feeds.iter().map(|(name, value)| (&name[..], value)).collect();
    let sums = |device: Device| {
        let graph = Graph::new();
        let mut fetched = Vec::new();
        for tower in 0..TOWERS {
            let t = TowerContext::new(&graph, Mode::Training, tower, TOWERS);
            let x = graph.placeholder(&TensorSpec::f32(format!("x{tower}"), [None]));
            t.build(|t| {
                // Sums that every tower can compute by itself, the second from the first.
                let own = graph.constant(HostTensor::scalar(1.0 + tower as f32));
                let all = t.all_reduce_sum("all", &own);
                let scale = t.all_reduce_sum("scale", &(all * own));
                let sum = t.all_reduce_sum("sum", &(x.slice_axis(0, 0, Some(100)) * scale));
                fetched.extend([&sum - x.slice_axis(0, 0, Some(100)), sum, x.square()]);
            });
        }
        let options = SessionOptions { device, full_precision: true, ..SessionOptions::default() };
        let session = Session::with(graph.freeze().unwrap(), options).unwrap();
        let fetches: Vec<&dyn IntoFetch> = fetched.iter().map(|t| t as &dyn IntoFetch).collect();
        session.run(&fetches, &feeds).unwrap()
    };
    assert!(sums(devices[0]) == sums(Device::Cpu(0)), "the sums differ");
}
