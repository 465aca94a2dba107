//! Processes that train together, each with a session on its own devices.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tensorpack_rendezvous::Rendezvous;
use tensorpack_tensor::{Error, Result};

/// The processes that train together on accelerators, for
/// [`SessionOptions::process_group`](super::SessionOptions::process_group).
///
/// Every process has a session with the same graph of `towers` towers, and runs the same programs in
/// the same order. Sums over towers are sums over the towers of all processes, so contexts of towers
/// are created with a [`total`](crate::tower::TowerContext::total) of [`total_towers`]. The towers of
/// rank `r` are numbers `r * towers` to `r * towers + towers - 1` of the run.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use tensorpack::prelude::*;
/// # use tensorpack::runtime::ProcessGroup;
/// # use tensorpack::tower::Mode;
/// # use tensorpack_rendezvous::{Launch, LaunchOptions, Options, Rendezvous, Token};
/// # fn main() -> Result<()> {
/// let launch = Launch::detect(&LaunchOptions::default())?;
/// let rendezvous = Rendezvous::start(&launch, None, &Token::from_env()?, &Options::new())?;
/// let group = ProcessGroup::new(Arc::new(rendezvous), 1);
/// let graph = Graph::new();
/// let t = TowerContext::new(&graph, Mode::Training, 0, group.total_towers());
/// // .. builds the tower, whose gradients are averaged with `t.all_reduce_mean`
/// let device = "xla:cuda:0".parse()?;
/// let options = SessionOptions { device, process_group: Some(group.clone()), ..Default::default() };
/// let session = Session::with(graph.freeze()?, options)?;
/// // .. trains
/// drop(session);
/// group.leave(Duration::from_secs(60))?;
/// # Ok(())
/// # }
/// ```
///
/// Once a process has failed, runs and reads end with an error of kind
/// [`ErrorKind::Peer`](tensorpack_tensor::ErrorKind::Peer) that names it.
///
/// [`total_towers`]: ProcessGroup::total_towers
#[derive(Clone)]
pub struct ProcessGroup {
    rendezvous: Arc<Rendezvous>,
    towers: usize,
}

/// The interval at which [`ProcessGroup::leave`] checks whether the rendezvous is unused.
const LEAVE_INTERVAL: Duration = Duration::from_millis(5);

impl ProcessGroup {
    /// The ranks of a rendezvous, each with this number of towers.
    pub fn new(rendezvous: Arc<Rendezvous>, towers: usize) -> ProcessGroup {
        ProcessGroup { rendezvous, towers }
    }

    /// Returns the rank of this process.
    pub fn rank(&self) -> usize {
        self.rendezvous.rank() as usize
    }

    /// Returns the number of processes.
    pub fn size(&self) -> usize {
        self.rendezvous.size() as usize
    }

    /// Returns the number of towers of each process.
    pub fn towers(&self) -> usize {
        self.towers
    }

    /// Returns the number of towers of all processes together.
    pub fn total_towers(&self) -> usize {
        self.size().saturating_mul(self.towers)
    }

    /// Returns the control plane of the run.
    pub fn rendezvous(&self) -> &Arc<Rendezvous> {
        &self.rendezvous
    }

    /// Leaves the run, as [`Rendezvous::leave`] does. Drop all sessions of the group before: returns
    /// an error if one of them, or a clone of the group, still exists after `timeout`.
    pub fn leave(self, timeout: Duration) -> Result<()> {
        let begun = Instant::now();
        let mut shared = self.rendezvous;
        loop {
            // A thread that watches the peers holds a reference for moments.
            shared = match Arc::try_unwrap(shared) {
                Ok(rendezvous) => return rendezvous.leave(timeout.saturating_sub(begun.elapsed())),
                Err(shared) if begun.elapsed() < timeout => shared,
                Err(_) => {
                    return Err(Error::argument("a session of the process group still exists")
                        .note("drop all sessions before leaving the run"));
                }
            };
            thread::sleep(LEAVE_INTERVAL);
        }
    }
}

impl fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProcessGroup(rank {} of {}, {} towers each)", self.rank(), self.size(), self.towers)
    }
}
