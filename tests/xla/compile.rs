//! A signal while XLA compiles ends the process and loses nothing that was saved.

use crate::{child, device};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use tensorpack::dataflow::FromFn;
use tensorpack::io::Checkpoint;
use tensorpack::optim::Optimizer;
use tensorpack::prelude::*;

const DIR: &str = "TENSORPACK_TEST_RUN";

/// Many layers of different sizes, so that XLA compiles for a while.
struct Deep {
    layers: usize,
}

impl ModelDesc for Deep {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None, Some(4)])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let mut x = inputs[0].clone();
        for i in 0..self.layers {
            x = Linear::new(4 + i).apply(t, &format!("fc{i}"), &x);
            x = BatchNorm::new().apply(t, &format!("bn{i}"), &x).tanh();
        }
        x.square().mean().named("cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(1e-3).boxed()
    }
}

/// Trains a net of 100 layers.
pub(crate) fn train(dir: &Path, options: SessionOptions, epochs: u64) -> Result<()> {
    train_layers(100, dir, options, epochs)
}

pub(crate) fn train_layers(layers: usize, dir: &Path, options: SessionOptions, epochs: u64) -> Result<()> {
    let data = FromFn::new(100, |index| Ok(vec![HostTensor::new([2, 4], vec![index as f32 / 100.0; 8])?]));
    let config = TrainConfig::new(Deep { layers }, data)
        .callback(ModelSaver::new())
        .session(options)
        .steps_per_epoch(2)
        .max_epoch(epochs)
        .logdir(dir);
    launch_train_with_config(config, SimpleTrainer::new()).map(|_| ())
}

/// Runs in a child process: resumes a run on XLA.
#[test]
fn child_that_compiles() {
    if let (Some(dir), Some(device)) = (std::env::var_os(DIR), device()) {
        // The program must be compiled each time.
        let options = SessionOptions { device, compile_cache_bytes: Some(0), ..SessionOptions::default() };
        train(Path::new(&dir), options, 2).unwrap();
    }
}

/// Returns the last checkpoint of a run.
pub(crate) fn latest(dir: &Path) -> Checkpoint {
    let name = std::fs::read_to_string(dir.join("checkpoints/latest")).expect("a checkpoint");
    Checkpoint::load(dir.join("checkpoints").join(name.trim())).expect("a valid checkpoint")
}

/// Trains in a child process, sends it `signal` when XLA starts to compile, and returns the child's
/// log. Checks that the signal ended the child before the compilation finished.
fn signal_while_compiling(dir: &Path, signal: libc::c_int) -> String {
    let mut command = child("compile::child_that_compiles");
    let mut running = command.env(DIR, dir).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut log = Vec::new();
    for line in BufReader::new(running.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        // XLA compiles for much longer than the signal takes to arrive.
        if line.contains("XLA compiles for ") {
            // SAFETY: this is our child, and it has not been awaited yet, so the id is still its
            // own.
            unsafe { libc::kill(running.id() as i32, signal) };
        }
        log.push(line);
    }
    let status = running.wait().unwrap();
    let log = log.join("\n");
    assert_eq!(status.signal(), Some(signal), "{log}");
    assert!(!log.contains("XLA compiled for "), "{log}");
    log
}

#[test]
fn a_signal_while_xla_compiles_ends_the_process_and_keeps_the_last_checkpoint() {
    if device().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // A checkpoint to resume from, written by another engine.
    let null = SessionOptions { device: Device::Null, ..SessionOptions::default() };
    train(dir.path(), null, 1).unwrap();
    let before = latest(dir.path());
    assert_eq!(before.global_step, 2);
    let log = signal_while_compiling(dir.path(), libc::SIGINT);
    assert!(log.contains("s so far") && log.contains("last checkpoint"), "{log}");
    let after = latest(dir.path());
    assert_eq!((after.global_step, after.tensors.len()), (before.global_step, before.tensors.len()));
    assert!(after.tensors == before.tensors, "the checkpoint has changed");
}

/// The first step has taken its batch but has changed nothing, so the checkpoint holds the state
/// before it.
#[test]
fn a_signal_while_xla_compiles_the_first_step_saves_the_state_before_it() {
    if device().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let log = signal_while_compiling(dir.path(), libc::SIGTERM);
    assert!(log.contains("saving"), "{log}");
    let saved = latest(dir.path());
    assert_eq!((saved.global_step, &saved.state["position"]["steps"]), (0, &0.into()));
    let input = saved.state["input"].to_string();
    assert!(!input.contains(|c: char| ('1'..='9').contains(&c)), "not the initial position: {input}");
}
