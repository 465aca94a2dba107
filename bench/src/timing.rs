//! The time of a prepared step.

use std::time::Instant;
use tensorpack::runtime::{Prepared, Session};
use tensorpack::{HostTensor, Result};

/// A step is run at least this many times, after the warm-up.
const STEPS: usize = 5;
const WARM_UP: usize = 3;

/// Runs a step for at least `seconds`, and returns the median of its times.
pub(crate) fn median_seconds(
    session: &Session,
    step: &Prepared,
    feeds: &[(&str, &HostTensor)],
    seconds: f64,
) -> Result<f64> {
    let mut outputs = Vec::new();
    for _ in 0..WARM_UP {
        session.run_prepared(step, feeds, &mut outputs)?;
    }
    let (began, mut times) = (Instant::now(), Vec::new());
    while times.len() < STEPS || began.elapsed().as_secs_f64() < seconds {
        let began = Instant::now();
        session.run_prepared(step, feeds, &mut outputs)?;
        times.push(began.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
