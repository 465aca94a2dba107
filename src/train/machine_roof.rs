//! How fast this machine multiplies.

use crate::graph::{Graph, Init, VariableSpec};
use crate::runtime::{Device, Session, SessionOptions};
use crate::tower::TowerContext;
use std::time::{Duration, Instant};
use tensorpack_tensor::Result;

/// The size of the square matrices: they fit into the caches of few cores, as the tiles of large products
/// do.
const SIZE: usize = 512;
/// How long to measure. The best of the products counts, since other programs may disturb some.
const TIME: Duration = Duration::from_millis(60);

/// Measures the multiply-adds per second of a large product of f32 matrices in a session like this one.
/// Returns `None` on devices other than the CPU engine, and if towers share its threads.
pub(super) fn multiply_adds_per_second(session: &Session) -> Result<Option<f64>> {
    let graph = session.graph();
    let is_alone = graph.nodes().iter().all(|node| node.tower == 0);
    if !matches!(session.options().device, Device::Cpu(_)) || !is_alone {
        return Ok(None);
    }
    let graph = Graph::new();
    let t = TowerContext::inference(&graph);
    let matrix = |name: &str| {
        t.variable(VariableSpec::new(name, [SIZE, SIZE]).init(Init::Constant(0.5)).non_trainable())
    };
    let (a, b) = (matrix("a"), matrix("b"));
    let product = a.value().matmul(b.value()).mean();
    let options = session.options().clone();
    let options = SessionOptions { process_group: None, memory_limit: None, profile: false, ..options };
    let roof = Session::with(graph.freeze()?, options)?;
    // The first run compiles.
    roof.run(&[&product], &[])?;
    let (begun, mut best) = (Instant::now(), f64::INFINITY);
    while begun.elapsed() < TIME {
        let begun = Instant::now();
        roof.run(&[&product], &[])?;
        best = best.min(begun.elapsed().as_secs_f64());
    }
    Ok(Some((SIZE * SIZE * SIZE) as f64 / best))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_cpu_engine_is_measured() {
        let rate = |device: &str| {
            let options = SessionOptions { device: device.parse().unwrap(), ..SessionOptions::default() };
            let session = Session::with(Graph::new().freeze().unwrap(), options).unwrap();
            multiply_adds_per_second(&session).unwrap()
        };
        // Any machine multiplies a million times per second.
        assert!(rate("cpu:0").is_some_and(|rate| rate > 1e6 && rate.is_finite()));
        assert_eq!(rate("reference"), None);
    }
}
