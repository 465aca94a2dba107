//! Measuring throughput.

use crate::{DataFlow, Seed, State};
use std::fmt;
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The result of [`DataFlow::test_speed`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Number of samples read.
    pub samples: u64,
    /// Elapsed time, including opening the dataflow.
    pub time: Duration,
}

impl Speed {
    /// Returns the throughput in samples per second.
    pub fn per_second(&self) -> f64 {
        self.samples as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} samples in {:.3?}: {:.1} samples/s", self.samples, self.time, self.per_second())
    }
}

/// Reads `samples` samples of `flow` across passes.
pub(crate) fn measure(flow: &dyn DataFlow, samples: u64) -> Result<Speed> {
    let began = Instant::now();
    let mut reader = flow.open(Seed::new(0), &State::start())?;
    let (mut read, mut empty) = (0, false);
    while read < samples {
        let ended = reader.read()?.is_none();
        if ended && empty {
            return Err(Error::new(ErrorKind::Data, "cannot measure the speed of an empty dataflow"));
        }
        (read, empty) = (read + u64::from(!ended), ended);
    }
    Ok(Speed { samples, time: began.elapsed() })
}
