//! Several steps in one launch: the results are those of one step per launch, and only the time at
//! which callbacks see deferred values differs.

use crate::compile::latest;
use crate::{child, device, devices};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tensorpack::ErrorKind;
use tensorpack::callback::{
    CollectCx, FetchHandle, GraphCx, PeriodicTrigger, RunCx, ScheduledHyperParamSetter, TrainCx,
};
use tensorpack::dataflow::FromFn;
use tensorpack::graph::{Init, VariableSpec};
use tensorpack::optim::{Optimizer, Schedule};
use tensorpack::prelude::*;
use tensorpack::runtime::Cadence;
use tensorpack::tensor::CounterRng;
use tensorpack::train::{
    NanPolicy, QueueInputTrainer, RunConfig, SingleCostTrainer, StepCx, StepsPerLaunch, Trained, Trainer,
};
use tensorpack_testing::assert_mentions;

/// Steps in an epoch: two launches of four, two steps, and the last one, which is run by itself.
const STEPS: u64 = 11;

/// Dropout, batch normalization, a lookup, and a learning rate that depends on the step. In f64,
/// because the compiler may round differently in a loop: XLA's CPU plugin contracts other products
/// and sums into one instruction.
struct Net {
    /// Whether it has convolutions, which take long to compile.
    convolutions: bool,
}

impl ModelDesc for Net {
    fn inputs(&self) -> Vec<TensorSpec> {
        let image = TensorSpec::new("image", DType::F64, [None, Some(6), Some(6), Some(2)]);
        vec![image, TensorSpec::i32("label", [None]), TensorSpec::new("divisor", DType::F64, [])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let x = match self.convolutions {
            true => {
                let x = Conv2d::new(4, 3).no_bias().apply(t, "conv", &inputs[0]);
                BatchNorm::new().relu().apply(t, "bn", &x).max_pool(2).dropout(0.3)
            }
            false => inputs[0].dropout(0.3),
        };
        let prior = Embedding::new(5, 5).dtype(DType::F64).apply(t, "prior", &inputs[1]);
        let logits = Linear::new(5).apply(t, "fc", &x) + prior;
        let cost = logits.sparse_softmax_cross_entropy(&inputs[1]).mean();
        let scale = t.hyper_param("scale", 1.0).value().cast(DType::F64);
        let cost = (cost * scale / &inputs[2]).named("cost");
        t.moving_summary(&[&cost]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(Schedule::exponential(1e-2, 0.5, 3)).boxed()
    }
}

/// Batches of which those with these indices divide by zero, have a label out of range, or have fewer
/// examples.
#[derive(Clone, Copy, Default)]
struct Bad {
    divisors: &'static [u64],
    labels: &'static [u64],
    short: &'static [u64],
}

fn batches(bad: Bad) -> FromFn {
    FromFn::new(1000, move |index| {
        let rng = CounterRng::new(5, "images");
        let rows = if bad.short.contains(&index) { 2 } else { 4 };
        let image = (0..rows * 72).map(|i| rng.normal(index, i)).collect();
        let off = if bad.labels.contains(&index) { 7 } else { 0 };
        let label = (0..rows).map(|i| off + (rng.word(index + 1000, i) % 5) as i32).collect();
        let divisor = if bad.divisors.contains(&index) { 0.0f64 } else { 1.0 };
        let image = HostTensor::new([rows as usize, 6, 6, 2], image)?;
        Ok(vec![image, HostTensor::new([rows as usize], label)?, HostTensor::scalar(divisor)])
    })
}

type Variables = Arc<Mutex<Vec<(String, HostTensor)>>>;

/// Records the variables at the end of training, even after an error.
struct AtTheEnd(Variables);

impl Callback for AtTheEnd {
    fn after_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let session = cx.session();
        let names = session.graph().variables().iter().map(|v| v.name.clone());
        *self.0.lock().unwrap() =
            names.map(|name| Ok((name.clone(), session.read(&name)?))).collect::<Result<_>>()?;
        Ok(())
    }
}

struct Run {
    steps_per_launch: StepsPerLaunch,
    bad: Bad,
    nan: NanPolicy,
    epochs: u64,
    convolutions: bool,
    trainer: fn() -> SingleCostTrainer,
}

impl Run {
    fn new(steps_per_launch: impl Into<StepsPerLaunch>) -> Run {
        let trainer = || QueueInputTrainer::new().into();
        Run {
            steps_per_launch: steps_per_launch.into(),
            bad: Bad::default(),
            nan: NanPolicy::Stop,
            epochs: 2,
            convolutions: false,
            trainer,
        }
    }

    fn train(
        &self,
        device: Device,
        dir: Option<&Path>,
        callbacks: Vec<Box<dyn Callback>>,
    ) -> (Result<Trained>, Vec<(String, HostTensor)>) {
        let variables = Variables::default();
        let config = TrainConfig::new(Net { convolutions: self.convolutions }, batches(self.bad))
            .session(SessionOptions { device, deterministic: true, ..SessionOptions::default() })
            .callback(AtTheEnd(variables.clone()))
            .callbacks(callbacks)
            .nan_policy(self.nan)
            .steps_per_launch(self.steps_per_launch)
            .steps_per_epoch(STEPS)
            .max_epoch(self.epochs);
        let config = match dir {
            Some(dir) => config.callback(ModelSaver::default()).logdir(dir),
            None => config.no_logdir().extra_callbacks(Vec::new()),
        };
        let ended = launch_train_with_config(config, (self.trainer)());
        let variables = variables.lock().unwrap().clone();
        (ended, variables)
    }

    /// Trains in this directory, and returns variables and statistics.
    fn results(&self, device: Device, dir: &Path) -> (Vec<(String, HostTensor)>, String) {
        let (ended, variables) = self.train(device, Some(dir), Vec::new());
        ended.unwrap();
        (variables, std::fs::read_to_string(dir.join("stats.jsonl")).unwrap())
    }
}

#[track_caller]
fn assert_same(found: &[(String, HostTensor)], right: &[(String, HostTensor)]) {
    assert_eq!(found.len(), right.len());
    let different = found.iter().zip(right).filter(|(a, b)| a != b).map(|((name, a), (_, b))| {
        let pairs = a.to_f64_vec().into_iter().zip(b.to_f64_vec());
        let off = pairs.map(|(a, b)| (a - b).abs() / b.abs().max(1e-30)).fold(0.0, f64::max);
        format!("{name} by {off:.1e}")
    });
    let different: Vec<String> = different.collect();
    assert!(different.is_empty(), "variables that differ: {different:?}");
}

/// Checks that variables are equal but for the rounding of another program.
#[track_caller]
fn assert_close(found: &[(String, HostTensor)], right: &[(String, HostTensor)]) {
    assert_eq!(found.len(), right.len());
    for ((name, found), (_, right)) in found.iter().zip(right) {
        let (found, right) = (found.to_f64_vec(), right.to_f64_vec());
        let largest = right.iter().fold(0.0f64, |a, b| a.max(b.abs()));
        let off = found.iter().zip(&right).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(off <= 1e-10 * largest, "{name} differs by {off:e} of {largest:e}");
    }
}

#[test]
fn variables_and_statistics_are_those_of_one_step_per_launch() {
    let Some(device) = device() else { return };
    let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let run = |steps| Run { convolutions: true, ..Run::new(steps) };
    let (right, statistics) = run(1).results(device, dirs[0].path());
    assert_eq!(right.iter().find(|(name, _)| name == "global_step").unwrap().1.to_scalar().unwrap(), 22.0);
    let points = |dir: &Path| {
        let text = std::fs::read_to_string(dir.join("steps.jsonl")).unwrap();
        let step =
            |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["global_step"].as_u64();
        text.lines().filter_map(step).collect::<Vec<_>>()
    };
    assert_eq!(points(dirs[0].path()), (1..=22).collect::<Vec<_>>());
    for (steps, dir) in [4, 64].into_iter().zip(&dirs[1..]) {
        let (found, found_statistics) = run(steps).results(device, dir.path());
        assert_close(&found, &right);
        assert_eq!(points(dir.path()), points(dirs[0].path()));
        let (found, right) = (costs(&found_statistics), costs(&statistics));
        assert_eq!(right.len(), 2);
        assert_eq!(found.len(), 2);
        assert!(found.iter().zip(&right).all(|(a, b)| (a - b).abs() <= 1e-10 * b), "{found:?} {right:?}");
    }
}

/// Returns the costs in `stats.jsonl`.
fn costs(statistics: &str) -> Vec<f64> {
    let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["cost"].as_f64();
    statistics.lines().filter_map(line).collect()
}

/// Arithmetic on small integers and halves, which no program rounds.
struct Exact;

impl ModelDesc for Exact {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None, Some(3)])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let x = inputs[0].dropout(0.5);
        let init = Init::Value(HostTensor::new([3, 1], vec![1.0f32, -2.0, 3.0]).unwrap());
        let w = t.variable(VariableSpec::new("w", [3, 1]).init(init));
        let cost = x.matmul(w.value()).sum().named("cost");
        t.moving_summary(&[&cost]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(0.25).boxed()
    }
}

#[test]
fn what_is_not_rounded_has_the_bits_of_one_step_per_launch() {
    let Some(device) = device() else { return };
    let run = |steps| {
        let notes = Arc::default();
        let data = FromFn::new(1000, |index| {
            Ok(vec![HostTensor::new(
                [2, 3],
                (0..6).map(|i| ((index + i * i) % 5) as f32).collect::<Vec<_>>(),
            )?])
        });
        let config = TrainConfig::new(Exact, data)
            .session(SessionOptions { device, ..SessionOptions::default() })
            .callback(Hooks { cost: None, notes: Arc::clone(&notes) })
            .steps_per_launch(steps)
            .steps_per_epoch(STEPS)
            .max_epoch(3)
            .no_logdir();
        let session = launch_train_with_config(config, QueueInputTrainer::new()).unwrap().session;
        let costs: Vec<f64> = notes.lock().unwrap().iter().filter_map(|(_, _, cost)| *cost).collect();
        (session.read("w").unwrap(), costs)
    };
    let right = run(1);
    assert_eq!(right.1.len(), 33);
    assert!(right.1.iter().any(|cost| *cost != right.1[0]));
    for steps in [2, 3, 16] {
        assert_eq!(run(steps), right, "{steps} steps per launch");
    }
}

#[test]
fn towers_run_several_steps_together() {
    let Some(devices) = devices(2) else { return };
    let run = |steps| {
        let trainer = || SyncMultiGpuTrainerReplicated::new(2).into();
        let (ended, variables) = Run { trainer, ..Run::new(steps) }.train(devices[0], None, Vec::new());
        ended.unwrap();
        variables
    };
    assert_close(&run(4), &run(1));
}

#[test]
fn a_step_whose_towers_have_batches_of_different_sizes_runs_by_itself() {
    let Some(devices) = devices(2) else { return };
    let run = |steps| {
        let trainer = || SyncMultiGpuTrainerReplicated::new(2).into();
        // The second tower's batch in step 2, and the first tower's in step 4.
        let bad = Bad { short: &[3, 6], ..Bad::default() };
        let run = Run { trainer, bad, epochs: 1, ..Run::new(steps) };
        let (ended, variables) = run.train(devices[0], None, Vec::new());
        ended.unwrap();
        variables
    };
    assert_close(&run(4), &run(1));
}

/// A hook, the step it was called for, and the cost where there is one.
type Note = (&'static str, u64, Option<f64>);

/// Records hooks.
struct Hooks {
    cost: Option<FetchHandle>,
    notes: Arc<Mutex<Vec<Note>>>,
}

impl Callback for Hooks {
    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        let cost = g.tensor("cost")?;
        self.cost = Some(g.fetch(&cost, Cadence::Deferred));
        Ok(())
    }

    fn after_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        self.notes.lock().unwrap().push(("after", cx.global_step + 1, None));
        Ok(())
    }

    fn collect(&mut self, values: &CollectCx<'_>) -> Result<()> {
        let cost = values.scalar(self.cost.unwrap());
        self.notes.lock().unwrap().push(("collect", values.global_step + 1, cost));
        Ok(())
    }
}

/// Trains for an epoch, and returns the hooks that were called, with their steps and the cost.
fn hooks(device: Device, steps: impl Into<StepsPerLaunch>) -> Vec<Note> {
    let notes = Arc::default();
    let callback = Hooks { cost: None, notes: Arc::clone(&notes) };
    let run = Run { epochs: 1, ..Run::new(steps) };
    run.train(device, None, vec![Box::new(callback)]).0.unwrap();
    std::mem::take(&mut *notes.lock().unwrap())
}

#[test]
fn deferred_values_come_once_per_launch_in_the_order_of_steps() {
    let Some(device) = device() else { return };
    let found = hooks(device, 4);
    let order: Vec<(&str, u64)> = found.iter().map(|(hook, step, _)| (*hook, *step)).collect();
    let of =
        |hook, steps: std::ops::RangeInclusive<u64>| steps.map(move |step| (hook, step)).collect::<Vec<_>>();
    // The second launch begins before the first one is collected. The last step of an epoch waits.
    let right =
        [of("after", 1..=7), of("collect", 1..=4), of("after", 8..=10), of("collect", 5..=11)].concat();
    assert_eq!(order, [right, of("after", 11..=11)].concat());
    let costs =
        |notes: &[(&str, u64, Option<f64>)]| notes.iter().filter_map(|note| note.2).collect::<Vec<f64>>();
    let (found, right) = (costs(&found), costs(&hooks(device, 1)));
    assert_eq!(found.len(), 11);
    assert!(found.iter().zip(&right).all(|(a, b)| (a - b).abs() <= 1e-10 * b), "{found:?} {right:?}");
}

/// Saves a checkpoint after a step, and fails after the next one.
struct Fails {
    after: u64,
}

impl Callback for Fails {
    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if cx.global_step == self.after {
            cx.request_save();
        }
        if cx.global_step > self.after { Err(Error::argument("cut short")) } else { Ok(()) }
    }
}

#[test]
fn a_run_resumes_in_the_middle_of_a_launch() {
    let Some(device) = device() else { return };
    let whole = tempfile::tempdir().unwrap();
    let right = Run::new(4).results(device, whole.path());
    for after in [2, 4, STEPS + 3] {
        let dir = tempfile::tempdir().unwrap();
        let (ended, _) = Run::new(4).train(device, Some(dir.path()), vec![Box::new(Fails { after })]);
        let e = ended.err().unwrap();
        assert!(e.message().ends_with("cut short"), "{e}");
        assert_eq!(latest(dir.path()).global_step, after);
        let found = Run::new(4).results(device, dir.path());
        assert_same(&found.0, &right.0);
        assert_eq!(found.1, right.1, "interrupted after step {after}");
    }
}

#[test]
fn a_bad_step_in_a_launch_is_named_and_the_variables_are_those_before_it() {
    let Some(device) = device() else { return };
    for index in [1, 4, 7] {
        let divisors: &'static [u64] = Box::leak(Box::new([index]));
        let bad = |steps| Run { bad: Bad { divisors, ..Bad::default() }, ..Run::new(steps) };
        let [(found, variables), (right, expected)] =
            [4, 1].map(|steps| bad(steps).train(device, None, Vec::new()));
        let (found, right) = (found.err().unwrap(), right.err().unwrap());
        assert_eq!(found.kind(), ErrorKind::NotFinite, "{found}");
        assert!(found.message().starts_with(&format!("step {}: cost is not finite", index + 1)), "{found}");
        assert_eq!((found.message(), found.site()), (right.message(), right.site()));
        assert_close(&variables, &expected);
        let counted = variables.iter().find(|(name, _)| name == "global_step").unwrap();
        assert_eq!(counted.1.to_scalar().unwrap(), index as f64);
    }
}

#[test]
fn bad_steps_in_a_launch_are_skipped_alone() {
    let Some(device) = device() else { return };
    let run = |steps, divisors: &'static [u64]| {
        let bad = Bad { divisors, ..Bad::default() };
        Run { bad, nan: NanPolicy::Skip(2), ..Run::new(steps) }.train(device, None, Vec::new())
    };
    // At the start, in the middle and at the end of launches, and across the end of one.
    for divisors in [&[0u64, 2, 5, 6][..], &[3, 4, 10, 11]] {
        let [(found, variables), (right, expected)] = [4, 1].map(|steps| run(steps, divisors));
        found.unwrap();
        right.unwrap();
        assert_close(&variables, &expected);
    }
    for divisors in [&[3u64, 4, 5][..], &[0, 1, 2]] {
        let [(found, variables), (right, expected)] = [4, 1].map(|steps| run(steps, divisors));
        let (found, right) = (found.err().unwrap(), right.err().unwrap());
        let last = divisors.last().unwrap() + 1;
        assert!(found.message().starts_with(&format!("step {last}: cost is not finite")), "{found}");
        assert_eq!(found.message(), right.message());
        assert_close(&variables, &expected);
    }
}

/// Reads a variable after a step, which ends a launch.
struct ReadsAfter(u64);

impl Callback for ReadsAfter {
    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if cx.global_step == self.0 {
            cx.session().read("fc/W")?;
        }
        Ok(())
    }
}

/// The launch ends after step 2, because a callback reads a variable then or because batch 2 has
/// another size, and the next one goes on counting.
#[test]
fn skipped_steps_are_counted_across_a_launch_that_ends_early() {
    let Some(device) = device() else { return };
    for (reads_after, short) in [(2, &[][..]), (0, &[2, 3, 4, 5, 6, 7][..])] {
        let bad = Bad { divisors: &[0, 1, 2], short, ..Bad::default() };
        let run = |steps| {
            let run = Run { bad, nan: NanPolicy::Skip(2), ..Run::new(steps) };
            run.train(device, None, vec![Box::new(ReadsAfter(reads_after))])
        };
        let [(found, variables), (right, expected)] = [4, 1].map(run);
        let (found, right) = (found.err().unwrap(), right.err().unwrap());
        assert_mentions(&found, &["step 3", "cost is not finite"]);
        assert_eq!((found.message(), found.site()), (right.message(), right.site()));
        assert_close(&variables, &expected);
    }
}

#[test]
fn a_bad_index_ends_a_launch_even_if_steps_may_be_skipped() {
    let Some(device) = device() else { return };
    let bad = Bad { labels: &[5], ..Bad::default() };
    let run = |steps| Run { bad, nan: NanPolicy::Skip(3), ..Run::new(steps) }.train(device, None, Vec::new());
    let [(found, variables), (right, expected)] = [4, 1].map(run);
    let (found, right) = (found.err().unwrap(), right.err().unwrap());
    assert_mentions(&found, &["step 6", "prior", "outside 0..5"]);
    assert_eq!((found.kind(), found.site()), (right.kind(), right.site()));
    assert_close(&variables, &expected);
}

/// Reads a variable after every fifth step.
struct Reads(Variables);

impl Callback for Reads {
    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.0.lock().unwrap().push(("fc/W".into(), cx.session().read("fc/W")?));
        Ok(())
    }
}

/// Records the cost of every third step.
struct EveryThird(Option<FetchHandle>, Arc<Mutex<Vec<f64>>>);

impl Callback for EveryThird {
    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        let cost = g.tensor("cost")?;
        self.0 = Some(g.fetch(&cost, Cadence::EverySteps(3)));
        Ok(())
    }

    fn after_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        self.1.lock().unwrap().extend(self.0.and_then(|cost| cx.scalar(cost)));
        Ok(())
    }
}

#[test]
fn a_launch_ends_where_a_callback_uses_variables_or_needs_a_value() {
    let Some(device) = device() else { return };
    let run = |steps| {
        let (read, costs) = (Arc::default(), Arc::default());
        let callbacks: Vec<Box<dyn Callback>> = vec![
            Box::new(PeriodicTrigger::new(Reads(Arc::clone(&read))).every_k_steps(5)),
            Box::new(EveryThird(None, Arc::clone(&costs))),
            Box::new(ScheduledHyperParamSetter::new("scale", [(0, 1.0), (6, 0.25), (13, 2.0)]).step_based()),
        ];
        let (ended, variables) = Run::new(steps).train(device, None, callbacks);
        ended.unwrap();
        let (read, costs) = (read.lock().unwrap().clone(), costs.lock().unwrap().clone());
        (variables, read, costs)
    };
    let ((found, read, costs), (right, expected_reads, expected_costs)) = (run(4), run(1));
    assert_close(&found, &right);
    assert_eq!(read.len(), 4);
    assert_close(&read, &expected_reads);
    assert_eq!(costs.len(), 7);
    assert!(costs.iter().zip(&expected_costs).all(|(a, b)| (a - b).abs() <= 1e-10 * b), "{costs:?}");
}

const INTERRUPTED_DIR: &str = "TENSORPACK_TEST_INTERRUPTED_LAUNCH";

/// Receives a signal after a step.
struct Interrupted {
    after: u64,
}

impl Callback for Interrupted {
    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if cx.global_step == self.after {
            cx.interrupt().set(libc::SIGINT);
        }
        Ok(())
    }
}

#[test]
fn child_interrupted_during_a_launch() {
    let (Some(dir), Some(device)) = (std::env::var_os(INTERRUPTED_DIR), device()) else { return };
    let (ended, _) =
        Run::new(4).train(device, Some(Path::new(&dir)), vec![Box::new(Interrupted { after: 6 })]);
    panic!("training continued: {:?}", ended.map(|trained| trained.ended));
}

/// The first launch is in flight and two steps of the second one are queued.
#[test]
fn a_signal_during_a_launch_saves_the_steps_that_have_begun() {
    let Some(device) = device() else { return };
    let [whole, dir] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let right = Run::new(4).results(device, whole.path());
    let mut command = child("several_steps::child_interrupted_during_a_launch");
    let output = command.env(INTERRUPTED_DIR, dir.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGINT), "{text}");
    assert_eq!(latest(dir.path()).global_step, 6, "{text}");
    let found = Run::new(4).results(device, dir.path());
    assert_same(&found.0, &right.0);
    assert_eq!(found.1, right.1);
}

/// Fetches the cost with every run.
struct EveryRun;

impl Callback for EveryRun {
    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        let cost = g.tensor("cost")?;
        g.fetch(&cost, Cadence::EveryRun);
        Ok(())
    }
}

/// The steps are few, so one launch runs all of them: no value comes before the last.
#[test]
fn auto_is_sixteen_steps_where_nothing_needs_every_step_by_itself() {
    let Some(device) = device() else { return };
    let order = |device| -> Vec<&str> {
        hooks(device, StepsPerLaunch::Auto).iter().map(|(hook, ..)| *hook).collect()
    };
    let on_xla = order(device);
    assert_eq!(on_xla[..STEPS as usize - 1], vec!["after"; STEPS as usize - 1], "{on_xla:?}");
    assert!(order(Device::Cpu(0))[..STEPS as usize - 1].contains(&"collect"));
    // Refused with a number, one step per launch with auto.
    let (ended, _) = Run::new(StepsPerLaunch::Auto).train(device, None, vec![Box::new(EveryRun)]);
    ended.unwrap();
    let Some(devices) = devices(2) else { return };
    let trainer = || SyncMultiGpuTrainerReplicated::new(2).into();
    let run = Run { trainer, ..Run::new(StepsPerLaunch::Auto) };
    run.train(devices[0], None, Vec::new()).0.unwrap();
}

#[test]
fn what_needs_every_step_by_itself_is_refused() {
    let Some(device) = device() else { return };
    let refused = |device, callbacks| Run::new(4).train(device, None, callbacks).0.err().unwrap();
    assert_mentions(refused(device, vec![Box::new(EveryRun)]), &["4 steps per launch", "cost", "EveryRun"]);
    let e = refused(Device::Cpu(0), Vec::new());
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    assert_mentions(&e, &["4 steps per launch", "device"]);

    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    let double = t.variable(VariableSpec::new("w", [2])).update(|w| w * 2.0);
    let config = RunConfig::new()
        .session(SessionOptions { device, ..SessionOptions::default() })
        .steps_per_launch(4)
        .steps_per_epoch(4)
        .max_epoch(1)
        .no_logdir();
    let step = move |cx: &mut StepCx<'_>| cx.run_plain(&[&double], &[]).map(|_| ());
    let e = Trainer::new(&graph).train(config, step).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    assert_mentions(&e, &["4 steps per launch", "one run"]);
}
