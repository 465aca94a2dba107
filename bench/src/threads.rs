//! Scaling of the step time with the number of threads.

use crate::models::Model;
use crate::step::{Built, one_tower};
use crate::timing::median_seconds;
use tensorpack::graph::Precision;
use tensorpack::runtime::cpu::{Isa, Team};
use tensorpack::runtime::{IntoFetch, Roofline, Session, SessionOptions};
use tensorpack::{HostTensor, Result};

const MODELS: [Model; 5] = [Model::Mlp, Model::Mnist, Model::Resnet32, Model::Ptb, Model::Dcgan];
/// Each step is measured for at least this long.
const SECONDS: f64 = 1.5;

/// Measures every reference model with these numbers of threads, and prints milliseconds per step
/// with the speed-up over the first. The machine's own speed-up, of multiply-adds in registers, is
/// what no model can exceed by much.
pub(crate) fn measure(threads: &[usize]) -> Result<()> {
    let columns = threads.iter().map(|n| format!(" {n} threads |")).collect::<String>();
    println!("| ms per step |{columns}\n|---|{}", "--:|".repeat(threads.len()));
    let peaks: Vec<f64> =
        threads.iter().map(|&n| Roofline::measure(&mut Team::new(n), Isa::detect()).gflops).collect();
    let cells = peaks.iter().map(|gflops| format!(" {gflops:.0} ({:.1}) |", gflops / peaks[0]));
    println!("| multiply-adds, GFLOP/s |{}", cells.collect::<String>());
    for model in MODELS {
        let times = threads.iter().map(|&n| seconds(model, n)).collect::<Result<Vec<f64>>>()?;
        let cells = times.iter().map(|s| format!(" {:.3} ({:.1}) |", s * 1e3, times[0] / s));
        println!("| {} {} |{}", model.name(), model.batch(), cells.collect::<String>());
    }
    Ok(())
}

/// Measures the median time of a step.
fn seconds(model: Model, threads: usize) -> Result<f64> {
    let Built { graph, cost, step, inputs } = one_tower(model, model.batch(), Precision::F32)?;
    let options = SessionOptions { threads: Some(threads), ..SessionOptions::default() };
    let session = Session::with(graph.freeze()?, options)?;
    let feeds: Vec<(&str, &HostTensor)> = inputs.iter().map(|(name, value)| (name.as_str(), value)).collect();
    let all: Vec<&dyn IntoFetch> = std::iter::once(&cost).chain(&step).map(|f| f as &dyn IntoFetch).collect();
    let step = session.prepare(&all)?;
    median_seconds(&session, &step, &feeds, SECONDS)
}
