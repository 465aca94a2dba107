//! Custom trainers: a graph built by hand, and custom steps.

use crate::life_cycle::Recorder;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tensorpack::ErrorKind;
use tensorpack::callback::{FetchHandle, GraphCx, RunCx};
use tensorpack::dataflow::{DataFlow, FromFn};
use tensorpack::graph::{Fetch, TRAINABLE_VARIABLES};
use tensorpack::input::{FeedInput, InputSource};
use tensorpack::prelude::*;
use tensorpack::runtime::Cadence;
use tensorpack::tower::Mode;
use tensorpack::train::{Iteration, RunTrainOp, StepCx, Trainer, average_gradients};

fn config() -> RunConfig {
    RunConfig::new().no_logdir().steps_per_epoch(3).max_epoch(2)
}

fn counter(t: &TowerContext, name: &str) -> Variable {
    t.variable(VariableSpec::new(name, []).init(Init::zeros()).non_trainable())
}

/// A trainer without batches, gradients, cost or data: it only runs one operation.
#[test]
fn a_step_can_be_any_operation() {
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let v = t.variable(VariableSpec::new("v", []).init(Init::Constant(64.0)));
    let halve = v.update(|v| v * 0.5);
    let trained =
        Trainer::new(&graph).train_with_defaults(config(), RunTrainOp(Fetch::from(&halve))).unwrap();
    assert_eq!(trained.session.read("v").unwrap().to_scalar().unwrap(), 1.0);
    let e = trained.get_predictor(&[], &["v"]).err().unwrap();
    assert!(e.message().contains("tower function"), "{e}");
}

#[test]
fn a_train_op_must_change_a_variable() {
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let v = t.variable(VariableSpec::new("v", []).init(Init::Constant(64.0)));
    let cost = v.square().named("the_cost");
    let trained = Trainer::new(&graph).train_with_defaults(config(), RunTrainOp(Fetch::from(&cost)));
    let e = trained.err().expect("the cost is not a train op");
    assert_eq!(e.kind(), ErrorKind::Argument);
    assert!(e.message().contains("the_cost") && e.to_string().contains("minimize"), "{e}");
}

/// A graph with an operation `learn` that needs input, and an operation `tick` that does not.
struct Parts {
    graph: Graph,
    input: Box<dyn InputSource>,
    learn: Fetch,
    tick: Fetch,
    ticks: Tensor,
    /// The number of batches drawn.
    drawn: Arc<AtomicU64>,
}

fn parts() -> Parts {
    let drawn = Arc::new(AtomicU64::new(0));
    let counted = drawn.clone();
    let flow = FromFn::new(4, |i| Ok(vec![HostTensor::new([2], vec![i as f32, 1.0])?])).map(move |sample| {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(sample)
    });
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let mut input = FeedInput::new(flow);
    let x = input.tensors(t, &[TensorSpec::f32("x", [None])]).unwrap().remove(0);
    let learn = counter(t, "sum").update(|s| s + x.sum());
    let ticks = counter(t, "ticks");
    let tick = ticks.update(|n| n + 1.0);
    graph.global_step();
    Parts {
        learn: Fetch::from(&learn),
        tick: Fetch::from(&tick),
        ticks: ticks.value().clone(),
        input: input.boxed(),
        graph,
        drawn,
    }
}

/// Fetches `ticks` with the first run of every step.
#[derive(Default)]
struct Watch {
    ticks: Option<FetchHandle>,
    seen: Arc<std::sync::Mutex<Vec<Option<f64>>>>,
}

impl Callback for Watch {
    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        let ticks = g.tensor("ticks")?;
        self.ticks = Some(g.fetch(&ticks, Cadence::EveryRun));
        Ok(())
    }
    fn after_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        self.seen.lock().unwrap().push(self.ticks.and_then(|t| cx.scalar(t)));
        Ok(())
    }
}

#[test]
fn a_step_of_two_step_runs_and_a_plain_run() {
    let Parts { graph, input, learn, tick, ticks, drawn } = parts();
    let (recorder, watch) = (Recorder::default(), Watch::default());
    let seen = watch.seen.clone();
    let mut plain = Vec::new();
    let step = |cx: &mut StepCx<'_>| {
        cx.run(&learn)?;
        cx.run(&tick)?;
        plain.push(cx.run_plain(&[&ticks], &[])?[0].to_scalar()?);
        Ok(())
    };
    let config = config().callback(recorder.clone()).callback(watch);
    let trained = Trainer::new(&graph).input(input).train_with_defaults(config, step).unwrap();
    let of_a_step = |epoch: u64, local: u64, global: u64| {
        let run = ["before_run", "after_run", "before_run", "after_run"];
        let runs = run.map(|what| format!("{what} {epoch} {local} {global}"));
        runs.into_iter().chain([format!("trigger_step {epoch} {local} {}", global + 1)])
    };
    let mut right = vec!["before_train 0 -1 0".to_string()];
    for epoch in 1..=2 {
        let before = 3 * (epoch - 1);
        right.push(format!("before_epoch {epoch} {} {before}", if epoch == 1 { -1 } else { 2 }));
        right.extend((0..3).flat_map(|i| of_a_step(epoch, i, before + i)));
        right.extend(["after_epoch", "trigger"].map(|what| format!("{what} {epoch} 2 {}", before + 3)));
    }
    right.push("after_train 2 2 6".to_string());
    assert_eq!(recorder.take(), right);
    // Callbacks fetch with the first run of a step only.
    let fetched = (0..6).flat_map(|n| [Some(n as f64), None]);
    assert_eq!(*seen.lock().unwrap(), fetched.collect::<Vec<_>>());
    assert_eq!(plain, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let read = |name: &str| trained.session.read(name).unwrap().to_scalar().unwrap();
    // Steps and step runs are counted separately. A batch goes to the run that needs one.
    assert_eq!((read("global_step"), trained.session.run_index().unwrap()), (6.0, 12));
    assert_eq!((read("ticks"), drawn.load(Ordering::Relaxed)), (6.0, 6));
    // 0, 1, 2, 3, 0, 1, each paired with 1.
    assert_eq!(read("sum"), 7.0 + 6.0);
}

#[test]
fn only_runs_that_need_input_draw_a_batch() {
    let Parts { graph, input, learn, tick, drawn, .. } = parts();
    let step = |cx: &mut StepCx<'_>| {
        let what = if cx.global_step.is_multiple_of(3) { &learn } else { &tick };
        cx.run(what).map(|_| ())
    };
    let trained = Trainer::new(&graph).input(input).train(config(), step).unwrap();
    assert_eq!(drawn.load(Ordering::Relaxed), 2);
    assert_eq!(trained.session.read("ticks").unwrap().to_scalar().unwrap(), 4.0);
}

#[test]
fn a_plain_run_must_be_fed() {
    let Parts { graph, input, learn, drawn, .. } = parts();
    let step = |cx: &mut StepCx<'_>| {
        let x = HostTensor::new([3], vec![1.0f32, 2.0, 3.0])?;
        cx.run_plain(&[&learn], &[("x", &x)])?;
        cx.run_plain(&[&learn], &[]).map(|_| ())
    };
    let e = Trainer::new(&graph).input(input).train(config(), step).err().unwrap();
    assert!(e.message().contains("x must be fed"), "{e}");
    assert_eq!(drawn.load(Ordering::Relaxed), 0);
}

/// A step can stop training, and a run returns its value.
#[test]
fn a_step_reads_its_results_and_stops() {
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let v = counter(t, "v");
    let up = v.update(|v| v + 1.0);
    let next = (v.value() + 1.0).named("next");
    let both = (Fetch::from(&next), Fetch::from(&up));
    let step = |cx: &mut StepCx<'_>| {
        cx.run(&both.1)?;
        let next = cx.run(&both.0)?[0].to_scalar()?;
        if next > 4.5 {
            cx.stop(format!("next is {next}"));
        }
        Ok(())
    };
    let trained = Trainer::new(&graph).train(config().max_epoch(100), step).unwrap();
    assert_eq!(trained.ended, tensorpack::train::Ended::Stopped("next is 5".into()));
    assert_eq!(trained.session.read("v").unwrap().to_scalar().unwrap(), 4.0);
}

/// Two costs, minimized alternately: `critic` at every step, `maker` at every `period`-th step.
struct Turns {
    critic: Fetch,
    maker: Fetch,
    period: u64,
}

impl Iteration for Turns {
    fn run_step(&mut self, cx: &mut StepCx<'_>) -> Result<()> {
        cx.run(&self.critic)?;
        if (cx.global_step + 1).is_multiple_of(self.period) {
            cx.run(&self.maker)?;
        }
        Ok(())
    }
}

#[test]
fn two_alternating_costs() {
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    for name in ["maker/w", "critic/w"] {
        t.variable(VariableSpec::new(name, []).init(Init::Constant(8.0)));
    }
    let trainable = graph.collection(TRAINABLE_VARIABLES).variables;
    let step_of = |scope: &str| {
        let ids = trainable.iter().map(|&id| graph.variable_handle(id));
        let own = ids.filter(|v| v.name().starts_with(scope)).collect::<Vec<_>>().remove(0);
        // The gradient is the variable itself: a step with rate 1/2 halves it.
        let cost = own.square() * 0.5;
        let slope = gradients(&cost, &[own.value()]).unwrap().remove(0).unwrap();
        apply_gradients(&Sgd::new(0.5), &graph, &[Gradient::new(own, slope)]).unwrap()
    };
    let (maker, critic) = (step_of("maker"), step_of("critic"));
    let turns = Turns { critic: Fetch::from(&critic), maker: Fetch::from(&maker), period: 3 };
    let trained = Trainer::new(&graph).train_with_defaults(config(), turns).unwrap();
    let read = |name: &str| trained.session.read(name).unwrap().to_scalar().unwrap();
    assert_eq!((read("critic/w"), read("maker/w")), (8.0 / 64.0, 8.0 / 4.0));
    assert_eq!(trained.session.run_index().unwrap(), 6 + 2);
}

/// Two towers of one variable `w` and one variable `v`, on inputs `x0` and `x1`. Returns each tower
/// with the gradients of the variables that match its pattern.
fn two_towers(graph: &Graph, patterns: [&str; 2]) -> Vec<(TowerContext, Vec<Gradient>)> {
    let build = |index: usize| {
        let t = TowerContext::new(graph, Mode::Training, index, 2);
        let x = graph.placeholder(&TensorSpec::f32(format!("x{index}"), [None]));
        let variable = |t: &TowerContext, name| t.variable(VariableSpec::new(name, [1]).init(Init::ones()));
        let cost = t.build(|t| (variable(t, "w").value() * &x + variable(t, "v").value()).mean());
        (t, compute_gradients_of(&cost, patterns[index]).unwrap())
    };
    vec![build(0), build(1)]
}

#[test]
fn gradients_of_towers_are_averaged_on_every_engine() {
    for device in [Device::Cpu(0), Device::Reference] {
        let graph = Graph::new();
        let averages = average_gradients(two_towers(&graph, [".*"; 2])).unwrap();
        let step = apply_gradients(&Sgd::new(0.5), &graph, &averages).unwrap();
        let options = SessionOptions { device, ..SessionOptions::default() };
        let session = Session::with(graph.freeze().unwrap(), options).unwrap();
        let fed = |x: f32| HostTensor::new([1], vec![x]).unwrap();
        session.run(&[&step], &[("x0", &fed(1.0)), ("x1", &fed(2.0))]).unwrap();
        let read = |name: &str| session.read(name).unwrap().to_f64_vec()[0];
        // One update with the mean of 1 and 2, and with the mean of 1 and 1.
        assert_eq!((read("w"), read("v")), (1.0 - 0.5 * 1.5, 1.0 - 0.5), "{device}");
    }
}

/// Averaging requires every tower, in order, with the same variables: otherwise towers would wait
/// for each other, or average gradients of different variables.
#[test]
fn averaging_requires_the_same_variables_in_all_towers() {
    let error = |towers: Vec<(TowerContext, Vec<Gradient>)>| average_gradients(towers).err().unwrap();
    let e = error(two_towers(&Graph::new(), [".*", "w"]));
    assert_eq!(e.kind(), ErrorKind::Graph);
    assert!(e.message().contains("tower 1") && e.to_string().contains("only tower 0: v"), "{e}");
    for towers in [
        Vec::new(),
        two_towers(&Graph::new(), [".*"; 2])[..1].to_vec(),
        two_towers(&Graph::new(), [".*"; 2]).into_iter().rev().collect(),
        vec![two_towers(&Graph::new(), [".*"; 2]).remove(0), two_towers(&Graph::new(), [".*"; 2]).remove(1)],
    ] {
        let e = error(towers);
        assert_eq!(e.kind(), ErrorKind::Argument, "{e}");
        assert!(e.message().contains("tower"), "{e}");
    }
}

/// Halves a variable in every third step, counted by the step itself.
struct EveryThird {
    halve: Fetch,
    steps: u64,
    fail_at: u64,
}

impl Iteration for EveryThird {
    fn run_step(&mut self, cx: &mut StepCx<'_>) -> Result<()> {
        if self.steps == self.fail_at {
            return Err(Error::argument("failed on purpose"));
        }
        if self.steps % 3 == 2 {
            cx.run(&self.halve)?;
        }
        self.steps += 1;
        Ok(())
    }

    fn state(&self) -> serde_json::Value {
        self.steps.into()
    }

    fn load_state(&mut self, state: &serde_json::Value) -> Result<()> {
        self.steps = state.as_u64().ok_or_else(|| Error::argument(format!("{state} is no count")))?;
        Ok(())
    }
}

#[test]
fn a_step_has_state_that_a_resumed_run_gets_back() {
    let folder = tempfile::tempdir().unwrap();
    let run = |logdir: &str, fail_at| {
        let graph = Graph::new();
        let v = counter(&TowerContext::training(&graph), "v");
        let halve = v.update(|v| v * 0.5 + 1.0);
        let config = RunConfig::new()
            .logdir(folder.path().join(logdir))
            .callback(PeriodicTrigger::new(ModelSaver::new()).every_k_steps(1))
            .steps_per_epoch(3)
            .max_epoch(3);
        let step = EveryThird { halve: Fetch::from(&halve), steps: 0, fail_at };
        Trainer::new(&graph).train_with_defaults(config, step)
    };
    let value = |trained: tensorpack::train::Trained| trained.session.read("v").unwrap().to_scalar().unwrap();
    let whole = value(run("whole", 100).unwrap());
    // Three halvings in nine steps.
    assert_eq!(whole, 1.75);
    assert!(run("parts", 4).is_err());
    assert_eq!(value(run("parts", 100).unwrap()), whole);
}
