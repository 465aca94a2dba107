//! Ctrl-C while XLA compiles ends the process, and the last checkpoint is unchanged.

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
struct Deep;

impl ModelDesc for Deep {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None, Some(4)])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let mut x = inputs[0].clone();
        for i in 0..100 {
            x = Linear::new(4 + i).apply(t, &format!("fc{i}"), &x);
            x = BatchNorm::new().apply(t, &format!("bn{i}"), &x).tanh();
        }
        x.square().mean().named("cost")
    }

    fn optimizer(&self, _: &TowerContext) -> Box<dyn Optimizer> {
        Adam::new(1e-3).boxed()
    }
}

fn train(dir: &Path, device: Device, epochs: u64) -> Result<()> {
    let data = FromFn::new(100, |index| Ok(vec![HostTensor::new([2, 4], vec![index as f32 / 100.0; 8])?]));
    let config = TrainConfig::new(Deep, data)
        .callback(ModelSaver::new())
        .session(SessionOptions { device, ..SessionOptions::default() })
        .steps_per_epoch(2)
        .max_epoch(epochs)
        .logdir(dir);
    launch_train_with_config(config, SimpleTrainer::new()).map(|_| ())
}

/// Runs in a child process: resumes a run on XLA.
#[test]
fn child_that_compiles() {
    if let (Some(dir), Some(device)) = (std::env::var_os(DIR), device()) {
        train(Path::new(&dir), device, 2).unwrap();
    }
}

/// Returns the last checkpoint of a run.
pub(crate) fn latest(dir: &Path) -> Checkpoint {
    let name = std::fs::read_to_string(dir.join("checkpoints/latest")).expect("a checkpoint");
    Checkpoint::load(dir.join("checkpoints").join(name.trim())).expect("a valid checkpoint")
}

#[test]
fn a_signal_while_xla_compiles_ends_the_process_and_keeps_the_last_checkpoint() {
    if device().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // A checkpoint to resume from, written by another engine.
    train(dir.path(), Device::Null, 1).unwrap();
    let before = latest(dir.path());
    assert_eq!(before.global_step, 2);
    let mut command = child("compile::child_that_compiles");
    let mut running =
        command.env(DIR, dir.path()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = Vec::new();
    for line in BufReader::new(running.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        // Kill it as soon as it logs that it compiles, which takes much longer than this.
        if line.contains("XLA compiles for ") {
            // SAFETY: this is our child, and it has not been awaited yet, so the id is still its
            // own.
            unsafe { libc::kill(running.id() as i32, libc::SIGINT) };
        }
        said.push(line);
    }
    let status = running.wait().unwrap();
    let said = said.join("\n");
    assert_eq!(status.signal(), Some(libc::SIGINT), "{said}");
    assert!(said.contains("s so far") && !said.contains("XLA compiled for "), "{said}");
    assert!(said.contains("last checkpoint"), "{said}");
    let after = latest(dir.path());
    assert_eq!((after.global_step, after.tensors.len()), (before.global_step, before.tensors.len()));
    assert!(after.tensors == before.tensors, "the checkpoint has changed");
}

/// The first step has taken its batch, but has changed nothing: the run is saved as it was before.
#[test]
fn a_signal_while_xla_compiles_the_first_step_saves() {
    if device().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = child("compile::child_that_compiles");
    let mut running =
        command.env(DIR, dir.path()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = Vec::new();
    for line in BufReader::new(running.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        if line.contains("XLA compiles for ") {
            // SAFETY: the child is ours, and was not waited for yet.
            unsafe { libc::kill(running.id() as i32, libc::SIGTERM) };
        }
        said.push(line);
    }
    let status = running.wait().unwrap();
    let said = said.join("\n");
    assert_eq!(status.signal(), Some(libc::SIGTERM), "{said}");
    assert!(said.contains("saving") && !said.contains("XLA compiled for "), "{said}");
    let saved = latest(dir.path());
    assert_eq!((saved.global_step, &saved.state["position"]["steps"]), (0, &0.into()));
    let input = saved.state["input"].to_string();
    assert!(!input.contains(|c: char| ('1'..='9').contains(&c)), "{input} is not the start");
}
