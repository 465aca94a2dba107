//! Runs training steps and says how long they take.

use crate::memory::peak_rss_mb;
use crate::{Options, roof};
use std::time::Instant;
use tensorpack::graph::Graph;
use tensorpack::runtime::{Session, SessionOptions};
use tensorpack::{HostTensor, Result};

/// Steps before the clock starts.
const WARM_UP: usize = 3;

pub(crate) fn measure(options: &Options, started: Instant) -> Result<()> {
    let graph = Graph::new();
    let batch = options.batch.unwrap_or(options.model.batch());
    let (cost, train) = options.model.build(&graph, batch, options.dtype)?;
    let session_options = SessionOptions {
        device: options.device,
        threads: options.threads,
        isa: options.isa,
        profile: options.profile,
        ..SessionOptions::default()
    };
    let session = Session::with(graph.freeze()?, session_options)?;
    let synthetic = options.model.synthetic(batch)?;
    let feeds: Vec<(&str, &HostTensor)> = synthetic.iter().map(|(name, value)| (*name, value)).collect();
    if options.plan {
        print!("{}", session.plan_text(&[&cost, &train], &feeds)?);
        return Ok(());
    }
    let step = session.prepare(&[&cost, &train])?;
    let mut outputs = Vec::new();
    session.run_prepared(&step, &feeds, &mut outputs)?;
    let first_step = started.elapsed().as_secs_f64();
    for _ in 0..WARM_UP {
        session.run_prepared(&step, &feeds, &mut outputs)?;
    }
    let mut times: Vec<f64> = Vec::with_capacity(options.steps);
    for _ in 0..options.steps.max(1) {
        let began = Instant::now();
        session.run_prepared(&step, &feeds, &mut outputs)?;
        times.push(began.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    let loss = outputs[0].to_scalar()?;
    let (ms, rate) = (median * 1e3, batch as f64 / median);
    let rss = peak_rss_mb();
    if options.json {
        println!(
            "{{\"model\":\"{}\",\"devices\":\"{}\",\"batch\":{},\"ms_per_step\":{ms:.4},\"examples_per_s\":{rate:.1},\
             \"first_step_s\":{first_step:.4},\"peak_rss_mb\":{rss:.1}}}",
            options.model.name(),
            options.device,
            batch
        );
    } else {
        println!(
            "{} on {}, batch {}: {ms:.3} ms a step (best {:.3}), {rate:.0} examples/s; first step after {first_step:.3} s; \
             peak {rss:.0} MB; loss {loss:.4}",
            options.model.name(),
            options.device,
            batch,
            times[0] * 1e3
        );
    }
    if options.profile {
        roof::print_table(&session.profile()?, options.threads)?;
    }
    Ok(())
}
