//! Predicts and measures how the time of a training step grows with the number of ranks.
//!
//! Started by a launcher, it measures the network and a step with the other ranks. Started alone, it
//! starts itself as 2, 4 and 8 ranks on hosts of this machine, behind a network of the given delay
//! and rate.

use crate::network::{self, NetworkArgs};
use crate::scaling_model::{Algorithm, Link, Prediction, Step, Topology, predict};
use crate::step::Built;
use crate::timed_model::{LAYERS, TimedModel};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tensorpack::distributed::ProcessGroup;
use tensorpack::runtime::{IntoFetch, Session, SessionOptions};
use tensorpack::train::{DistributedTrainerReplicated, SimpleTrainer};
use tensorpack::{Error, ErrorKind, HostTensor, Result};

/// The longest wait for another rank.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Steps before those that are timed.
const WARM_UP: usize = 5;
/// The backward pass takes about twice as long as the forward pass.
const FORWARD_SHARE: f64 = 1.0 / 3.0;
/// The least and the most bytes of a bucket; between them, it has an eighth of all.
const BUCKET_RANGE: (f64, f64) = (262_144.0, 26_214_400.0);

/// The options of `bench -- scaling`.
#[derive(Debug, clap::Args)]
pub(crate) struct ScalingArgs {
    /// The numbers of ranks to start, each on a host of its own.
    #[arg(long, value_name = "LIST", default_value = "2,4,8", value_delimiter = ',')]
    ranks: Vec<usize>,
    #[command(flatten)]
    network: NetworkArgs,
    /// The milliseconds that a step computes.
    #[arg(long, value_name = "MS", default_value_t = 60.0)]
    compute_ms: f64,
    /// The megabytes of gradients.
    #[arg(long, value_name = "MB", default_value_t = 2.1)]
    gradients_mb: f64,
    /// Steps to time.
    #[arg(long, value_name = "N", default_value_t = 20)]
    steps: usize,
    /// The latency in microseconds, if it is known; measured otherwise.
    #[arg(long, value_name = "US", requires = "bandwidth_mb")]
    latency_us: Option<f64>,
    /// The bandwidth in megabytes per second, if it is known.
    #[arg(long, value_name = "MB", requires = "latency_us")]
    bandwidth_mb: Option<f64>,
    /// Predict only, for these numbers of ranks.
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "latency_us")]
    predict: Vec<usize>,
    /// How ranks sum up, for --predict: ours over MPI, or a ring or trees as NCCL's.
    #[arg(long, value_enum, default_value = "exchange")]
    algorithm: Algorithm,
    /// The ranks of a node that a faster network connects, for --predict.
    #[arg(long, value_name = "N", requires = "node_latency_us", requires = "node_bandwidth_mb")]
    node_ranks: Option<usize>,
    /// The latency in a node, in microseconds.
    #[arg(long, value_name = "US")]
    node_latency_us: Option<f64>,
    /// The bandwidth in a node, in megabytes per second.
    #[arg(long, value_name = "MB")]
    node_bandwidth_mb: Option<f64>,
    /// The milliseconds until the next batch is there, for --predict.
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    input_ms: f64,
    /// The standard deviation of the time of a step on one rank, for --predict.
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    deviation_ms: f64,
    /// Print JSON lines.
    #[arg(long)]
    json: bool,
}

/// Predicts and measures: as a rank, or as the program that starts them.
pub(crate) fn measure(args: &ScalingArgs) -> Result<()> {
    if !args.predict.is_empty() {
        return print_predictions(args);
    }
    let trainer = DistributedTrainerReplicated::new(1);
    let group = trainer.join()?.clone();
    match group.size() {
        1 => start_ranks(args),
        _ => measure_rank(args, trainer, &group),
    }
}

impl ScalingArgs {
    fn model(&self) -> Result<TimedModel> {
        let elements = (self.gradients_mb * 1e6 / (4 * LAYERS) as f64) as usize;
        let in_range =
            self.compute_ms > 0.0 && self.compute_ms < 1e6 && elements >= 1 && self.gradients_mb < 1e4;
        if !in_range || self.steps == 0 {
            return Err(Error::argument("--compute-ms, --gradients-mb and --steps must be more than 0"));
        }
        let layer = self.compute_ms * 1e-3 / LAYERS as f64;
        let forward = Duration::from_secs_f64(layer * FORWARD_SHARE);
        let backward = Duration::from_secs_f64(layer * (1.0 - FORWARD_SHARE));
        Ok(TimedModel { elements, forward, backward })
    }

    /// Returns the network of the options, if it is known.
    fn known_network(&self) -> Option<Link> {
        let (latency, bandwidth) = (self.latency_us? * 1e-6, self.bandwidth_mb? * 1e6);
        Some(Link { latency, bandwidth })
    }
}

/// Prints what the model predicts for a network that is given.
fn print_predictions(args: &ScalingArgs) -> Result<()> {
    let network = args.known_network().ok_or_else(|| Error::argument("--predict needs a network"))?;
    let compute = args.compute_ms * 1e-3;
    // As `runtime/cpu/exchange.rs` divides them.
    let bytes = args.gradients_mb * 1e6;
    let count = (bytes / (bytes / 8.0).clamp(BUCKET_RANGE.0, BUCKET_RANGE.1)).ceil().max(1.0);
    let step = Step {
        forward: compute * FORWARD_SHARE,
        backward: compute * (1.0 - FORWARD_SHARE),
        rest: 0.0,
        input: args.input_ms * 1e-3,
        buckets: vec![bytes / count; count as usize],
        deviation: args.deviation_ms * 1e-3,
    };
    let node = args.node_ranks.zip(args.node_latency_us).zip(args.node_bandwidth_mb);
    let node = node.map(|((ranks, latency), bandwidth)| {
        (ranks.max(1), Link { latency: latency * 1e-6, bandwidth: bandwidth * 1e6 })
    });
    let topology = Topology { network, node, algorithm: args.algorithm };
    if !args.json {
        println!("| ranks | transfer | exposed | step | efficiency |\n|--:|--:|--:|--:|--:|");
    }
    let alone = predict(&step, &topology, 1).step;
    for &ranks in &args.predict {
        let Prediction { step, transfer, exposed } = predict(&step, &topology, ranks);
        let efficiency = alone / step;
        match args.json {
            true => println!(
                "{}",
                json!({"ranks": ranks, "transfer_ms": transfer * 1e3, "exposed_ms": exposed * 1e3,
                       "predicted_ms": step * 1e3, "efficiency": efficiency})
            ),
            false => println!(
                "| {ranks} | {:.2} ms | {:.2} ms | {:.2} ms | {:.1} % |",
                transfer * 1e3,
                exposed * 1e3,
                step * 1e3,
                efficiency * 100.0
            ),
        }
    }
    Ok(())
}

/// Measures the network and a step on this rank, together with the others. Rank 0 prints.
fn measure_rank(
    args: &ScalingArgs,
    trainer: DistributedTrainerReplicated,
    group: &Arc<ProcessGroup>,
) -> Result<()> {
    let (rank, ranks) = (group.rank(), group.size());
    let model = args.model()?;
    let alone = times(model.build(SimpleTrainer, 0, 1)?, None, args.steps)?;
    let network = match args.known_network() {
        Some(known) => known,
        None => group.measure_network(TIMEOUT)?.into(),
    };
    let built = model.build(trainer, rank, ranks)?;
    let waited = group.exposed_communication();
    let together = times(built, Some(group.clone()), args.steps)?;
    let exposed = (group.exposed_communication() - waited).as_secs_f64() / (WARM_UP + args.steps) as f64;
    group.leave(TIMEOUT)?;
    if rank > 0 {
        return Ok(());
    }
    let step = step(&model, &alone);
    let topology = Topology { network, node: None, algorithm: Algorithm::Exchange };
    let found = Found {
        ranks,
        network,
        predicted: predict(&step, &topology, ranks),
        step: median(&together),
        exposed,
    };
    let result = found.to_json(median(&alone));
    match args.json {
        true => println!("{result}"),
        false => print_table(&[result]),
    }
    Ok(())
}

/// What was measured on so many ranks, and predicted before.
struct Found {
    ranks: usize,
    network: Link,
    predicted: Prediction,
    step: f64,
    exposed: f64,
}

impl Found {
    fn to_json(&self, alone: f64) -> Value {
        let ms = |seconds: f64| (seconds * 1e6).round() / 1e3;
        json!({
            "ranks": self.ranks,
            "latency_us": (self.network.latency * 1e7).round() / 10.0,
            "bandwidth_mb": (self.network.bandwidth / 1e4).round() / 100.0,
            "alone_ms": ms(alone),
            "transfer_ms": ms(self.predicted.transfer),
            "predicted_exposed_ms": ms(self.predicted.exposed),
            "predicted_ms": ms(self.predicted.step),
            "exposed_ms": ms(self.exposed),
            "measured_ms": ms(self.step),
            "ratio": ((self.predicted.step / self.step) * 1e3).round() / 1e3,
        })
    }
}

/// Returns the step without communication, from its times on one rank.
fn step(model: &TimedModel, alone: &[f64]) -> Step {
    let (mean, n) = (median(alone), alone.len() as f64);
    let deviation = (alone.iter().map(|t| (t - mean).powi(2)).sum::<f64>() / n).sqrt();
    Step {
        forward: mean * FORWARD_SHARE,
        backward: mean * (1.0 - FORWARD_SHARE),
        rest: 0.0,
        input: 0.0,
        buckets: vec![model.bucket(); LAYERS],
        deviation,
    }
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Returns the seconds of each step.
fn times(built: Built, group: Option<Arc<ProcessGroup>>, steps: usize) -> Result<Vec<f64>> {
    let options = SessionOptions { threads: Some(1), process_group: group, ..SessionOptions::default() };
    let session = Session::with(built.graph.freeze()?, options)?;
    let feeds: Vec<(&str, &HostTensor)> =
        built.inputs.iter().map(|(name, value)| (&name[..], value)).collect();
    let fetches: Vec<&dyn IntoFetch> = built.step.iter().map(|f| f as &dyn IntoFetch).collect();
    let step = session.prepare(&fetches)?;
    let mut outputs = Vec::new();
    let mut times = Vec::with_capacity(steps);
    for i in 0..WARM_UP + steps {
        let begun = Instant::now();
        session.run_prepared(&step, &feeds, &mut outputs)?;
        if i >= WARM_UP {
            times.push(begun.elapsed().as_secs_f64());
        }
    }
    Ok(times)
}

/// Starts this program as ranks on hosts of this machine, for each number of ranks. The network is
/// measured by the first ranks, and the prediction for the others uses what they found.
fn start_ranks(args: &ScalingArgs) -> Result<()> {
    args.model()?;
    let mut results: Vec<Value> = Vec::new();
    for &ranks in &args.ranks {
        let hosts = args.network.hosts(ranks)?;
        let mut words: Vec<OsString> =
            vec![std::env::current_exe()?.into(), "scaling".into(), "--json".into()];
        let mut option = |name: &str, value: f64| words.extend([name.into(), value.to_string().into()]);
        option("--compute-ms", args.compute_ms);
        option("--gradients-mb", args.gradients_mb);
        option("--steps", args.steps as f64);
        let known = |name: &str| results.first().and_then(|first| first[name].as_f64());
        let given = args
            .latency_us
            .or_else(|| known("latency_us"))
            .zip(args.bandwidth_mb.or_else(|| known("bandwidth_mb")));
        if let Some((latency, bandwidth)) = given {
            option("--latency-us", latency);
            option("--bandwidth-mb", bandwidth);
        }
        let output =
            network::command(&hosts, &words)?.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = printed.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok());
        let Some(mut result) = line.filter(|_| output.status.success()) else {
            let why = format!("{ranks} ranks ended with {}: {printed}", output.status);
            return Err(Error::new(ErrorKind::Engine, why));
        };
        result["delay_ms"] = args.network.delay_ms.into();
        result["mbit"] = args.network.mbit.into();
        if args.json {
            println!("{result}");
        }
        results.push(result);
    }
    if !args.json {
        print_table(&results);
    }
    Ok(())
}

fn print_table(results: &[Value]) {
    println!(
        "| ranks | latency | bandwidth | step alone | transfer | exposed: predicted | measured | step: predicted | \
         measured | ratio |\n|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    );
    for r in results {
        println!(
            "| {} | {} us | {} MB/s | {} ms | {} ms | {} ms | {} ms | {} ms | {} ms | {} |",
            r["ranks"],
            r["latency_us"],
            r["bandwidth_mb"],
            r["alone_ms"],
            r["transfer_ms"],
            r["predicted_exposed_ms"],
            r["exposed_ms"],
            r["predicted_ms"],
            r["measured_ms"],
            r["ratio"]
        );
    }
}
