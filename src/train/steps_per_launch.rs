//! How many steps one launch on an accelerator runs.

use std::str::FromStr;
use tensorpack_tensor::{Error, Result};

/// The largest number of steps per launch. Every step has its own batch on the device.
const MOST: usize = 1024;

/// How many steps one launch on an accelerator runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepsPerLaunch {
    /// This many, 1 to 1,024. It is an error if something needs every step by itself.
    Exactly(usize),
    /// 16 on an XLA device, if a single tower trains and nothing needs every step by itself;
    /// otherwise 1. The log says which, and why.
    Auto,
}

impl StepsPerLaunch {
    /// What [`StepsPerLaunch::Auto`] is where it can be more than 1: with 16 steps the host's share
    /// of a small step is a few microseconds, and the input holds few batches.
    pub(super) const AUTO: usize = 16;

    /// Checks that the number can be used.
    pub(super) fn check(self) -> Result<()> {
        match self {
            StepsPerLaunch::Exactly(steps) if steps == 0 || steps > MOST => {
                let why = format!("steps_per_launch is {steps}");
                Err(Error::argument(why).note(format!("use 1 to {MOST}, or auto")))
            }
            _ => Ok(()),
        }
    }
}

impl From<usize> for StepsPerLaunch {
    fn from(steps: usize) -> StepsPerLaunch {
        StepsPerLaunch::Exactly(steps)
    }
}

impl FromStr for StepsPerLaunch {
    type Err = Error;

    /// Parses a number, or `auto`.
    fn from_str(text: &str) -> Result<StepsPerLaunch> {
        match text {
            "auto" => Ok(StepsPerLaunch::Auto),
            _ => text
                .parse()
                .map(StepsPerLaunch::Exactly)
                .map_err(|_| Error::argument(format!("{text:?} is neither a number nor auto"))),
        }
    }
}
