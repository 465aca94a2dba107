//! Engines that a program registers itself.

use std::sync::atomic::{AtomicUsize, Ordering};
use tensorpack::ErrorKind;
use tensorpack::graph::VariableInfo;
use tensorpack::prelude::*;
use tensorpack::runtime::{
    Engine, Executable, Executor, Feed, RunInfo, Source, Turns, engines, register_engine,
};

/// Runs on the reference engine and counts the programs it compiles.
struct Counting {
    compiled: AtomicUsize,
}

static COUNTING: Counting = Counting { compiled: AtomicUsize::new(0) };

impl Engine for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }

    fn description(&self) -> String {
        "the reference engine, counted".into()
    }

    fn shares_variables(&self) -> bool {
        false
    }

    fn check_towers(&self, devices: &[Device]) -> Result<()> {
        match devices.len() {
            1 | 2 => Ok(()),
            n => Err(Error::argument(format!("counting has 2 devices, not {n}"))),
        }
    }

    fn create(&self, options: &SessionOptions, turns: &Turns) -> Result<Box<dyn Executor>> {
        let options = SessionOptions { device: Device::Reference, ..options.clone() };
        Ok(Box::new(CountingExecutor(options.device.engine()?.create(&options, turns)?)))
    }
}

struct CountingExecutor(Box<dyn Executor>);

impl Executor for CountingExecutor {
    fn create_variables(&mut self, variables: &[VariableInfo], seed: u64) -> Result<()> {
        self.0.create_variables(variables, seed)
    }

    fn read(&self, index: usize) -> Result<HostTensor> {
        self.0.read(index)
    }

    fn write(&mut self, index: usize, value: &HostTensor) -> Result<()> {
        self.0.write(index, value)
    }

    fn compile(&mut self, source: &Source<'_>) -> Result<Box<dyn Executable>> {
        COUNTING.compiled.fetch_add(1, Ordering::Relaxed);
        self.0.compile(source)
    }

    fn find_bad(&mut self, source: &Source<'_>, run: &RunInfo, feeds: &[Feed<'_>]) -> Result<Option<Error>> {
        self.0.find_bad(source, run, feeds)
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
        .no_logdir()
}

/// A registered engine is parsed by name, runs sessions and trainers, checks device lists, and is
/// refused where it lacks support.
#[test]
fn a_registered_engine_is_used_like_a_built_in_one() {
    assert!("counting:1".parse::<Device>().is_err());
    register_engine(&COUNTING).unwrap();
    assert_eq!(register_engine(&COUNTING).unwrap_err().kind(), ErrorKind::Name);
    assert_eq!(engines().last().unwrap().name(), "counting");
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
    assert_eq!(COUNTING.compiled.load(Ordering::Relaxed), 1);
    assert!(format!("{session:?}").contains("counting:1"));

    let at = |index| Device::Other { engine: "counting", index };
    let trained = launch_train_with_config(config(), SyncMultiGpuTrainer::on([at(0), at(1)])).unwrap();
    assert_eq!(trained.session.run_index().unwrap(), 2);
    assert!(COUNTING.compiled.load(Ordering::Relaxed) > 1, "the trainer used another engine");
    let e = launch_train_with_config(config(), SyncMultiGpuTrainer::on([0, 1, 2].map(at))).err().unwrap();
    assert!(e.message().contains("counting has 2 devices"), "{e}");
    let e =
        launch_train_with_config(config(), SyncMultiGpuTrainer::on([at(0), Device::Cpu(0)])).err().unwrap();
    assert!(e.message().contains("tower 1 cannot run on cpu:0"), "{e}");
    let e = launch_train_with_config(config(), AsyncMultiGpuTrainer::on([at(0)])).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    assert!(e.message().contains("counting:0"), "{e}");
}
