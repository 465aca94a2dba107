//! Engines that a program registers itself.

use std::sync::atomic::{AtomicUsize, Ordering};
use tensorpack::ErrorKind;
use tensorpack::callback::TrainCx;
use tensorpack::graph::{Frozen, VariableInfo};
use tensorpack::prelude::*;
use tensorpack::runtime::{
    Engine, Executable, Executor, Feed, RunInfo, SavedValue, Source, Turns, engines, register_engine,
};

/// Forwards to the reference engine and counts the calls.
struct Counting {
    name: &'static str,
    counts: &'static Counts,
}

struct Counts {
    compiled: AtomicUsize,
    /// Variables that were read to the host, or saved.
    read: AtomicUsize,
    saved: AtomicUsize,
    /// Saved values that were read to the host.
    saved_read: AtomicUsize,
}

impl Counts {
    const fn new() -> Counts {
        let [compiled, read, saved, saved_read] = [const { AtomicUsize::new(0) }; 4];
        Counts { compiled, read, saved, saved_read }
    }
}

fn add(count: &AtomicUsize) {
    count.fetch_add(1, Ordering::Relaxed);
}

fn get(count: &AtomicUsize) -> usize {
    count.load(Ordering::Relaxed)
}

static COUNTED: Counts = Counts::new();
static COUNTING: Counting = Counting { name: "counting", counts: &COUNTED };
static SAVED: Counts = Counts::new();
static SAVING: Counting = Counting { name: "saving", counts: &SAVED };

impl Engine for Counting {
    fn name(&self) -> &'static str {
        self.name
    }

    fn description(&self) -> String {
        "the reference engine, counting calls".into()
    }

    fn check_towers(&self, devices: &[Device]) -> Result<()> {
        match devices.len() {
            1 | 2 => Ok(()),
            n => Err(Error::argument(format!("counting has 2 devices, not {n}"))),
        }
    }

    fn create(&self, graph: &Frozen, options: &SessionOptions, turns: &Turns) -> Result<Box<dyn Executor>> {
        let options = SessionOptions { device: Device::Reference, ..options.clone() };
        let executor = options.device.engine()?.create(graph, &options, turns)?;
        Ok(Box::new(CountingExecutor { executor, counts: self.counts }))
    }
}

struct CountingExecutor {
    executor: Box<dyn Executor>,
    counts: &'static Counts,
}

impl Executor for CountingExecutor {
    fn create_variables(&mut self, variables: &[VariableInfo], seed: u64) -> Result<()> {
        self.executor.create_variables(variables, seed)
    }

    fn read(&self, index: usize) -> Result<HostTensor> {
        add(&self.counts.read);
        self.executor.read(index)
    }

    fn save(&self, index: usize) -> Result<Box<dyn SavedValue>> {
        add(&self.counts.saved);
        Ok(Box::new(CountingValue { value: self.executor.save(index)?, counts: self.counts }))
    }

    fn write(&mut self, index: usize, value: &HostTensor) -> Result<()> {
        self.executor.write(index, value)
    }

    fn compile(&mut self, source: &Source<'_>) -> Result<Box<dyn Executable>> {
        add(&self.counts.compiled);
        self.executor.compile(source)
    }

    fn find_non_finite(
        &mut self,
        source: &Source<'_>,
        run: &RunInfo,
        feeds: &[Feed<'_>],
    ) -> Result<Option<Error>> {
        self.executor.find_non_finite(source, run, feeds)
    }
}

struct CountingValue {
    value: Box<dyn SavedValue>,
    counts: &'static Counts,
}

impl SavedValue for CountingValue {
    fn read(&self) -> Result<HostTensor> {
        add(&self.counts.saved_read);
        self.value.read()
    }
}

struct Line;

impl ModelDesc for Line {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None, Some(1)])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        Linear::new(1).apply(t, "fc", &inputs[0]).square().mean()
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn tensorpack::optim::Optimizer> {
        Sgd::new(0.1).boxed()
    }
}

fn config() -> TrainConfig {
    let batch = || HostTensor::new([2, 1], vec![1f32, 2.0]);
    TrainConfig::new(Line, tensorpack::dataflow::FromFn::new(10, move |_| Ok(vec![batch()?])))
        .steps_per_epoch(2)
        .max_epoch(1)
}

/// A registered engine is parsed by name, runs sessions and trainers, checks device lists, and is
/// refused where it lacks support.
#[test]
fn a_registered_engine_is_used_like_a_built_in_one() {
    assert!("counting:1".parse::<Device>().is_err());
    register_engine(&COUNTING).unwrap();
    assert_eq!(register_engine(&COUNTING).unwrap_err().kind(), ErrorKind::Name);
    assert!(engines().iter().any(|engine| engine.name() == "counting"));
    let device: Device = "counting:1".parse().unwrap();
    assert_eq!(
        (device, device.to_string()),
        (Device::Other { engine: "counting", index: 1 }, "counting:1".into())
    );

    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [Some(2)]));
    let y = x.square();
    let options = SessionOptions { device, ..SessionOptions::default() };
    let session = Session::with(graph.freeze().unwrap(), options).unwrap();
    let y = session.run(&[&y], &[("x", &HostTensor::new([2], vec![2f32, 3.0]).unwrap())]).unwrap();
    assert_eq!(y[0].as_slice::<f32>().unwrap(), [4.0, 9.0]);
    assert_eq!(get(&COUNTED.compiled), 1);
    assert!(format!("{session:?}").contains("counting:1"));

    let at = |index| Device::Other { engine: "counting", index };
    let trained =
        launch_train_with_config(config().no_logdir(), SyncMultiGpuTrainer::on([at(0), at(1)])).unwrap();
    assert_eq!(trained.session.run_index().unwrap(), 2);
    assert!(get(&COUNTED.compiled) > 1, "the trainer used another engine");
    let e = launch_train_with_config(config().no_logdir(), SyncMultiGpuTrainer::on([0, 1, 2].map(at)))
        .err()
        .unwrap();
    assert!(e.message().contains("counting has 2 devices"), "{e}");
    let e = launch_train_with_config(config().no_logdir(), SyncMultiGpuTrainer::on([at(0), Device::Cpu(0)]))
        .err()
        .unwrap();
    assert!(e.message().contains("tower 1 cannot run on cpu:0"), "{e}");
    let e = launch_train_with_config(config().no_logdir(), AsyncMultiGpuTrainer::on([at(0)])).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    assert!(e.message().contains("counting:0"), "{e}");
}

/// Writes a variable at the epoch boundary, twice.
struct WritesAtTheBoundary;

impl Callback for WritesAtTheBoundary {
    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let before = (get(&SAVED.read), get(&SAVED.saved));
        for value in [1f32, 2.0] {
            cx.session().write("fc/b", &HostTensor::new([1], vec![value])?)?;
        }
        assert_eq!((get(&SAVED.read), get(&SAVED.saved)), (before.0, before.1 + 1));
        Ok(())
    }
}

/// The state before an epoch boundary can still be saved during it, but a variable that the boundary
/// changes is read to the host only if that happens.
#[test]
fn a_boundary_saves_the_variables_it_changes_without_reading_them() {
    register_engine(&SAVING).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let options = SessionOptions { device: "saving".parse().unwrap(), ..SessionOptions::default() };
    let config = config().session(options).callback(WritesAtTheBoundary).max_epoch(3).logdir(dir.path());
    launch_train_with_config(config, SimpleTrainer::new()).unwrap();
    assert!(get(&SAVED.saved) >= 3, "nothing was saved");
    assert_eq!(get(&SAVED.saved_read), 0);
}
