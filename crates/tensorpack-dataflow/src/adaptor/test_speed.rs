//! How fast a dataflow is.

use crate::{DataFlow, Seed, State};
use std::fmt;
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// How long it took to read so many samples: what [`DataFlow::test_speed`] found. Prints as a sentence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// How many samples were read.
    pub samples: u64,
    /// How long that took, from opening the dataflow on.
    pub time: Duration,
}

impl Speed {
    /// Samples in a second.
    pub fn per_second(&self) -> f64 {
        self.samples as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} samples in {:.3?}: {:.1} a second", self.samples, self.time, self.per_second())
    }
}

/// Reads `samples` of `flow`, pass after pass.
pub(crate) fn measure(flow: &dyn DataFlow, samples: u64) -> Result<Speed> {
    let began = Instant::now();
    let mut reader = flow.open(Seed::new(0), &State::start())?;
    let (mut read, mut empty) = (0, false);
    while read < samples {
        let ended = reader.read()?.is_none();
        if ended && empty {
            return Err(Error::new(ErrorKind::Data, "there are no samples whose speed could be measured"));
        }
        (read, empty) = (read + u64::from(!ended), ended);
    }
    Ok(Speed { samples, time: began.elapsed() })
}
