//! Runs commands as ranks on hosts of this machine, which a slow network connects.

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;
use tensorpack::{Error, ErrorKind, Result};
use tensorpack_mpi::{Mpiexec, MpiexecKind, find_libraries};
use tensorpack_testing::{Hosts, Link};

/// The properties of the network.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct NetworkArgs {
    /// The milliseconds that a packet takes from host to host.
    #[arg(long, value_name = "MS", default_value_t = 0.2)]
    pub(crate) delay_ms: f64,
    /// The megabits per second that a host sends and receives.
    #[arg(long, value_name = "MBIT", default_value_t = 1000.0)]
    pub(crate) mbit: f64,
}

/// The options of `bench -- network`.
#[derive(Debug, clap::Args)]
pub(crate) struct CommandArgs {
    /// The number of hosts, with a rank on each.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 2)]
    ranks: usize,
    #[command(flatten)]
    network: NetworkArgs,
    /// The program that runs on each host, and its arguments.
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

impl NetworkArgs {
    /// Creates hosts that this network connects. Only root can.
    pub(crate) fn hosts(&self, count: usize) -> Result<Hosts> {
        if !(self.delay_ms >= 0.0 && self.delay_ms < 1e6 && self.mbit > 0.0) {
            let why = format!("a delay of {} ms and {} Mbit/s", self.delay_ms, self.mbit);
            return Err(Error::argument(why).note("the delay must be 0 or more, the rate more than 0"));
        }
        let hosts = Hosts::new(count).map_err(|e| {
            Error::from(e).within("creating network namespaces").note("needs root and /dev/net/tun")
        })?;
        let delay = Duration::from_secs_f64(self.delay_ms * 1e-3);
        hosts.set(Link { delay, rate: Some(self.mbit * 1e6), ..Link::default() });
        Ok(hosts)
    }
}

/// Returns the command that runs a program as a rank on each host. MPICH's launcher can start it.
pub(crate) fn command(hosts: &Hosts, program: &[OsString]) -> Result<Command> {
    let found = find_libraries()?.into_iter().filter_map(|library| Mpiexec::find(&library).ok());
    let hydra = found.into_iter().find(|mpiexec| mpiexec.kind() == MpiexecKind::Hydra);
    let hydra = hydra.ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, "there is no MPICH with its mpiexec")
            .note("install it with: tensorpack plugin install mpi")
    })?;
    let (program, arguments) = program.split_first().ok_or_else(|| Error::argument("no program"))?;
    let mut command = hydra.command(hosts.names().len(), hosts.names(), &[], program)?;
    command.args(arguments);
    Ok(hosts.launch(&command))
}

/// Runs a command on hosts of this machine.
pub(crate) fn run(args: &CommandArgs) -> Result<()> {
    let hosts = args.network.hosts(args.ranks)?;
    match command(&hosts, &args.program)?.status()? {
        status if status.success() => Ok(()),
        status => Err(Error::new(ErrorKind::Engine, format!("{:?}: {status}", args.program[0]))),
    }
}
