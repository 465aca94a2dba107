//! Measures training steps.

use crate::data_pipeline::{self, Pipelined};
use crate::memory::peak_rss_mb;
use crate::models::Model;
use crate::{StepArgs, Trainer, roofline, towers};
use std::time::{Duration, Instant};
use tensorpack::graph::{Fetch, Graph, Precision};
use tensorpack::runtime::{Device, IntoFetch, Session, SessionOptions};
use tensorpack::{DType, Error, ErrorKind, HostTensor, Result};

/// Warm-up steps.
const WARM_UP: usize = 3;

/// A training step with its feeds.
pub(crate) struct Built {
    pub(crate) graph: Graph,
    pub(crate) cost: Fetch,
    /// The operations of a step.
    pub(crate) step: Vec<Fetch>,
    pub(crate) inputs: Vec<(String, HostTensor)>,
}

pub(crate) fn one_tower(model: Model, batch: usize, precision: Precision) -> Result<Built> {
    let graph = Graph::new();
    graph.set_precision(precision);
    let (cost, train) = model.build(&graph, batch)?;
    let inputs = model.synthetic(batch)?.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
    Ok(Built { graph, cost: Fetch::from(&cost), step: vec![Fetch::from(&train)], inputs })
}

pub(crate) fn measure(args: &StepArgs, started: Instant) -> Result<()> {
    if args.timeline.is_some() && !data_pipeline::is_pipelined(args) {
        return Err(Error::argument(
            "--timeline records the trainer's loop, which these options do not measure",
        )
        .note("use --input dataflow, or XLA devices in one process and a classifier or the transformer"));
    }
    let batch = args.batch.unwrap_or(args.model.batch());
    let (Built { graph, cost, step, inputs }, group) = match args.devices[..] {
        [_] if args.trainer.is_none() => (one_tower(args.model, batch, args.precision)?, None),
        _ => {
            let trainer = args.trainer.unwrap_or(Trainer::SyncReplicated);
            towers::build(trainer, args.model, batch, args.precision, &args.devices)?
        }
    };
    let session_options = SessionOptions {
        device: args.devices[0],
        threads: args.threads,
        isa: args.isa,
        profile: args.profile,
        process_group: group.clone(),
        ..SessionOptions::default()
    };
    let session = Session::with(graph.freeze()?, session_options)?;
    let feeds: Vec<(&str, &HostTensor)> = inputs.iter().map(|(name, value)| (name.as_str(), value)).collect();
    let all: Vec<&dyn IntoFetch> = std::iter::once(&cost).chain(&step).map(|f| f as &dyn IntoFetch).collect();
    if args.plan {
        print!("{}", session.plan_text(&all, &feeds)?);
        return Ok(());
    }
    let step = session.prepare(&all)?;
    let mut outputs = Vec::new();
    let mut run = || match session.run_prepared(&step, &feeds, &mut outputs) {
        // In f16 a step that overflows is skipped, and takes as long.
        Err(e) if e.kind() == ErrorKind::Overflow => Ok(()),
        ran => ran,
    };
    run()?;
    let first_step = started.elapsed().as_secs_f64();
    for _ in 0..WARM_UP {
        run()?;
    }
    let waited = || group.as_ref().map_or(0.0, |group| group.exposed_communication().as_secs_f64());
    let waited_before = waited();
    let mut times: Vec<f64> = Vec::with_capacity(args.steps);
    for _ in 0..args.steps.max(1) {
        let began = Instant::now();
        run()?;
        times.push(began.elapsed().as_secs_f64());
    }
    let mean = times.iter().sum::<f64>() / times.len() as f64 * 1e3;
    let exposed = (waited() - waited_before) / times.len() as f64 * 1e3;
    let (rank, ranks) = group.as_ref().map_or((0, 1), |group| (group.rank(), group.size()));
    let rss = peak_rss_mb();
    // On all ranks: compilers of several processes may wait for each other.
    let shapes: Vec<(&str, DType, &[usize])> =
        feeds.iter().map(|(name, value)| (*name, value.dtype(), value.sizes())).collect();
    let planned = match session.planned_bytes(&all, &shapes) {
        Ok(bytes) => Some(bytes as f64 / 1e6),
        // The null device and the reference.
        Err(e) if e.kind() == ErrorKind::Unsupported => None,
        Err(e) => return Err(e),
    };
    // That of steps that wait: the loop below has a session of its own.
    let device_peak =
        session.device_memory()?.into_iter().map(|memory| memory.peak as f64 / 1e6).reduce(f64::max);
    if let Some(group) = &group {
        group.leave(Duration::from_secs(60))?;
    }
    if rank > 0 {
        return Ok(());
    }
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    let loss = outputs.first().map_or(Ok(f64::NAN), HostTensor::to_scalar)?;
    let (ms, rate) = (median * 1e3, (batch * args.devices.len() * ranks) as f64 / median);
    let devices = args.devices.iter().map(Device::to_string).collect::<Vec<_>>().join(",");
    let pipelined = data_pipeline::pipelined(args, batch)?;
    if args.json {
        let in_loop = pipelined.as_ref().map_or(String::new(), |p| {
            let (k, ms) = (args.steps_per_launch, p.seconds * 1e3);
            format!(",\"steps_per_launch\":{k},\"pipelined_ms_per_step\":{ms:.4}")
        });
        let [planned, device_peak] =
            [planned, device_peak].map(|mb| mb.map_or("null".to_string(), |mb| format!("{mb:.1}")));
        println!(
            "{{\"model\":\"{}\",\"devices\":\"{}\",\"batch\":{},\"ms_per_step\":{ms:.4},\"ms_mean\":{mean:.4},\"examples_per_s\":{rate:.1},\
             \"first_step_s\":{first_step:.4},\"peak_rss_mb\":{rss:.1},\"planned_mb\":{planned},\"device_peak_mb\":{device_peak},\"ranks\":{ranks},\"exposed_ms\":{exposed:.4}{in_loop}}}",
            args.model.name(),
            devices,
            batch
        );
    } else {
        let planned = planned.map_or(String::new(), |mb| format!("planned {mb:.0} MB, "));
        let device_peak = device_peak.map_or(String::new(), |mb| format!("peak {mb:.0} MB of the device, "));
        println!(
            "{} on {}, batch {}: {ms:.3} ms per step (best {:.3}), {rate:.0} examples/s; first step after {first_step:.3} s; \
             {planned}{device_peak}peak {rss:.0} MB; loss {loss:.4}",
            args.model.name(),
            devices,
            batch,
            times[0] * 1e3
        );
        if let Some(pipelined) = &pipelined {
            let (k, ms) = (args.steps_per_launch, pipelined.seconds * 1e3);
            println!("pipelined in the trainer's loop, {k} steps per launch: {ms:.3} ms per step");
        }
    }
    if ranks > 1 && !args.json {
        println!("{ranks} ranks; exposed communication {exposed:.3} ms per step");
    }
    match pipelined {
        Some(pipelined) if args.profile => print_host_times(&pipelined, args.steps_per_launch),
        None if args.profile => roofline::print_table(&session.profile()?, args.threads)?,
        _ => {}
    }
    Ok(())
}

/// Prints what the host spends on a step of the trainer's loop, by part. The rest is the loop itself:
/// input, callbacks, monitors.
fn print_host_times(pipelined: &Pipelined, steps_per_launch: usize) {
    // Several programs have the same parts; the one with most launches is that of the loop.
    let most = pipelined.host.iter().map(|part| part.runs).max().unwrap_or(0);
    let mut rest = pipelined.seconds;
    for part in pipelined.host.iter().filter(|part| part.runs == most) {
        let seconds = part.seconds / part.runs.max(1) as f64 / steps_per_launch as f64;
        let best = part.best_seconds / steps_per_launch as f64;
        rest -= seconds;
        println!("{:>9.1} us (best {:>7.1})  {}", seconds * 1e6, best * 1e6, part.name);
    }
    println!("{:>9.1} us                 host: input, callbacks and the loop", rest.max(0.0) * 1e6);
}
