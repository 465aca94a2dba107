//! Asynchronous training on XLA devices: each tower computes on its own device and on a snapshot of
//! the variables, and updates them in turn.

use crate::compile::latest;
use crate::counted_updates::{Count, MakeOptimizer, ones};
use crate::{child, device, devices};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tensorpack::ErrorKind;
use tensorpack::callback::TrainCx;
use tensorpack::dataflow::{DataFlow, FromFn};
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;
use tensorpack::train::{NanPolicy, SingleCostTrainer, Trained};

/// A net with everything that has state or draws random numbers.
struct Net(MakeOptimizer);

impl ModelDesc for Net {
    fn inputs(&self) -> Vec<TensorSpec> {
        ["x", "y"].map(|name| TensorSpec::new(name, DType::F64, [None, Some(3)])).into()
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let x = Linear::new(16).no_bias().apply(t, "fc0", &inputs[0]);
        let x = BatchNorm::new().relu().apply(t, "bn", &x);
        let x = Dropout::new(0.25).apply(t, "dropout", &x);
        let cost = (Linear::new(3).apply(t, "fc1", &x) - &inputs[1]).square().mean().named("cost");
        t.moving_summary(&[&cost]);
        cost + regularize_cost(t, "fc.*/W", l2_regularizer(1e-3))
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        (self.0)()
    }
}

fn normal_batches() -> impl DataFlow {
    FromFn::new(1000, |index| {
        let rng = CounterRng::new(4, "examples");
        let part = |stream: u64| {
            let values: Vec<f64> = (0..24).map(|i| rng.normal(stream, index * 24 + i)).collect();
            HostTensor::from_f64(DType::F64, [8, 3], &values)
        };
        Ok(vec![part(0)?, part(1)?])
    })
}

/// One asynchronous tower is never stale: it trains like a synchronous one, with any optimizer.
#[test]
fn one_tower_trains_like_the_simple_trainer() {
    let Some(device) = device() else { return };
    let optimizers: [(&str, MakeOptimizer); 4] = [
        ("adam", || Adam::new(0.01).boxed()),
        ("clipping", || Sgd::new(0.1).process(GlobalNormClip::new(0.5)).boxed()),
        ("accumulation", || Accumulate::new(Momentum::new(0.05, 0.9), 3).boxed()),
        ("averages", || Ema::new(RmsProp::new(0.01), 0.9).boxed()),
    ];
    for (name, optimizer) in optimizers {
        let train = |trainer: SingleCostTrainer| {
            let config = TrainConfig::new(Net(optimizer), normal_batches())
                .session(SessionOptions { device, full_precision: true, ..SessionOptions::default() })
                .steps_per_epoch(6)
                .max_epoch(2)
                .no_logdir();
            launch_train_with_config(config, trainer).unwrap()
        };
        let (simple, alone) =
            (train(SimpleTrainer::new().into()), train(AsyncMultiGpuTrainer::on([device]).into()));
        for v in simple.session.graph().variables() {
            let [a, b] = [&simple, &alone].map(|t| t.session.read(&v.name).unwrap().to_f64_vec());
            let largest = a.iter().fold(1e-30f64, |m, x| m.max(x.abs()));
            let off = a.iter().zip(&b).map(|(a, b)| (a - b).abs() / largest).fold(0.0, f64::max);
            assert!(off <= 1e-9, "{name}: {} differs by {off}", v.name);
        }
        let costs = [&simple, &alone].map(|t| t.monitors.latest("cost").unwrap());
        assert!((costs[0] - costs[1]).abs() <= 1e-9 * costs[0].abs(), "{name}: {costs:?}");
        assert_eq!(simple.session.run_index().unwrap(), alone.session.run_index().unwrap(), "{name}");
        assert_eq!(alone.monitors.latest("staleness/max"), Some(0.0), "{name}");
    }
}

fn sgd() -> Box<dyn Optimizer> {
    Sgd::new(1.0).boxed()
}

/// For any interleaving, each tower reads the latest optimizer state, and no update is overwritten.
#[test]
fn no_update_is_lost() {
    const STEPS: u64 = 40;
    let read = |t: &Trained, name: &str| t.session.read(name).unwrap().to_f64_vec();
    for towers in [2, 3] {
        let Some(devices) = devices(towers) else { return };
        let on = || AsyncMultiGpuTrainer::on(devices.clone());
        let train = |optimizer: MakeOptimizer, trainer: AsyncMultiGpuTrainer| {
            let config =
                TrainConfig::new(Count(optimizer), ones()).steps_per_epoch(STEPS).max_epoch(1).no_logdir();
            launch_train_with_config(config, trainer).unwrap()
        };
        let all = (STEPS * towers as u64) as f64;
        let trained = train(sgd, on().no_gradient_scaling());
        assert_eq!(read(&trained, "w"), vec![-all; 257], "{towers} towers");
        // Operations of callbacks run with the first tower.
        assert_eq!(read(&trained, "seen"), [STEPS as f64]);
        let stale = |name: &str| trained.monitors.latest(&format!("staleness/{name}")).unwrap();
        assert!(stale("mean") <= stale("max") && stale("max") < all, "{towers} towers");

        let trained = train(|| Adam::new(0.01).boxed(), on());
        let power = read(&trained, "adam_beta2_power")[0];
        assert!((power.ln() / 0.999f64.ln() - (all + 1.0)).abs() < 1e-6, "{towers} towers: {power}");

        let trained = train(|| Accumulate::new(Sgd::new(1.0), 5).boxed(), on().no_gradient_scaling());
        assert_eq!(read(&trained, "w"), vec![-all / 5.0; 257], "{towers} towers");
        assert_eq!(read(&trained, "accumulated_steps"), [0.0]);
    }
}

/// The towers of a trainer without devices run on the session's device and those that follow it.
#[test]
fn towers_run_on_the_devices_after_the_session_s() {
    let (Some(device), Some(_)) = (device(), devices(2)) else { return };
    let train = |towers: usize| {
        let config = TrainConfig::new(Count(sgd), ones())
            .session(SessionOptions { device, ..SessionOptions::default() })
            .steps_per_epoch(3)
            .max_epoch(1)
            .no_logdir();
        launch_train_with_config(config, AsyncMultiGpuTrainer::new(towers))
    };
    assert_eq!(train(2).unwrap().session.read("w").unwrap().to_f64_vec(), [-3.0; 257]);
    let e = train(1000).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    assert!(e.message().contains("does not exist"), "{e}");
}

/// Reads all variables twice, with a pause in between.
struct ReadTwice {
    looked: Arc<Mutex<u64>>,
}

impl Callback for ReadTwice {
    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let read = || ["w", "seen"].iter().map(|n| cx.session().read(n)).collect::<Result<Vec<_>>>();
        let before = read()?;
        std::thread::sleep(Duration::from_millis(3));
        assert!(before == read()?, "a variable changed while a callback ran");
        // Updates are atomic.
        let w = before[0].to_f64_vec();
        assert!(w.iter().all(|x| *x == w[0]), "a torn update: {w:?}");
        *self.looked.lock().unwrap() += 1;
        Ok(())
    }

    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        // At the end of an epoch all towers have finished their steps.
        let w = cx.session().read("w")?.to_f64_vec()[0];
        assert_eq!(w, -((cx.epoch_num * cx.steps_per_epoch) as f64));
        Ok(())
    }
}

#[test]
fn no_update_happens_while_callbacks_run() {
    let Some(devices) = devices(4) else { return };
    let looked = Arc::new(Mutex::new(0));
    let config = TrainConfig::new(Count(sgd), ones())
        .callback(ReadTwice { looked: looked.clone() })
        .steps_per_epoch(15)
        .max_epoch(2)
        .no_logdir();
    launch_train_with_config(config, AsyncMultiGpuTrainer::on(devices)).unwrap();
    assert_eq!(*looked.lock().unwrap(), 30);
}

/// The weight, squared, overflows for the marked batches.
struct Overflows;

impl ModelDesc for Overflows {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let w = t.variable(VariableSpec::new("w", []).init(Init::ones()));
        (w.value() * &inputs[0]).square().mean().named("cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(1e-3).boxed()
    }
}

#[test]
fn updates_that_are_not_finite_are_not_applied_in_any_tower() {
    let Some(devices) = devices(2) else { return };
    let train = |policy| {
        let data = FromFn::new(16, |i| {
            let x = if i == 3 || i == 10 { 1e30f32 } else { 1.0 };
            Ok(vec![HostTensor::new([1], vec![x])?])
        });
        let config = TrainConfig::new(Overflows, data).steps_per_epoch(8).max_epoch(1).no_logdir();
        let trainer = AsyncMultiGpuTrainer::on(devices.clone());
        launch_train_with_config(config.nan_policy(policy), trainer)
    };
    let e = train(NanPolicy::Stop).err().expect("an error");
    assert_eq!(e.kind(), ErrorKind::NotFinite, "{e}");
    assert!(e.message().contains("tower "), "{e}");
    assert!(e.site().is_some_and(|s| s.file.ends_with("asynchronous.rs")), "{e}");
    let w = train(NanPolicy::Skip(2)).unwrap().session.read("w").unwrap().to_f64_vec()[0];
    // Fourteen of sixteen updates; stale gradients differ in the last digits.
    assert!((w - (1.0f64 - 1e-3).powi(14)).abs() < 1e-4, "{w}");
}

const DIR: &str = "TENSORPACK_TEST_ASYNCHRONOUS";
const SIGNAL: &str = "TENSORPACK_TEST_SIGNAL";
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
            // It is written while training goes on.
            let latest = cx.logdir().expect("a log directory").join("checkpoints/latest");
            let begun = Instant::now();
            while std::fs::read_to_string(&latest).unwrap_or_default().trim() != "step-0000000014" {
                assert!(begun.elapsed() < Duration::from_secs(60), "no checkpoint was written");
                std::thread::sleep(Duration::from_millis(1));
            }
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

fn resumable(dir: &Path, signal: Option<i32>) -> Option<Trained> {
    let config = TrainConfig::new(Count(sgd), ones())
        .callback(ModelSaver::new())
        .callback(Signaled(signal))
        .logdir(dir)
        .steps_per_epoch(STEPS)
        .max_epoch(EPOCHS);
    Some(launch_train_with_config(config, AsyncMultiGpuTrainer::on(devices(2)?)).unwrap())
}

/// Runs in a child process.
#[test]
fn child_that_is_ended() {
    if let (Some(dir), Ok(signal)) = (std::env::var_os(DIR), std::env::var(SIGNAL)) {
        resumable(Path::new(&dir), Some(signal.parse().unwrap()));
    }
}

/// A process that is killed or terminated resumes from a checkpoint that holds whole updates. Every
/// tower does the remaining steps.
#[test]
fn an_ended_process_resumes() {
    if devices(2).is_none() {
        return;
    }
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        let dir = tempfile::tempdir().unwrap();
        let mut command = child("asynchronous::child_that_is_ended");
        let output = command.env(DIR, dir.path()).env(SIGNAL, signal.to_string()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(signal), "{text}");
        let checkpoint = latest(dir.path());
        let step = checkpoint.global_step;
        assert_eq!(step, if signal == libc::SIGKILL { STEPS + 4 } else { STEPS + 7 }, "{text}");
        let w = checkpoint.tensors.iter().find(|(name, _)| name == "w").unwrap().1.to_f64_vec();
        assert!(w.iter().all(|x| *x == w[0]), "{w:?}");
        let Some(trained) = resumable(dir.path(), None) else { return };
        assert_eq!(trained.session.read("seen").unwrap().to_f64_vec(), [(EPOCHS * STEPS) as f64]);
        // Each tower moves the weight by one half at each remaining step.
        let expected = w[0] - (EPOCHS * STEPS - step) as f64;
        assert_eq!(trained.session.read("w").unwrap().to_f64_vec(), vec![expected; 257], "{text}");
    }
}
