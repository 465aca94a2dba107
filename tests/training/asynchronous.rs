//! Asynchronous training: towers update shared variables without waiting for each other.

use crate::counted_updates::{Count, MakeOptimizer, ones};
use crate::models::{Line, line};
use crate::processes;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tensorpack::ErrorKind;
use tensorpack::callback::TrainCx;
use tensorpack::dataflow::{DataFlow, FromFn};
use tensorpack::graph::{OpDef, Spec};
use tensorpack::input::TensorInput;
use tensorpack::io::Checkpoint;
use tensorpack::kir::{CustomKernel, LowerCx, View};
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack::train::{NanPolicy, SingleCostTrainer, Trained};

/// A net with everything that has state or draws random numbers.
struct Net(MakeOptimizer);

impl ModelDesc for Net {
    fn inputs(&self) -> Vec<TensorSpec> {
        Line.inputs()
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let x = Linear::new(16).apply(t, "fc0", &inputs[0]);
        let x = BatchNorm::new().relu().apply(t, "bn", &x);
        let x = Dropout::new(0.25).apply(t, "dropout", &x);
        let out = Linear::new(1).apply(t, "fc1", &x);
        let cost = (out - &inputs[1]).square().mean().named("cost");
        t.moving_summary(&[&cost]);
        cost + regularize_cost(t, "fc.*/W", l2_regularizer(1e-3))
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        (self.0)()
    }
}

fn variables(trained: &Trained) -> Vec<(String, HostTensor)> {
    let names = trained.session.graph().variables().iter().map(|v| v.name.clone());
    names.map(|n| (n.clone(), trained.session.read(&n).unwrap())).collect()
}

#[test]
fn one_tower_is_bit_identical_to_the_simple_trainer() {
    let optimizers: [(&str, MakeOptimizer); 7] = [
        ("sgd", || Sgd::new(Schedule::exponential(0.1, 0.5, 10)).boxed()),
        ("momentum", || Momentum::new(0.05, 0.9).nesterov().boxed()),
        ("adam", || Adam::new(0.01).boxed()),
        ("lamb", || Lamb::new(0.01).boxed()),
        ("clipping", || Sgd::new(0.1).process(GlobalNormClip::new(0.5)).boxed()),
        ("accumulation", || Accumulate::new(Adam::new(0.01), 3).boxed()),
        ("averages", || Ema::new(RmsProp::new(0.01), 0.9).boxed()),
    ];
    for (name, optimizer) in optimizers {
        let train = |trainer: SingleCostTrainer| {
            let config =
                TrainConfig::new(Net(optimizer), line(9)).steps_per_epoch(7).max_epoch(3).no_logdir();
            launch_train_with_config(config, trainer).unwrap()
        };
        let (simple, alone) =
            (train(SimpleTrainer::new().into()), train(AsyncMultiGpuTrainer::new(1).into()));
        for ((variable, a), (_, b)) in variables(&simple).iter().zip(&variables(&alone)) {
            assert_eq!(a.as_bytes(), b.as_bytes(), "{name}: {variable}");
        }
        assert_eq!(simple.monitors.latest("cost"), alone.monitors.latest("cost"), "{name}");
        assert_eq!(simple.session.run_index().unwrap(), alone.session.run_index().unwrap(), "{name}");
        assert_eq!(alone.monitors.latest("staleness/max"), Some(0.0), "{name}");
    }
}

#[test]
fn several_towers_converge() {
    for towers in [2, 4] {
        let config = TrainConfig::new(Line, line(40)).steps_per_epoch(300).max_epoch(4).no_logdir();
        let trained = launch_train_with_config(config, AsyncMultiGpuTrainer::new(towers)).unwrap();
        let w = trained.session.read("fc/W").unwrap().to_f64_vec();
        for (found, right) in w.iter().zip([1.0, -2.0, 0.5]) {
            assert!((found - right).abs() < 1e-3, "{towers} towers: {w:?}");
        }
    }
}

/// For any interleaving, each tower reads the latest optimizer state, and no update is overwritten.
#[test]
fn no_update_is_lost() {
    const STEPS: u64 = 200;
    let train = |optimizer: MakeOptimizer, trainer: AsyncMultiGpuTrainer| {
        let config =
            TrainConfig::new(Count(optimizer), ones()).steps_per_epoch(STEPS).max_epoch(1).no_logdir();
        launch_train_with_config(config, trainer).unwrap()
    };
    let read = |t: &Trained, name: &str| t.session.read(name).unwrap().to_f64_vec();
    for towers in [2usize, 4] {
        let all = (STEPS * towers as u64) as f64;
        let sgd: MakeOptimizer = || Sgd::new(1.0).boxed();
        let trained = train(sgd, AsyncMultiGpuTrainer::new(towers).no_gradient_scaling());
        assert_eq!(read(&trained, "w"), vec![-all; 257], "{towers} towers");
        // Scaled gradients: the updates of all towers add up to one update of a single tower.
        let trained = train(sgd, AsyncMultiGpuTrainer::new(towers));
        assert_eq!(read(&trained, "w"), vec![-(STEPS as f64); 257], "{towers} towers");
        // Operations of callbacks run with the first tower.
        assert_eq!(read(&trained, "seen"), [STEPS as f64]);

        let trained = train(|| Adam::new(0.01).boxed(), AsyncMultiGpuTrainer::new(towers));
        let power = read(&trained, "adam_beta2_power")[0];
        assert!((power.ln() / 0.999f64.ln() - (all + 1.0)).abs() < 1e-6, "{towers} towers: {power}");

        let trained = train(
            || Accumulate::new(Sgd::new(1.0), 5).boxed(),
            AsyncMultiGpuTrainer::new(towers).no_gradient_scaling(),
        );
        assert_eq!(read(&trained, "w"), vec![-all / 5.0; 257], "{towers} towers");
        assert_eq!(read(&trained, "accumulated_steps"), [0.0]);
    }
}

/// Reads all variables twice, with a pause in between.
struct ReadTwice {
    names: Vec<&'static str>,
    looked: Arc<Mutex<u64>>,
}

impl ReadTwice {
    fn check(&self, cx: &TrainCx<'_>) -> Result<()> {
        let read = || self.names.iter().map(|n| cx.session().read(n)).collect::<Result<Vec<_>>>();
        let before = read()?;
        std::thread::sleep(Duration::from_millis(2));
        assert!(before == read()?, "a variable changed while a callback ran");
        *self.looked.lock().unwrap() += 1;
        Ok(())
    }
}

impl Callback for ReadTwice {
    fn before_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.check(cx)
    }
    fn after_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.check(cx)
    }
    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.check(cx)
    }
    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        // At the end of an epoch all towers have finished their steps.
        let w = cx.session().read("w")?.to_f64_vec()[0];
        assert_eq!(w, -((cx.epoch_num * cx.steps_per_epoch) as f64));
        self.check(cx)
    }
}

#[test]
fn no_update_happens_while_callbacks_run() {
    let looked = Arc::new(Mutex::new(0));
    let twice = ReadTwice { names: vec!["w", "seen"], looked: looked.clone() };
    let config = TrainConfig::new(Count(|| Sgd::new(1.0).boxed()), ones())
        .callback(twice)
        .steps_per_epoch(30)
        .max_epoch(3)
        .no_logdir();
    launch_train_with_config(config, AsyncMultiGpuTrainer::new(4)).unwrap();
    assert_eq!(*looked.lock().unwrap(), 3 * (30 + 3));
}

#[test]
fn staleness_is_a_timing_statistic() {
    let dir = tempfile::tempdir().unwrap();
    let config = TrainConfig::new(Line, line(8)).logdir(dir.path()).steps_per_epoch(20).max_epoch(2);
    let trained = launch_train_with_config(config, AsyncMultiGpuTrainer::new(3)).unwrap();
    let (mean, most) = (trained.monitors.latest("staleness/mean"), trained.monitors.latest("staleness/max"));
    // The two other towers apply 20 updates each.
    assert!(mean <= most && most <= Some(40.0), "{mean:?} {most:?}");
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    assert_eq!(read("timing.jsonl").matches("staleness/mean").count(), 2);
    assert!(!read("stats.jsonl").contains("staleness"));
}

/// The behavior of a kernel on a marked batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fault {
    Fails,
    Panics,
    Stalls,
}

impl OpDef for Fault {
    fn name(&self) -> &str {
        "Fault"
    }
    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }
    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        Ok(cx.custom(Arc::new(*self)))
    }
}

impl CustomKernel for Fault {
    fn run(&self, inputs: &[HostTensor], outputs: &mut [HostTensor]) -> Result<()> {
        outputs[0].copy_from_bytes(inputs[0].as_bytes())?;
        if inputs[0].to_f64_vec()[0] < 100.0 {
            return Ok(());
        }
        match self {
            Fault::Fails => Err(Error::argument("the sensor is unplugged")),
            Fault::Panics => panic!("the sensor is on fire"),
            Fault::Stalls => {
                std::thread::sleep(Duration::from_secs(3600));
                Ok(())
            }
        }
    }
}

struct FaultyModel(Fault);

impl ModelDesc for FaultyModel {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let w = t.variable(VariableSpec::new("w", []).init(Init::zeros()));
        let x = Tensor::apply_one(self.0, &[&inputs[0]]);
        (w.value() * x).mean().named("cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(0.1).boxed()
    }
}

/// Returns batches; number `bad` is marked.
fn marked(bad: u64) -> impl DataFlow {
    FromFn::new(1000, move |i| Ok(vec![HostTensor::new([1], vec![if i == bad { 100f32 } else { 1.0 }])?]))
}

fn train_with_fault(fault: Fault, bad: u64, towers: usize) -> Error {
    let seconds = if fault == Fault::Stalls { 2 } else { 300 };
    let config = TrainConfig::new(FaultyModel(fault), marked(bad))
        .deadline(Duration::from_secs(seconds))
        .steps_per_epoch(50)
        .max_epoch(2)
        .no_logdir();
    launch_train_with_config(config, AsyncMultiGpuTrainer::new(towers)).err().expect("an error")
}

/// The first batches go to the other towers, then one to the first.
#[test]
fn a_failure_in_any_tower_ends_training_with_its_cause() {
    for (bad, tower) in [(0, 1), (1, 2), (2, 0)] {
        let e = train_with_fault(Fault::Fails, bad, 3);
        assert!(e.message().starts_with(&format!("tower {tower}: ")), "{e}");
        assert!(e.message().contains("the sensor is unplugged"), "{e}");
        assert!(e.site().is_some_and(|s| s.file.ends_with("asynchronous.rs")), "{e}");
        let e = train_with_fault(Fault::Panics, bad, 3);
        assert!(e.message().starts_with(&format!("tower {tower}: ")), "{e}");
        assert!(e.message().contains("the sensor is on fire"), "{e}");
    }
    // In the middle of an epoch, in any tower.
    assert!(train_with_fault(Fault::Fails, 77, 2).message().contains("the sensor is unplugged"));
}

#[test]
fn a_tower_that_stalls_is_named_with_its_line() {
    for (bad, tower, towers) in [(0, 1, 2), (1, 0, 2), (3, 0, 1)] {
        let begun = Instant::now();
        let e = train_with_fault(Fault::Stalls, bad, towers);
        assert_eq!(e.kind(), ErrorKind::Deadline, "{e}");
        assert!(e.message().contains(&format!("tower {tower} made no progress for 2 s")), "{e}");
        assert!(e.to_string().contains("executing Fault"), "{e}");
        assert!(e.site().is_some_and(|s| s.file.ends_with("asynchronous.rs")), "{e}");
        assert!(begun.elapsed() >= Duration::from_secs(2));
    }
}

#[test]
fn non_finite_updates_are_not_applied_in_any_tower() {
    // Batches 3 and 10 overflow when squared.
    let data = || {
        FromFn::new(16, |i| {
            let x = if i == 3 || i == 10 { 1e30f32 } else { 1.0 };
            Ok(vec![HostTensor::new([1, 3], vec![x; 3])?, HostTensor::new([1, 1], vec![1f32])?])
        })
    };
    let train = |policy| {
        let config = TrainConfig::new(Line, data()).steps_per_epoch(8).max_epoch(1).no_logdir();
        launch_train_with_config(config.nan_policy(policy), AsyncMultiGpuTrainer::new(2))
    };
    let e = train(NanPolicy::Stop).err().expect("an error");
    assert_eq!(e.kind(), ErrorKind::NotFinite, "{e}");
    assert!(e.message().contains("tower ") && e.site().is_some(), "{e}");
    let trained = train(NanPolicy::Skip(2)).unwrap();
    assert!(trained.session.read("fc/W").unwrap().to_f64_vec().iter().all(|w| w.is_finite()));
}

#[test]
fn inputs_that_towers_cannot_share_are_errors() {
    let input = || TensorInput::new(|t| vec![t.graph().constant(HostTensor::new([1], vec![1f32]).unwrap())]);
    let train = |towers| {
        let config = TrainConfig::with_input(Count(|| Sgd::new(1.0).boxed()), input());
        launch_train_with_config(
            config.steps_per_epoch(2).max_epoch(1).no_logdir(),
            AsyncMultiGpuTrainer::new(towers),
        )
    };
    let e = train(2).err().expect("an error");
    assert!(e.message().contains("computed in the graph"), "{e}");
    train(1).unwrap();
    let e = train(0).err().expect("an error");
    assert!(e.message().contains("at least one device"), "{e}");
}

#[test]
fn a_null_device_shows_the_structure() {
    let config = TrainConfig::new(Line, line(4))
        .session(SessionOptions { device: Device::Null, ..SessionOptions::default() })
        .steps_per_epoch(5)
        .max_epoch(2)
        .no_logdir();
    let trained = launch_train_with_config(config, AsyncMultiGpuTrainer::on([Device::Null; 3])).unwrap();
    assert_eq!(trained.session.run_index().unwrap(), 30);
}

const EPOCHS: u64 = 3;
const STEPS: u64 = 10;

/// Saves during the second epoch, and sends a signal to this process three steps later.
struct Signaled(Option<i32>);

impl Callback for Signaled {
    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if cx.global_step == STEPS + 4 {
            cx.request_save();
        }
        if let Some(signal) = self.0.filter(|_| cx.global_step == STEPS + 7) {
            wait_for_checkpoint(cx.logdir().expect("a log directory"), STEPS + 4);
            // SAFETY: `kill` takes no pointers; this process is a child that exists for this
            // signal.
            unsafe { libc::kill(std::process::id() as i32, signal) };
            // The handler runs asynchronously.
            while cx.check_interrupt().is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }
}

/// Waits until the checkpoint of a step, which is written while training goes on, is the latest.
fn wait_for_checkpoint(dir: &Path, step: u64) {
    let begun = Instant::now();
    let latest = || std::fs::read_to_string(dir.join("checkpoints/latest")).unwrap_or_default();
    while latest().trim() != format!("step-{step:010}") {
        assert!(begun.elapsed() < Duration::from_secs(60), "no checkpoint of step {step} was written");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn resumable(dir: &Path, signal: Option<i32>) -> Trained {
    let config = TrainConfig::new(Count(|| Sgd::new(1.0).boxed()), ones())
        .callback(ModelSaver::new())
        .callback(Signaled(signal))
        .logdir(dir)
        .steps_per_epoch(STEPS)
        .max_epoch(EPOCHS);
    launch_train_with_config(config, AsyncMultiGpuTrainer::new(2)).unwrap()
}

#[test]
fn child_that_is_killed() {
    if let Some(dir) = processes::dir() {
        resumable(&dir, Some(libc::SIGKILL));
    }
}

#[test]
fn child_that_is_terminated() {
    if let Some(dir) = processes::dir() {
        resumable(&dir, Some(libc::SIGTERM));
    }
}

/// Trains in a child that terminates by `signal`, resumes here, and returns the step of the resumed
/// checkpoint.
fn assert_resumes(child: &str, signal: i32) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let output = processes::alone(child, dir.path());
    let text = processes::text(&output);
    assert_eq!(output.status.signal(), Some(signal), "{text}");
    assert!(text.contains("asynchronous training does not resume"), "{text}");
    let latest = std::fs::read_to_string(dir.path().join("checkpoints/latest")).unwrap();
    let checkpoint = Checkpoint::load(dir.path().join("checkpoints").join(latest.trim())).unwrap();
    // All elements were saved after the same number of updates.
    let w = checkpoint.tensors.iter().find(|(name, _)| name == "w").unwrap().1.to_f64_vec();
    assert!(w.iter().all(|x| *x == w[0]), "{w:?}");
    let trained = resumable(dir.path(), None);
    assert_eq!(trained.session.read("seen").unwrap().to_f64_vec(), [(EPOCHS * STEPS) as f64]);
    // After that each tower moves the weight by one half at each remaining step.
    let left = (EPOCHS * STEPS - checkpoint.global_step) as f64;
    assert_eq!(trained.session.read("w").unwrap().to_f64_vec(), vec![w[0] - left; 257]);
    checkpoint.global_step
}

#[test]
fn a_killed_run_resumes_from_its_last_checkpoint() {
    assert_eq!(assert_resumes("asynchronous::child_that_is_killed", libc::SIGKILL), STEPS + 4);
}

#[test]
fn sigterm_saves_first() {
    assert_eq!(assert_resumes("asynchronous::child_that_is_terminated", libc::SIGTERM), STEPS + 7);
}

/// Receives SIGTERM in a child process while it is compiled, which takes a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SlowToCompile;

impl OpDef for SlowToCompile {
    fn name(&self) -> &str {
        "SlowToCompile"
    }
    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }
    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        static ONCE: std::sync::Once = std::sync::Once::new();
        if processes::dir().is_some() {
            // SAFETY: training has installed a handler for this signal.
            ONCE.call_once(|| assert_eq!(unsafe { libc::raise(libc::SIGTERM) }, 0));
            std::thread::sleep(Duration::from_millis(300));
        }
        Ok(vec![cx.input(0)])
    }
}

/// Counts in `w`: every step of a tower adds one half.
struct Compiled;

impl ModelDesc for Compiled {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None])]
    }
    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let w = t.variable(VariableSpec::new("w", []).init(Init::zeros()));
        let x = Tensor::apply_one(SlowToCompile, &[&inputs[0]]);
        (w.value() * x.mean() * -1.0).named("cost")
    }
    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(1.0).boxed()
    }
}

fn compiled(dir: &Path) -> Trained {
    let ones = FromFn::new(100, |_| Ok(vec![HostTensor::new([2], vec![1f32; 2])?]));
    let config = TrainConfig::new(Compiled, ones).steps_per_epoch(3).max_epoch(2).logdir(dir);
    launch_train_with_config(config, AsyncMultiGpuTrainer::new(2)).unwrap()
}

#[test]
fn child_that_is_terminated_while_it_compiles() {
    if let Some(dir) = processes::dir() {
        panic!("training went on: {:?}", compiled(&dir).ended);
    }
}

/// The first step is finished and saved, and the process ends.
#[test]
fn sigterm_during_the_first_compilation_ends_all_towers() {
    let dir = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    let output = processes::alone("asynchronous::child_that_is_terminated_while_it_compiles", dir.path());
    let text = processes::text(&output);
    assert_eq!(output.status.signal(), Some(libc::SIGTERM), "{text}");
    assert!(begun.elapsed() < Duration::from_secs(30), "{text}");
    let latest = std::fs::read_to_string(dir.path().join("checkpoints/latest")).unwrap();
    let checkpoint = Checkpoint::load(dir.path().join("checkpoints").join(latest.trim())).unwrap();
    let w = checkpoint.tensors.iter().find(|(name, _)| name == "w").unwrap().1.to_f64_vec()[0];
    let left = (6 - checkpoint.global_step) as f64;
    assert_eq!(compiled(dir.path()).session.read("w").unwrap().to_f64_vec(), [w + left]);
}
