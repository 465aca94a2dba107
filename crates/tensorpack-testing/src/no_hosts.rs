//! Hosts with a slow network need Linux; elsewhere they cannot be created.

use std::convert::Infallible;
use std::io;
use std::process::Command;
use std::time::Duration;

/// The properties of the link between each host and the switch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Link {
    /// Whether nothing arrives.
    pub down: bool,
    /// The share of packets that are lost.
    pub loss: f64,
    /// How long a packet is on its way from host to host.
    pub delay: Duration,
    /// The bits per second that a host can send, and that it can receive at the same time.
    pub rate: Option<f64>,
}

/// Hosts with a switch between them; there are none on this system.
pub struct Hosts(Infallible);

impl Hosts {
    /// Returns an error.
    pub fn new(_count: usize) -> io::Result<Hosts> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "hosts on one machine need Linux"))
    }

    /// Returns the names of the hosts.
    pub fn names(&self) -> &[String] {
        match self.0 {}
    }

    /// Returns a command that runs `command` on the first host.
    pub fn launch(&self, _command: &Command) -> Command {
        match self.0 {}
    }

    /// Changes the links of all hosts.
    pub fn set(&self, _link: Link) {
        match self.0 {}
    }

    /// Returns how many packets the switch has carried and lost.
    pub fn packets(&self) -> (u64, u64) {
        match self.0 {}
    }
}
