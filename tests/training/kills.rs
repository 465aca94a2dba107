//! Runs that are killed and resumed end with the same bytes as an uninterrupted one.
//!
//! The tests run themselves as child processes: `kills::child` reads its task from the environment.
//! The binary needs nothing but itself, so it can be copied to another machine. These variables set
//! how much is tried; `docs/reliability.md` has the commands:
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `TENSORPACK_TEST_KILLS` | SIGKILLs, at least a tenth of them inside saves | 20 |
//! | `TENSORPACK_TEST_SIGNALS` | SIGTERMs in each of step, validation, data wait and save | 2 |
//! | `TENSORPACK_TEST_FULL_DISKS` | runs on a disk that fills up (`full_disk.rs`) | 2 |
//! | `TENSORPACK_TEST_SEED` | the seed of all moments | 0 |

use crate::models::line;
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tensorpack::callback::{RunCx, TrainCx};
use tensorpack::dataflow::DataFlow;
use tensorpack::io::Checkpoint;
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;
use tensorpack::tensor::CounterRng;

const DIR: &str = "TENSORPACK_TEST_RUN";
const SLOW: &str = "TENSORPACK_TEST_SLOW";
/// How long the child waits at the point that [`SLOW`] names.
const WAIT: Duration = Duration::from_millis(400);
const EPOCHS: u64 = 3;
const STEPS: u64 = 12;

/// Returns the number in an environment variable.
pub(crate) fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .map_or(default, |n| n.parse().unwrap_or_else(|_| panic!("{name}={n} is not a number")))
}

/// Returns random numbers for one kind of fault.
pub(crate) fn random(what: &str) -> CounterRng {
    CounterRng::new(setting("TENSORPACK_TEST_SEED", 0), what)
}

/// A net with state: dropout, batch norm, Adam, and weights large enough for a save to
/// take a while.
struct Net;

impl ModelDesc for Net {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None, Some(3)]), TensorSpec::f32("y", [None, Some(1)])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let h = Linear::new(600).relu().apply(t, "fc0", &inputs[0]);
        let h = BatchNorm::new().apply(t, "bn", &h);
        let h = if t.is_training() { h.dropout(0.3) } else { h };
        let h = Linear::new(600).relu().apply(t, "fc1", &h);
        let out = Linear::new(1).apply(t, "fc2", &h);
        let cost = (out - &inputs[1]).square().mean().named("cost");
        t.moving_summary(&[&cost]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(1e-3).boxed()
    }
}

/// Saves every few steps, counts runs, and sleeps at the point that an environment variable names.
#[derive(Default)]
struct Often {
    runs: u64,
}

/// Waits if [`SLOW`] is `PLACE:N` and this is call number N from this place. Creates a file before.
fn slow(place: &str) {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let (Ok(slow), Some(dir)) = (std::env::var(SLOW), std::env::var_os(DIR)) else { return };
    let Some((slow_place, n)) = slow.split_once(':') else { return };
    if slow_place == place && CALLS.fetch_add(1, Ordering::Relaxed) == n.parse().unwrap_or(0) {
        std::fs::write(Path::new(&dir).join(WAITING), place).expect("a directory");
        std::thread::sleep(WAIT);
    }
}

/// The file that marks that the child waits.
const WAITING: &str = "waiting";

impl Callback for Often {
    fn after_run(&mut self, _: &mut RunCx<'_>) -> Result<()> {
        self.runs += 1;
        slow("step");
        Ok(())
    }

    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        std::thread::sleep(Duration::from_millis(5));
        if cx.global_step.is_multiple_of(5) {
            cx.request_save();
        }
        if cx.global_step.is_multiple_of(4) {
            cx.put_scalar("runs", self.runs as f64);
        }
        Ok(())
    }

    fn state(&self) -> serde_json::Value {
        self.runs.into()
    }

    fn load_state(&mut self, state: &serde_json::Value) -> Result<()> {
        self.runs = state.as_u64().expect("a count");
        Ok(())
    }
}

fn train(dir: &Path) -> Result<()> {
    let data = line(7).map_random(|mut sample, rng| {
        slow("data");
        let x = sample[0].as_mut_slice::<f32>()?;
        x.iter_mut().for_each(|x| *x += 0.01 * rng.normal() as f32);
        Ok(sample)
    });
    let check = line(5).map(|sample| {
        slow("evaluation");
        Ok(sample)
    });
    let config = TrainConfig::new(Net, data)
        .callback(ModelSaver::new())
        .callback(Often::default())
        .callback(InferenceRunner::new(check, [ScalarStats::new("cost")]))
        .callback(MinSaver::new("validation_cost"))
        .session(SessionOptions { threads: Some(1), ..SessionOptions::default() })
        .steps_per_epoch(STEPS)
        .max_epoch(EPOCHS)
        .seed(3)
        .logdir(dir);
    launch_train_with_config(config, SimpleTrainer::new()).map(|_| ())
}

/// The main function of the child process. It does nothing in an ordinary run of the tests.
#[test]
fn child() {
    if let Some(dir) = std::env::var_os(DIR) {
        crate::full_disk::fill(Path::new(&dir));
        if let Err(e) = train(Path::new(&dir)) {
            eprintln!("{e}");
            std::process::exit(1);
        }
        std::process::exit(0);
    }
}

/// Returns the command that trains in a directory.
pub(crate) fn command(dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the path of this test binary"));
    command
        .args(["--exact", "kills::child", "--nocapture"])
        .env(DIR, dir)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

fn start(dir: &Path, slow: &str) -> Child {
    command(dir).env(SLOW, slow).spawn().expect("the test can run itself")
}

/// The bytes of a run's last checkpoint, and its statistics, of epochs and of steps.
type Outcome = (BTreeMap<String, Vec<u8>>, String);

fn outcome(dir: &Path) -> Outcome {
    let latest = std::fs::read_to_string(dir.join("checkpoints/latest")).expect("a checkpoint");
    let checkpoint =
        Checkpoint::load(dir.join("checkpoints").join(latest.trim())).expect("a valid checkpoint");
    assert_eq!(checkpoint.global_step, EPOCHS * STEPS);
    let tensors = checkpoint.tensors.iter().map(|(n, t)| (n.clone(), t.as_bytes().to_vec()));
    let read = |file: &str| std::fs::read_to_string(dir.join(file)).expect("statistics");
    (tensors.collect(), read("stats.jsonl") + &read("steps.jsonl"))
}

/// Trains to the end.
pub(crate) fn finish(dir: &Path) {
    let output = start(dir, "").wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

pub(crate) fn assert_same(dir: &Path, whole: &Outcome, what: &str) {
    let found = outcome(dir);
    assert_eq!(found.1, whole.1, "{what}: different statistics");
    for (name, bytes) in &whole.0 {
        assert!(found.0[name] == *bytes, "{what}: {name} has different bytes");
    }
    assert_eq!(found.0.len(), whole.0.len());
}

pub(crate) fn uninterrupted(root: &Path) -> Outcome {
    let dir = root.join("whole");
    finish(&dir);
    let whole = outcome(&dir);
    assert!(whole.1.lines().count() >= EPOCHS as usize, "{}", whole.1);
    whole
}

/// Waits until a file of a child contains `text`.
fn wait_for(file: &Path, text: &str) {
    let begun = Instant::now();
    while !std::fs::read_to_string(file).unwrap_or_default().contains(text) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{text:?} never appeared in {}", file.display());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns whether a checkpoint is being written.
fn saving(dir: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(dir.join("checkpoints")) else { return false };
    entries.flatten().any(|e| e.file_name().to_string_lossy().starts_with('.'))
}

#[test]
fn sigkills_do_not_change_results() {
    let kills = setting("TENSORPACK_TEST_KILLS", 20);
    let root = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    let whole = uninterrupted(root.path());
    // Kills are spread over the duration of a run, however fast the machine is.
    let duration = begun.elapsed();
    let rng = random("kills");
    let (mut killed, mut in_saves, mut run, mut attempts) = (0, 0, 0, 0);
    // A save may be finished when the kill arrives: repeat until some were hit.
    let enough = |killed, in_saves| {
        assert!(killed < 10 * kills.max(1), "only {in_saves} of {killed} kills hit a save");
        killed >= kills && 10 * in_saves >= kills
    };
    while !enough(killed, in_saves) {
        let dir = root.path().join(format!("run{run}"));
        run += 1;
        loop {
            let mut child = start(&dir, "");
            // Kills wait for a random time, or for a save if too few were hit so far.
            let in_save = 10 * in_saves < killed;
            // Drawn again even if the last attempt came too late: the same moment might always be.
            let wait = duration.mul_f64(rng.uniform(0, attempts));
            attempts += 1;
            assert!(attempts < 100 * kills, "only {killed} of {attempts} processes were killed");
            let begun = Instant::now();
            let ended = loop {
                if child.try_wait().unwrap().is_some() {
                    break true;
                }
                if (in_save && begun.elapsed() >= wait / 3 && saving(&dir))
                    || (!in_save && begun.elapsed() >= wait)
                {
                    break false;
                }
                std::thread::sleep(Duration::from_micros(200));
            };
            if ended || enough(killed, in_saves) {
                let output = child.wait_with_output().unwrap();
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                break;
            }
            child.kill().unwrap();
            let status = child.wait().unwrap();
            if status.signal() != Some(9) {
                // The run ended between the last look at it and the kill.
                assert!(status.success(), "{status}");
                break;
            }
            in_saves += u64::from(saving(&dir));
            killed += 1;
        }
        assert_same(&dir, &whole, &format!("run {run}"));
        // Fast runs end before they are killed, so there can be many: keep none of them on disk.
        std::fs::remove_dir_all(&dir).unwrap();
    }
    println!(
        "{killed} SIGKILLs in {run} runs, {in_saves} of them inside a save: all runs have the same bits"
    );
}

fn signal(child: &Child, signal: i32) {
    // SAFETY: the child has not been waited for, so its pid has not been reused.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

/// Waits for a child to reach a place, and sends it a signal there. Returns whether the signal hit.
fn signal_at(place: &str, number: i32, dir: &Path, nth: u64, delay: Duration) -> bool {
    let mut child = start(dir, &format!("{place}:{nth}"));
    let reached = || if place == "save" { saving(dir) } else { dir.join(WAITING).exists() };
    let mut saves = 0;
    while !reached() || (place == "save" && saves < nth) {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        if place == "save" && reached() {
            saves += 1;
            while saving(dir) && child.try_wait().unwrap().is_none() {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    std::thread::sleep(delay);
    let hit = place != "save" || saving(dir);
    let sent = Instant::now();
    signal(&child, number);
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    if !hit && output.status.success() {
        return false;
    }
    assert_eq!(output.status.signal(), Some(number), "{place}: {text}");
    assert!(text.contains("saving"), "{place}: {text}");
    assert!(sent.elapsed() < Duration::from_secs(5), "{place}: {:?}", sent.elapsed());
    assert!(dir.join("checkpoints/latest").exists(), "{place}: {text}");
    hit
}

#[test]
fn a_signal_saves_and_terminates_with_that_signal() {
    let signals = setting("TENSORPACK_TEST_SIGNALS", 2);
    let root = tempfile::tempdir().unwrap();
    let whole = uninterrupted(root.path());
    let rng = random("signals");
    // How often a run reaches each point.
    let places =
        [("step", EPOCHS * STEPS), ("evaluation", EPOCHS * 5), ("data", EPOCHS * STEPS), ("save", 9)];
    for (i, (place, times)) in places.into_iter().enumerate() {
        let (mut hits, mut runs) = (0, 0);
        while hits < signals {
            assert!(runs < 10 * signals, "only {hits} of {runs} signals hit {place}");
            let nth = (rng.uniform(i as u64, 2 * runs) * times as f64) as u64;
            // Signals arrive at any moment of the wait; a save is too short to wait.
            let share = if place == "save" { 0.0 } else { 0.7 * rng.uniform(i as u64, 2 * runs + 1) };
            // Every other sample of CI is a SIGINT.
            let number = if signals < 10 && runs % 2 == 1 { libc::SIGINT } else { libc::SIGTERM };
            let dir: PathBuf = root.path().join(format!("{place}{runs}"));
            runs += 1;
            hits += u64::from(signal_at(place, number, &dir, nth, WAIT.mul_f64(share)));
            finish(&dir);
            assert_same(&dir, &whole, &format!("signal {number} in {place} {nth}"));
            std::fs::remove_dir_all(&dir).unwrap();
        }
        println!("{hits} signals in {place}, {runs} runs: all runs have the same bits");
    }
}

#[test]
fn a_finished_run_is_reported_and_another_seed_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    finish(root.path());
    let output = start(root.path(), "").wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("already complete"));
    let config = TrainConfig::new(Net, line(7)).logdir(root.path()).seed(4).max_epoch(9);
    let e = launch_train_with_config(config, SimpleTrainer::new()).err().expect("an error");
    assert!(e.message().contains("its seed is 3, not 4"), "{e}");
    assert!(e.to_string().contains("--fresh"), "{e}");
    let config = TrainConfig::new(Net, line(7)).logdir(root.path()).seed(3).max_epoch(9);
    let e = launch_train_with_config(config.precision(Precision::F16), SimpleTrainer::new()).err().unwrap();
    assert!(e.message().contains(r#"its precision is "tf32", not "f16""#), "{e}");
    assert!(e.to_string().contains("loss scale"), "{e}");
}

#[test]
fn a_second_process_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let mut child = start(root.path(), "step:0");
    wait_for(&root.path().join("lock"), &format!("{} ", child.id()));
    let second = start(root.path(), "").wait_with_output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let text = String::from_utf8_lossy(&second.stderr);
    assert!(text.contains(&format!("is in use by process {}", child.id())), "{text}");
    child.kill().unwrap();
    child.wait().unwrap();
}
