//! `tensorpack verify` and `tensorpack replay`, on runs of real processes: this test binary is the
//! program that is started again.

use crate::{error, out, tensorpack};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;
use tensorpack::dataflow::{DataFlow, Flow, FromIter, FromList};
use tensorpack::io::{Checkpoint, CheckpointStore, Keep, RunLock, safetensors};
use tensorpack::prelude::*;
use tensorpack::serde_json::{self, Value, json};
use tensorpack::train::TrainArgs;
use tensorpack_testing::assert_mentions;

/// What the child trains, and where: `KIND:DIR`. The manifest of the run has it, so the program finds
/// it again.
const TASK: &str = "TENSORPACK_TEST_RERUN";
const STEPS: u64 = 12;
/// The batch with a divisor of zero, in runs that have one; its step is one more.
const BAD: usize = 6;

/// Learns with dropout; divides by an input.
struct Net;

impl ModelDesc for Net {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None, Some(3)]), TensorSpec::f32("divisor", [])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let h = Linear::new(5).relu().apply(t, "fc0", &inputs[0]);
        let h = Dropout::new(0.5).apply(t, "dropout", &h);
        let ratio = (Linear::new(2).apply(t, "fc1", &h) / &inputs[1]).named("ratio");
        let cost = (ratio - 1.0).square().mean().named("cost");
        t.moving_summary(&[&cost]);
        cost
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(1e-2).boxed()
    }
}

/// Saves every four steps.
struct Often;

impl Callback for Often {
    fn trigger_step(&mut self, cx: &mut tensorpack::callback::TrainCx<'_>) -> Result<()> {
        if cx.global_step.is_multiple_of(4) {
            cx.request_save();
        }
        Ok(())
    }
}

fn batch(i: usize, divisor: f32) -> Vec<HostTensor> {
    let x: Vec<f32> = (0..12).map(|k| ((12 * i + k) as f32 * 0.37).sin()).collect();
    vec![HostTensor::new([4, 3], x).unwrap(), HostTensor::scalar(divisor)]
}

fn data(kind: &str) -> Flow {
    let batches = |bad: bool| (0..30).map(|i| batch(i, if bad && i == BAD { 0.0 } else { 2.0 })).collect();
    match kind {
        "shuffled" | "plain" | "second" | "asynchronous" | "slow" | "configured" => {
            FromList::new(batches(false)).shuffle().into_flow()
        }
        "once" => FromIter::once((0..30).map(|i| Ok(batch(i, 2.0)))).into_flow(),
        _ => FromList::new(batches(true)).into_flow(),
    }
}

/// Notes the end of training in a file, and the process in another. If the run is `slow`, repeated steps
/// take long.
struct Noted {
    dir: PathBuf,
    slow: bool,
}

impl Callback for Noted {
    fn trigger_step(&mut self, _: &mut tensorpack::callback::TrainCx<'_>) -> Result<()> {
        if self.slow && std::env::var_os("TENSORPACK_RERUN").is_some() {
            fs::write(self.dir.join("process"), std::process::id().to_string())?;
            std::thread::sleep(std::time::Duration::from_millis(500));
        }
        Ok(())
    }

    fn after_train(&mut self, _: &mut tensorpack::callback::TrainCx<'_>) -> Result<()> {
        Ok(fs::write(self.dir.join("after_train"), "")?)
    }
}

/// The main function of the program.
#[test]
fn child() {
    let Ok(task) = std::env::var(TASK) else { return };
    let (kind, dir) = task.split_once(':').unwrap();
    let noted = Noted { dir: Path::new(dir).parent().unwrap().into(), slow: kind == "slow" };
    let config = TrainConfig::new(Net, data(kind))
        .callback(Often)
        .callback(noted)
        .session(SessionOptions { threads: Some(1), ..SessionOptions::default() })
        .steps_per_epoch(STEPS)
        .max_epoch(2)
        .keep(Keep::last(99));
    if kind == "plain" {
        // No options, and a directory that the program empties.
        let config = config.seed(5).fresh().logdir(dir);
        launch_train_with_config(config, SimpleTrainer::new()).unwrap();
        return;
    }
    if kind == "second" {
        let first = Path::new(dir).with_file_name("first");
        let config = TrainConfig::new(Net, data("shuffled")).steps_per_epoch(STEPS).max_epoch(1);
        let trained = launch_train_with_config(config.logdir(first), SimpleTrainer::new());
        if let Err(e) = trained {
            eprintln!("{e}");
            std::process::exit(1);
        }
    }
    let mut options = vec!["--seed", "5", "--fresh", "--logdir", dir];
    if kind == "asynchronous" {
        options.extend(["--trainer", "async", "--devices", "cpu:0,cpu:1"]);
    }
    let file = Path::new(dir).with_file_name("run.toml");
    if kind == "configured" {
        if !file.exists() {
            fs::write(&file, "threads-per-device = 1\n").unwrap();
        }
        options.extend(["--config", file.to_str().unwrap()]);
    }
    let args = TrainArgs::parse_options(options).unwrap();
    let trained = args.configure(config).unwrap().train();
    // After a run that is only repeated, the program must not get here.
    fs::write(Path::new(dir).join("exported"), "weights").unwrap();
    if let Err(e) = trained {
        eprintln!("{e}");
        std::process::exit(1);
    }
}

/// Trains in a process of its own.
fn train(kind: &str) -> (TempDir, PathBuf, Output) {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "reruns::child", "--nocapture", "--test-threads", "1"]);
    let output = program.env(TASK, format!("{kind}:{}", dir.display())).output().unwrap();
    (root, dir, output)
}

/// The contents of all files below a directory.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(contents(&path)),
            false => drop(all.insert(path.clone(), fs::read(&path).unwrap())),
        }
    }
    all
}

fn change_manifest(dir: &Path, change: impl Fn(&mut Value)) {
    let file = dir.join("manifest.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    manifest["starts"].as_array_mut().unwrap().iter_mut().for_each(change);
    fs::write(&file, manifest.to_string()).unwrap();
}

/// Changes one element of a variable in the checkpoint of a step, which is the newest. Its checksums
/// are right.
fn flip(dir: &Path, step: u64, variable: &str, element: usize) {
    let folder = dir.join(format!("checkpoints/step-{step:010}"));
    let mut checkpoint = Checkpoint::load(&folder).unwrap();
    let tensor = checkpoint.tensors.iter_mut().find(|(name, _)| name == variable).unwrap();
    let values = tensor.1.as_mut_slice::<f32>().unwrap();
    values[element] = f32::from_bits(values[element].to_bits() ^ 1);
    fs::remove_dir_all(&folder).unwrap();
    let mut store = CheckpointStore::open(&RunLock::acquire(dir).unwrap()).unwrap().keep(Keep::last(99));
    assert_eq!(store.save(&checkpoint, &[]).unwrap(), folder);
}

#[test]
fn a_stretch_of_a_run_is_computed_again() {
    let (_root, dir, trained) = train("shuffled");
    assert!(trained.status.success(), "{trained:?}");
    let cache = tempfile::tempdir().unwrap();
    let before = contents(&dir);
    assert!(before.contains_key(&dir.join("exported")));
    let run = dir.to_str().unwrap();
    let verify = |words: &[&str]| tensorpack(&[&["verify", run], words].concat(), cache.path(), None);

    // All checkpoints, over the boundary of an epoch: 4 to 24.
    let text = out(&verify(&[]));
    for step in [8, 12, 16, 20, 24] {
        assert!(text.contains(&format!("step {step}: equal, ")), "{text}");
    }
    assert_eq!(text.lines().count(), 5, "{text}");
    let text = out(&verify(&["--from", "8", "--to", "16", "--json"]));
    let found: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(found["equal"], true, "{text}");
    let steps: Vec<Value> =
        found["checkpoints"].as_array().unwrap().iter().map(|c| c["step"].clone()).collect();
    assert_eq!(steps, [12, 16]);
    assert!(contents(&dir) == before, "the run was written to");

    let e = error(&verify(&["--from", "5"]));
    assert_mentions(&e, &["no checkpoint of step 5", "4, 8, 12, 16, 20, 24", "Keep::last"]);
    let e = error(&verify(&["--from", "24", "--to", "24"]));
    assert_mentions(&e, &["no checkpoint to compare after step 24"]);

    // One bit of one weight.
    flip(&dir, 24, "fc0/W", 7);
    let output = verify(&["--from", "16"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_mentions(
        &text,
        &["step 20: equal", "step 24: fc0/W differs at element [1,2]", "(1 of 15 elements differ)"],
    );
    let output = verify(&["--from", "16", "--json"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &found["equal"]), (Some(1), &json!(false)));
    let last = &found["checkpoints"][1];
    assert_eq!((&last["variable"], &last["element"]), (&json!("fc0/W"), &json!([1, 2])), "{found}");

    // Another build, and none.
    change_manifest(&dir, |start| start["executable"]["bytes"] = 1.into());
    let output = verify(&["--from", "16", "--to", "20"]);
    assert!(output.status.success(), "{output:?}");
    assert_mentions(String::from_utf8_lossy(&output.stderr), &["warning", "built again since the run"]);
    change_manifest(&dir, |start| start["executable"]["path"] = "/nowhere/program".into());
    assert_mentions(error(&verify(&[])), &["/nowhere/program", "missing", "build it again"]);
    change_manifest(&dir, |start| start["processes"] = 3.into());
    assert_mentions(error(&verify(&[])), &["3 processes"]);
}

/// Whatever a program does with its directory, the run is only read.
#[test]
fn a_program_without_options_is_verified_and_its_run_is_only_read() {
    let (_root, dir, output) = train("plain");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (cache, before) = (tempfile::tempdir().unwrap(), contents(&dir));
    let verified = tensorpack(&["verify", dir.to_str().unwrap()], cache.path(), None);
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    assert_mentions(String::from_utf8_lossy(&verified.stdout), &["equal"]);
    assert!(contents(&dir) == before, "the run has changed");
}

#[test]
fn another_run_of_the_same_program_is_not_trained() {
    let (root, dir, output) = train("second");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (cache, before) = (tempfile::tempdir().unwrap(), contents(root.path()));
    let e = error(&tensorpack(&["verify", dir.to_str().unwrap()], cache.path(), None));
    assert_mentions(&e, &["first trains", root.path().join("first").to_str().unwrap()]);
    assert!(contents(root.path()) == before, "a run has changed");
}

/// A signal ends the command and the program that it has started, and nothing is left of them.
#[test]
fn signals_end_the_program_and_remove_the_copy() {
    let (root, dir, trained) = train("slow");
    assert!(trained.status.success(), "{trained:?}");
    let cache = tempfile::tempdir().unwrap();
    let copies = cache.path().join("copies");
    fs::create_dir(&copies).unwrap();
    let noted = root.path().join("process");
    // To the command alone, as `kill` does, and to its process group, as Ctrl-C does.
    for (signal, to_group) in [(libc::SIGTERM, false), (libc::SIGINT, true)] {
        let words = ["verify", dir.to_str().unwrap()];
        let mut command = crate::command(&[("TMPDIR", copies.to_str().unwrap())], &words, cache.path());
        command.process_group(0).stdout(Stdio::null()).stderr(Stdio::null());
        // A shell that starts these tests in the background has them ignore SIGINT.
        let restore = || {
            // SAFETY: the action is the default one.
            unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
            Ok(())
        };
        // SAFETY: between fork and exec, the closure makes one call, which is allowed there.
        unsafe { command.pre_exec(restore) };
        let mut running = command.spawn().unwrap();
        let process: i32 = loop {
            match fs::read_to_string(&noted).ok().and_then(|text| text.parse().ok()) {
                Some(process) => break process,
                None => std::thread::sleep(std::time::Duration::from_millis(10)),
            }
            assert!(running.try_wait().unwrap().is_none(), "it ended by itself");
        };
        assert_eq!(fs::read_dir(&copies).unwrap().count(), 1);
        let id = running.id() as i32;
        // SAFETY: this is our child, and it has not been awaited yet, so the id is still its own.
        unsafe { libc::kill(if to_group { -id } else { id }, signal) };
        let status = running.wait().unwrap();
        assert_eq!(status.signal(), Some(signal), "{status:?}");
        assert_eq!(fs::read_dir(&copies).unwrap().count(), 0);
        // SAFETY: signal 0 is only a question.
        assert_eq!(unsafe { libc::kill(process, 0) }, -1, "the program still runs");
        fs::remove_file(&noted).unwrap();
    }
}

/// Callbacks clean up after a part of a run, too.
#[test]
fn callbacks_see_the_end_of_a_repeated_part() {
    let (root, dir, trained) = train("shuffled");
    assert!(trained.status.success(), "{trained:?}");
    let (cache, noted) = (tempfile::tempdir().unwrap(), root.path().join("after_train"));
    let file = cache.path().join("step.safetensors");
    for words in [
        vec!["verify", dir.to_str().unwrap(), "--to", "8"],
        vec!["verify", dir.to_str().unwrap(), "--to", "12"],
        vec!["replay", dir.to_str().unwrap(), "--step", "6", "--output", file.to_str().unwrap()],
    ] {
        fs::remove_file(&noted).unwrap();
        out(&tensorpack(&words, cache.path(), None));
        assert!(noted.exists(), "{words:?}");
    }
}

/// A run that goes on with other options is compared up to there.
#[test]
fn a_run_with_more_epochs_is_compared_up_to_where_its_options_changed() {
    let (_root, dir, trained) = train("shuffled");
    assert!(trained.status.success(), "{trained:?}");
    // A second start at step 12, with other arguments, as if the epochs after it had been added later.
    let path = dir.join("manifest.json");
    let mut manifest: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let starts = manifest["starts"].as_array_mut().unwrap();
    let mut second = starts[0].clone();
    second["resumed_at"] = 12.into();
    second["arguments"].as_array_mut().unwrap().push("--max-epoch=2".into());
    starts.push(second);
    fs::write(&path, manifest.to_string()).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let output = tensorpack(&["verify", dir.to_str().unwrap(), "--json"], cache.path(), None);
    let note = String::from_utf8_lossy(&output.stderr);
    assert_mentions(&note, &["the steps after 12 were trained with other options", "--from 12"]);
    let found: Value = serde_json::from_str(&out(&output)).unwrap();
    let steps: Vec<u64> =
        found["checkpoints"].as_array().unwrap().iter().map(|c| c["step"].as_u64().unwrap()).collect();
    assert_eq!(steps.last(), Some(&12), "{steps:?}");
    assert_eq!(found["equal"], true);
    // From there on, the later start's arguments are used, which this program does not know.
    let output = tensorpack(&["verify", dir.to_str().unwrap(), "--from", "12"], cache.path(), None);
    assert_mentions(error(&output), &["failed", "max-epoch"]);
}

#[test]
fn a_program_that_does_not_take_part_is_an_error() {
    let (_root, dir, _) = train("shuffled");
    let cache = tempfile::tempdir().unwrap();
    change_manifest(&dir, |start| {
        start["executable"]["path"] = "/bin/true".into();
    });
    let e = error(&tensorpack(&["verify", dir.to_str().unwrap()], cache.path(), None));
    assert_mentions(&e, &["/bin/true", "ended before the last step", "manifest.json"]);
}

/// The command line is the same, but the options are not.
#[test]
fn a_changed_configuration_file_is_an_error() {
    let (root, dir, _) = train("configured");
    let run = dir.to_str().unwrap();
    let verified = out(&tensorpack(&["verify", run, "--to", "8"], root.path(), None));
    assert!(verified.contains("step 8: equal"), "{verified}");
    fs::write(root.path().join("run.toml"), "threads-per-device = 2\n").unwrap();
    let replayed = tensorpack(
        &["replay", run, "--step", "6", "-o", root.path().join("x.safetensors").to_str().unwrap()],
        root.path(),
        None,
    );
    assert_mentions(error(&replayed), &["threads-per-device", "2", "1", "--config"]);
}

#[test]
fn data_that_cannot_be_read_again_is_an_error() {
    let (_root, dir, trained) = train("once");
    assert!(trained.status.success(), "{trained:?}");
    let cache = tempfile::tempdir().unwrap();
    let e = error(&tensorpack(&["verify", dir.to_str().unwrap()], cache.path(), None));
    assert_mentions(&e, &["no step can be repeated", "read only once"]);
}

/// Its steps run on forks of the session.
#[test]
fn a_step_of_an_asynchronous_run_cannot_be_replayed() {
    let (_root, dir, trained) = train("asynchronous");
    assert!(trained.status.success(), "{trained:?}");
    let cache = tempfile::tempdir().unwrap();
    let e = error(&tensorpack(&["replay", dir.to_str().unwrap(), "--step", "6"], cache.path(), None));
    assert_mentions(e, &["step 6 cannot be replayed", "asynchronous trainers"]);
}

#[test]
fn a_step_that_is_not_finite_is_replayed() {
    let (_root, dir, trained) = train("bad");
    let text = String::from_utf8_lossy(&trained.stderr);
    assert_eq!(trained.status.code(), Some(1), "{text}");
    assert!(text.contains("step 7"), "{text}");
    let before = contents(&dir);
    let cache = tempfile::tempdir().unwrap();
    let file = cache.path().join("step.safetensors");
    let replay = |step: &str, more: &[&str]| {
        let words = ["replay", dir.to_str().unwrap(), "--step", step, "--output", file.to_str().unwrap()];
        tensorpack(&[&words, more].concat(), cache.path(), None)
    };
    let tensors = || safetensors::read(&file).unwrap().into_iter().collect::<BTreeMap<_, _>>();

    let text = out(&replay("7", &[]));
    assert_mentions(&text, &["from the checkpoint of step 4", "ratio is the first that is not finite"]);
    assert!(text.contains("reruns/mod.rs:"), "{text}");
    let dumped = tensors();
    assert_eq!((&dumped["x"], &dumped["divisor"]), (&batch(BAD, 0.0)[0], &HostTensor::scalar(0.0f32)));
    assert_eq!((dumped["ratio"].dtype(), dumped["ratio"].sizes()), (DType::F32, &[4, 2][..]));
    assert!(dumped["ratio"].to_f64_vec().iter().any(|v| !v.is_finite()));
    assert!(dumped["cost"].to_f64_vec()[0].is_nan() || dumped["cost"].to_f64_vec()[0].is_infinite());

    let found: Value = serde_json::from_str(&out(&replay("7", &["--f64", "--json"]))).unwrap();
    assert_eq!((&found["first_not_finite"], &found["f64"]), (&json!("ratio"), &json!(true)));
    let exact = tensors();
    assert_eq!(exact["ratio"].dtype(), DType::F64);
    // The same step: the same batch, weights and dropout.
    for name in ["fc0/Relu", "dropout/Dropout/RandomUniform", "dropout/Dropout/Select"] {
        assert_eq!(dumped[name].sizes(), exact[name].sizes(), "{name}");
        for (a, b) in dumped[name].to_f64_vec().iter().zip(exact[name].to_f64_vec()) {
            assert!((a - b).abs() < 1e-5, "{name}: {a} and {b}");
        }
    }
    assert!(contents(&dir) == before, "the run was written to");

    // A good step of the same run, before it.
    assert_mentions(out(&replay("6", &[])), &["step 6", "all are finite"]);
    let e = error(&replay("3", &[]));
    assert_mentions(&e, &["no checkpoint from before step 3", "the steps 4"]);
}
