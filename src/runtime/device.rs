//! Where a graph runs: `cpu:0`, or `null` for shapes alone.

use std::fmt;
use std::str::FromStr;
use tensorpack_tensor::{Error, ErrorKind};

/// A device, as users name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// A team of threads of this process, by number.
    Cpu(usize),
    /// Computes nothing: every result is zeros of the right shape. For testing what surrounds the computation.
    Null,
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Device, Error> {
        let number = |n: &str| n.parse().ok();
        match text.split_once(':') {
            None if text == "cpu" => Some(Device::Cpu(0)),
            None if text == "null" => Some(Device::Null),
            Some(("cpu", n)) => number(n).map(Device::Cpu),
            _ => None,
        }
        .ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, format!("{text:?} is no device; there are cpu:N and null"))
        })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu(n) => write!(f, "cpu:{n}"),
            Device::Null => f.write_str("null"),
        }
    }
}
