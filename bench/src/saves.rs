//! What checkpoints cost a training run: its rate with and without them.

use crate::classifier::Classifier;
use crate::models::Model;
use crate::shown_cost::ShownCost;
use clap::Args;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;
use tensorpack::callback::TrainCx;
use tensorpack::input::DummyConstantInput;
use tensorpack::prelude::*;

/// The options of `bench -- saves`.
#[derive(Debug, Args)]
pub(crate) struct SavesArgs {
    /// The reference model, one of the classifiers.
    #[arg(long, value_name = "NAME", value_enum, default_value = "mnist")]
    model: Model,
    /// The device.
    #[arg(long, value_name = "NAME", default_value = "cpu:0")]
    device: Device,
    /// Steps to time in each run.
    #[arg(long, value_name = "N", default_value_t = 200)]
    steps: u64,
    /// Steps between checkpoints.
    #[arg(long, value_name = "N", default_value_t = 20)]
    every: u64,
    /// Runs of each kind. Those with and without checkpoints take turns.
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Where to write checkpoints; defaults to the directory of temporary files.
    #[arg(long, value_name = "DIR")]
    dir: Option<std::path::PathBuf>,
    /// Print one JSON line.
    #[arg(long)]
    json: bool,
}

/// Steps before the clock starts: they compile, and touch memory for the first time.
const WARM_UP: u64 = 5;

/// Requests a checkpoint every few steps, and tells when the warm-up is over.
struct Saves {
    every: Option<u64>,
    started: Sender<Instant>,
}

impl Callback for Saves {
    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if cx.global_step == WARM_UP {
            // The receiver is gone if the measurement failed; ignore the send error.
            let _ = self.started.send(Instant::now());
        }
        if self
            .every
            .is_some_and(|every| cx.global_step > WARM_UP && (cx.global_step - WARM_UP).is_multiple_of(every))
        {
            cx.request_save();
        }
        Ok(())
    }
}

/// Trains, and returns the steps per second, from the warm-up until training has returned: the last
/// checkpoint is complete then.
fn rate(args: &SavesArgs, classifier: &Classifier, dir: &Path, every: Option<u64>) -> Result<f64> {
    let batch = args.model.batch();
    let image: Vec<usize> = std::iter::once(batch).chain(classifier.sizes.iter().copied()).collect();
    let (started, start) = channel();
    let config =
        TrainConfig::with_input(ShownCost(classifier.clone()), DummyConstantInput::new([image, vec![batch]]))
            .callback(Saves { every, started })
            .session(SessionOptions { device: args.device, ..SessionOptions::default() })
            .steps_per_epoch(WARM_UP + args.steps)
            .max_epoch(1)
            .quiet()
            .fresh()
            .logdir(dir);
    launch_train_with_config(config, SimpleTrainer::new())?;
    let ended = Instant::now();
    let start = start.recv().map_err(|_| Error::argument("no step was measured"))?;
    Ok(args.steps as f64 / (ended - start).as_secs_f64())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Trains with and without checkpoints, in turn.
pub(crate) fn measure(args: &SavesArgs) -> Result<()> {
    let name = args.model.name();
    let classifier = Classifier::from_model(args.model)
        .ok_or_else(|| Error::argument(format!("{name} is no classifier")))?;
    let root = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let dir = root.join(format!("tensorpack-saves-{}", std::process::id()));
    let (mut without, mut with) = (Vec::new(), Vec::new());
    let mut run = || {
        for _ in 0..args.rounds.max(1) {
            without.push(rate(args, &classifier, &dir, None)?);
            with.push(rate(args, &classifier, &dir, Some(args.every.max(1)))?);
            std::fs::remove_dir_all(&dir)?;
        }
        Ok(())
    };
    let ran: Result<()> = run();
    // The first error is the one to report.
    let _ = std::fs::remove_dir_all(&dir);
    ran?;
    let lost: Vec<f64> =
        without.iter().zip(&with).map(|(without, with)| 100.0 * (1.0 - with / without)).collect();
    let (without, with, lost) = (median(&mut without), median(&mut with), median(&mut lost.clone()));
    let (device, every) = (args.device, args.every);
    if args.json {
        println!(
            "{{\"model\":\"{name}\",\"device\":\"{device}\",\"every\":{every},\"rounds\":{},\
             \"steps_per_s\":{without:.3},\"saving_steps_per_s\":{with:.3},\"lost_percent\":{lost:.2}}}",
            args.rounds
        );
    } else {
        println!(
            "{name} on {device}: {without:.2} steps/s; with a checkpoint every {every} steps {with:.2} steps/s; \
             median loss of a pair of runs {lost:.1} %"
        );
    }
    Ok(())
}
