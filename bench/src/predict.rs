//! Measures predictions.

use crate::memory::{cpu_seconds, peak_rss_mb};
use crate::predicted_net::Net;
use crate::roofline;
use std::path::PathBuf;
use std::time::Instant;
use tensorpack::Result;
use tensorpack::predict::{OfflinePredictor, OnnxOptions, PredictConfig};
use tensorpack::runtime::SessionOptions;

/// Warm-up predictions.
const WARM_UP: usize = 3;

/// The options of `bench -- predict`.
#[derive(Debug, clap::Args)]
pub(crate) struct PredictArgs {
    /// The net.
    #[arg(long, value_name = "NAME", value_enum, default_value = "resnet50")]
    net: Net,
    /// Examples of one prediction.
    #[arg(long, value_name = "B", default_value_t = 1)]
    batch: usize,
    /// Threads; defaults to one per core.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Predictions to time.
    #[arg(long, value_name = "N", default_value_t = 20)]
    steps: usize,
    /// Leave batch normalization as it is.
    #[arg(long)]
    no_fold: bool,
    /// Multiply 8-bit integers in large layers.
    #[arg(long)]
    int8: bool,
    /// Write the model to this ONNX file, and measure nothing.
    #[arg(long, value_name = "FILE")]
    onnx: Option<PathBuf>,
    /// Print one JSON line.
    #[arg(long)]
    json: bool,
    /// Print a table of kernels: share of the prediction, speed, and share of the machine's peak.
    #[arg(long)]
    profile: bool,
    /// Print the plan and run nothing.
    #[arg(long)]
    plan: bool,
}

pub(crate) fn measure(args: &PredictArgs, started: Instant) -> Result<()> {
    let options =
        SessionOptions { threads: args.threads, profile: args.profile, ..SessionOptions::default() };
    let config = PredictConfig::from_tower(args.net.tower()?, ["y"]).session(options);
    let predictor = OfflinePredictor::new(config)?;
    let mut folded = if args.no_fold { None } else { Some(predictor.folded()?) };
    if args.int8 {
        folded = Some(folded.map_or_else(|| predictor.int8(), |model| model.int8())?);
    }
    if let Some(path) = &args.onnx {
        let options = OnnxOptions::default();
        return match &folded {
            Some(model) => model.export_onnx(path, &options),
            None => predictor.export_onnx(path, &options),
        };
    }
    let session = folded.as_ref().map_or(predictor.session(), |model| model.session());
    let x = args.net.examples(args.batch)?;
    if args.plan {
        let y = session.graph().fetch("y")?;
        print!("{}", session.plan_text(&[&y], &[("x", &x)])?);
        return Ok(());
    }
    let run = || match &folded {
        Some(model) => model.predict(&[&x]),
        None => predictor.predict(&[&x]),
    };
    run()?;
    let first = started.elapsed().as_secs_f64();
    for _ in 0..WARM_UP {
        run()?;
    }
    let (mut times, cpu): (Vec<f64>, f64) = (Vec::with_capacity(args.steps), cpu_seconds());
    for _ in 0..args.steps.max(1) {
        let began = Instant::now();
        run()?;
        times.push(began.elapsed().as_secs_f64());
    }
    let cpu = (cpu_seconds() - cpu) / times.len() as f64 * 1e3;
    let mean = times.iter().sum::<f64>() / times.len() as f64 * 1e3;
    times.sort_by(f64::total_cmp);
    let (ms, best) = (times[times.len() / 2] * 1e3, times[0] * 1e3);
    let (name, batch, rss) = (args.net.name(), args.batch, peak_rss_mb());
    if args.json {
        println!(
            "{{\"net\":\"{name}\",\"batch\":{batch},\"ms_per_step\":{ms:.4},\"ms_mean\":{mean:.4},\
             \"ms_best\":{best:.4},\"cpu_ms\":{cpu:.4},\"first_step_s\":{first:.4},\"peak_rss_mb\":{rss:.1}}}"
        );
    } else {
        println!(
            "{name}, batch {batch}: {ms:.3} ms (best {best:.3}), {cpu:.3} ms of processor time; \
             first after {first:.3} s; peak {rss:.0} MB"
        );
    }
    if args.profile {
        roofline::print_table(&session.profile()?, args.threads)?;
    }
    Ok(())
}
