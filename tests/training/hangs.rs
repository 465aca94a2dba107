//! A tower that stalls, panics or fails between any two all-reduces: training ends with an error
//! that names it, and the process exits. It never hangs.
//!
//! The tests run themselves as child processes: `hangs::child` reads the fault to inject from the
//! environment.

use crate::models::line;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tensorpack::callback::ProcessTensors;
use tensorpack::graph::{GradCx, OpDef, Spec};
use tensorpack::kir::{CustomKernel, LowerCx, View};
use tensorpack::prelude::*;

/// The fault to inject, where, and in which tower: `stall fc0/forward 1`. Tower `all` is every tower
/// of three, `only` is the tower of a run of one.
const FAULT: &str = "TENSORPACK_TEST_FAULT";
const MARK: &str = "injecting the fault";
const DEADLINE: Duration = Duration::from_secs(2);
const STEPS: u64 = 5;
const TOWERS: usize = 3;

/// The identity, which fails in the third step (see `good_calls`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Fault {
    what: String,
    place: String,
    /// The place where it fails.
    at: String,
    /// The number of calls that succeed, in all towers.
    good_calls: usize,
}

impl OpDef for Fault {
    fn name(&self) -> &str {
        "Fault"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let place = self.place.replace("forward", "backward");
        Ok(vec![Some(Tensor::apply_one(Fault { place, ..self.clone() }, &[cx.dy()]))])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        Ok(cx.custom(Arc::new(self.clone())))
    }
}

impl CustomKernel for Fault {
    fn run(&self, inputs: &[HostTensor], outputs: &mut [HostTensor]) -> Result<()> {
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        outputs[0].clone_from(&inputs[0]);
        if self.place != self.at || CALLS.fetch_add(1, Ordering::Relaxed) < self.good_calls {
            return Ok(());
        }
        eprintln!("{MARK}");
        match self.what.as_str() {
            "stall" => loop {
                std::thread::sleep(Duration::from_secs(3600));
            },
            "panic" => panic!("index out of bounds"),
            _ => Err(Error::argument("the sensor is unplugged")),
        }
    }
}

/// A net with many all-reduces: two synchronized batch norms, forward and backward, and the
/// gradients.
#[derive(Clone, Debug)]
struct Net {
    what: String,
    at: String,
    tower: usize,
    /// Whether the fault is in all towers.
    everywhere: bool,
}

impl Net {
    fn with_fault(&self, x: &Tensor, place: &str) -> Tensor {
        let (what, at) = (self.what.clone(), self.at.clone());
        let good_calls = 2 * if self.everywhere { TOWERS } else { 1 };
        Tensor::apply_one(Fault { what, place: place.into(), at, good_calls }, &[x])
    }

    fn with_fault_after(&self, t: &TowerContext, x: &Tensor, layer: &str) -> Tensor {
        let here = (self.everywhere || t.index() == self.tower) && self.at.starts_with(layer);
        if here { self.with_fault(x, &format!("{layer}/forward")) } else { x.clone() }
    }
}

impl ModelDesc for Net {
    fn inputs(&self) -> Vec<TensorSpec> {
        crate::models::Line.inputs()
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let mut x = inputs[0].clone();
        for i in 0..2 {
            let (fc, bn) = (format!("fc{i}"), format!("bn{i}"));
            x = self.with_fault_after(t, &Linear::new(4).no_bias().apply(t, &fc, &x), &fc);
            x = self.with_fault_after(t, &BatchNorm::new().synchronized().apply(t, &bn, &x), &bn);
        }
        (Linear::new(1).apply(t, "fc2", &x) - &inputs[1]).square().mean().named("cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(0.01).process(self.clone()).boxed()
    }
}

/// The update comes after the last all-reduce.
impl GradProcessor for Net {
    fn process(&self, _: &Graph, gradients: Vec<Gradient>) -> Vec<Gradient> {
        let process = |g: Gradient| match self.at == "update" && g.variable.name() == "fc0/W" {
            true => {
                let value = self.with_fault(&g.value, "update");
                g.with_value(value)
            }
            false => g,
        };
        gradients.into_iter().map(process).collect()
    }
}

fn config(model: impl ModelDesc + 'static) -> TrainConfig {
    TrainConfig::new(model, line(4))
        .session(SessionOptions { threads: Some(1), ..SessionOptions::default() })
        .deadline(DEADLINE)
        .steps_per_epoch(STEPS)
        .max_epoch(1)
        .no_logdir()
}

#[test]
fn child() {
    let Ok(fault) = std::env::var(FAULT) else { return };
    let [what, at, tower] = fault.split(' ').collect::<Vec<_>>()[..] else { panic!("{fault:?}") };
    let (everywhere, tower_index) = (tower == "all", tower.parse().unwrap_or(0));
    let model = Net { what: what.into(), at: at.into(), tower: tower_index, everywhere };
    let ended = match tower {
        "only" => launch_train_with_config(config(model), SimpleTrainer::new()),
        _ => launch_train_with_config(config(model), SyncMultiGpuTrainerReplicated::new(TOWERS)),
    };
    match ended {
        Ok(_) => std::process::exit(0),
        Err(e) => eprintln!("{e}"),
    }
    std::process::exit(1);
}

/// Returns the output of a child with this fault, and the time until it exits.
fn run(fault: &str) -> (String, Duration) {
    let mut child = Command::new(std::env::current_exe().expect("the path of this test binary"))
        .args(["--exact", "hangs::child", "--nocapture"])
        .env(FAULT, fault)
        // A backtrace can take longer than the deadline.
        .env("RUST_BACKTRACE", "0")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the test can run itself");
    let (mut marked, mut text) = (None, String::new());
    for line in BufReader::new(child.stderr.take().expect("it is piped")).lines() {
        let line = line.expect("text");
        if line == MARK {
            marked = Some(Instant::now());
        }
        text += &format!("{line}\n");
    }
    assert_eq!(child.wait().unwrap().code(), Some(1), "{fault}: {text}");
    let marked = marked.unwrap_or_else(|| panic!("{fault}: {text}"));
    (text, marked.elapsed())
}

/// Where user code runs between two all-reduces, and the all-reduce at which the other towers then
/// wait.
const PLACES: [(&str, &str); 8] = [
    ("fc0/forward", "bn0/sums"),
    ("bn0/forward", "bn1/sums"),
    ("fc1/forward", "bn1/sums"),
    ("bn1/forward", "bn1/squares/grad"),
    ("bn1/backward", "bn1/squares/grad"),
    ("fc1/backward", "bn0/squares/grad"),
    ("bn0/backward", "bn0/squares/grad"),
    ("fc0/backward", "average/fc2/b"),
];

/// Runs all children of one kind concurrently. Each must print what `right` expects and exit in
/// time; otherwise it is retried, because the machine may be too busy to run three towers within
/// the deadline.
fn try_all(what: &'static str, right: fn(&str, &str, usize) -> bool) {
    let exits_in_time = |place: &str, waited_for: &str, tower: usize| {
        let fault = format!("{what} {place} {tower}");
        for attempt in 1.. {
            let (text, lived) = run(&fault);
            println!("{fault}: exited after {lived:?}");
            // The error points at a line of the model.
            let named = text.contains("Fault") && text.contains("at tests/training/hangs.rs:");
            if named && right(&text, waited_for, tower) && lived <= DEADLINE + Duration::from_secs(1) {
                break;
            }
            assert!(attempt < 4, "{fault}: exited after {lived:?}\n{text}");
        }
    };
    std::thread::scope(|s| {
        for tower in [0, 2] {
            for (place, waited_for) in PLACES {
                s.spawn(move || exits_in_time(place, waited_for, tower));
            }
        }
        s.spawn(move || exits_in_time("update", "the end", 0));
    });
}

#[test]
fn a_tower_that_stalls_is_named_and_the_process_ends() {
    try_all("stall", |text, waited_for, tower| {
        let waited = match waited_for {
            "the end" => "tower 0 did not finish within 2 s of the others".to_string(),
            _ => format!("waited 2 s at {waited_for} for the others"),
        };
        text.contains(&waited)
            && !text.contains(&format!("tower {tower} waited"))
            && text.contains(&format!("tower {tower} is in "))
    });
}

/// No tower waits at an all-reduce, so only the calling thread can detect the stall.
#[test]
fn towers_that_all_stall_are_named_and_the_process_ends() {
    for (fault, towers) in [("stall fc0/forward all", TOWERS), ("stall fc0/forward only", 1)] {
        for attempt in 1.. {
            let (text, lived) = run(fault);
            let named = (0..towers).all(|t| text.contains(&format!("tower {t} is in ")));
            if named
                && text.contains("made no progress for 2 s")
                && lived <= DEADLINE + Duration::from_secs(1)
            {
                assert!(text.contains("Fault") && text.contains("at tests/training/hangs.rs:"), "{text}");
                break;
            }
            assert!(attempt < 4, "{fault}: exited after {lived:?}\n{text}");
        }
    }
}

#[test]
fn a_panic_in_one_tower_ends_training() {
    try_all("panic", |text, _, _| text.contains("Fault: a kernel panicked: index out of bounds"));
}

#[test]
fn an_error_in_one_tower_ends_training_with_that_error() {
    try_all("error", |text, _, _| text.contains("Fault: the sensor is unplugged"));
}

type Layer = fn(&TowerContext, &Tensor) -> Tensor;

/// Builds a different model in the second tower.
struct DifferentTowers(Layer);

impl ModelDesc for DifferentTowers {
    fn inputs(&self) -> Vec<TensorSpec> {
        crate::models::Line.inputs()
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let x = (self.0)(t, &Linear::new(2).apply(t, "fc", &inputs[0]));
        (x.mean_axes(&[1]).expand_dims(1) - &inputs[1]).square().mean().named("cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(0.01).boxed()
    }
}

#[test]
fn towers_that_would_deadlock_are_errors_before_the_first_step() {
    let cases: [(Layer, &str); 3] = [
        (
            |t, x| {
                let sum = |name: &str, x: &Tensor| t.all_reduce_sum(name, x).stop_gradient();
                let names = if t.index() == 0 { ["a", "b"] } else { ["b", "a"] };
                names
                    .iter()
                    .fold(x.clone(), |x, name| x + sum(name, &t.graph().constant(HostTensor::scalar(1.0f32))))
            },
            "towers disagree on their sums: sum 1 is a in tower 0, but b in tower 1",
        ),
        (
            |t, x| {
                let mean = |t: &TowerContext| t.all_reduce_mean("shift", &x.mean());
                if t.index() == 0 { x - mean(t) } else { x.clone() }
            },
            "towers disagree on their sums: sum 1 is shift in tower 0, but average/fc/b in tower 1",
        ),
        (
            |t, x| {
                let w = t.variable(VariableSpec::new("extra", []).init(Init::ones()));
                if t.index() == 0 { x * w.value() } else { x * w.value().stop_gradient() }
            },
            "tower 1 does not train the same variables",
        ),
    ];
    for (layer, why) in cases {
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = runs.clone();
        let count = ProcessTensors::new(["cost"], move |_, _| {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        let trainer = SyncMultiGpuTrainerReplicated::new(2);
        let e =
            launch_train_with_config(config(DifferentTowers(layer)).callback(count), trainer).err().unwrap();
        assert!(e.message().contains(why), "{e}");
        assert_eq!(runs.load(Ordering::Relaxed), 0);
    }
}
