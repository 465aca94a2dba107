//! Finds out which rank this process is, from options and from the environment of launchers.
//!
//! | source | rank and size | coordinator |
//! |---|---|---|
//! | options | [`LaunchOptions`] | [`LaunchOptions`] |
//! | tensorpack | `TENSORPACK_RANK`, `TENSORPACK_SIZE` | `TENSORPACK_COORDINATOR` |
//! | Open MPI | `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE` | broadcast over MPI |
//! | MPICH, Intel MPI | `PMI_RANK`, `PMI_SIZE` | broadcast over MPI |
//! | torchrun | `RANK`, `WORLD_SIZE` | `MASTER_ADDR`, `MASTER_PORT` |
//! | Slurm | `SLURM_PROCID`, `SLURM_NTASKS` | first node of `SLURM_STEP_NODELIST` |
//! | Kubernetes indexed Job | `JOB_COMPLETION_INDEX`, size from above | `JOB-0.SUBDOMAIN` |
//!
//! Each has variables for the rank and the number of ranks on a host, too. Slurm's port is computed
//! from the job's id. The subdomain of a Job is an option or `TENSORPACK_SUBDOMAIN`.
//!
//! The first source with a rank is used. The first five must agree where several are present: a
//! `RANK` left over in a shell would otherwise make every process rank 0. Slurm and Kubernetes
//! describe the allocation in which another launcher may have been started, so they count only
//! where there is none.

use crate::message::MAX_RANKS;
use std::env;
use std::fmt;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The coordinator's port where neither an option nor the launcher names one.
pub const DEFAULT_PORT: u16 = 29_710;

/// What a program's options say about the launch. Everything left out is searched for in the
/// environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchOptions {
    /// The rank of this process.
    pub rank: Option<u32>,
    /// The number of ranks.
    pub size: Option<u32>,
    /// The rank among those on this host.
    pub local_rank: Option<u32>,
    /// The number of ranks on this host.
    pub local_size: Option<u32>,
    /// The address of the coordinator: `HOST:PORT`, or `HOST`.
    pub coordinator: Option<String>,
    /// The subdomain of the pods of a Kubernetes Job: the name of its headless service.
    pub subdomain: Option<String>,
}

/// Which process of a run this one is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The rank of this process.
    pub rank: u32,
    /// The number of ranks.
    pub size: u32,
    /// The rank among those on this host, if known.
    pub local_rank: Option<u32>,
    /// The number of ranks on this host, if known.
    pub local_size: Option<u32>,
    /// The address of the coordinator, `HOST:PORT`. `None` where the launcher names none; under
    /// MPI, rank 0 then binds any free port and broadcasts it.
    pub coordinator: Option<String>,
    /// Where rank and size come from.
    pub launcher: Launcher,
}

/// A source of rank and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// No launcher: a run of one process.
    None,
    /// The program's options.
    Options,
    /// The variables `TENSORPACK_RANK` and `TENSORPACK_SIZE`.
    Tensorpack,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// The process manager of MPICH and Intel MPI.
    Pmi,
    /// `torchrun`, or another launcher with its variables.
    Torchrun,
    /// Slurm's `srun`.
    Slurm,
    /// An indexed Job of Kubernetes.
    Kubernetes,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::None => "no launcher",
            Launcher::Options => "options",
            Launcher::Tensorpack => "TENSORPACK_RANK",
            Launcher::OpenMpi => "Open MPI",
            Launcher::Pmi => "MPICH or Intel MPI",
            Launcher::Torchrun => "torchrun",
            Launcher::Slurm => "Slurm",
            Launcher::Kubernetes => "Kubernetes",
        })
    }
}

impl Launch {
    /// Finds rank, size and coordinator from options and the environment. A process without a
    /// launcher is rank 0 of 1.
    ///
    /// Returns an error of kind [`ErrorKind::Argument`] that names the variables if they are
    /// incomplete, malformed or contradict each other.
    pub fn detect(options: &LaunchOptions) -> Result<Launch> {
        Launch::from_variables(options, |name| env::var(name).ok())
    }

    /// [`detect`](Launch::detect), with another environment.
    pub fn from_variables(
        options: &LaunchOptions,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Launch> {
        let env = Environment(&variable);
        let mut found = vec![Found::from_options(options), env.found(&TENSORPACK)?];
        // A rank in an option or a TENSORPACK variable may be completed by the other.
        let explicit = found[0].take_missing_from(&found[1])?;
        found[0] = explicit;
        for names in [&OPEN_MPI, &PMI, &TORCHRUN] {
            found.push(env.found(names)?);
        }
        let mut ranked: Vec<&Found> = found.iter().filter(|found| found.rank.is_some()).collect();
        let outer = match ranked.is_empty() {
            true => vec![env.slurm()?, env.kubernetes(&found[0])?],
            false => Vec::new(),
        };
        ranked.extend(outer.iter().filter(|found| found.rank.is_some()));
        let Some(first) = ranked.first() else {
            return Launch::without_launcher(&found[0], options, &env);
        };
        for other in ranked.iter().skip(1).chain([&&found[0]]) {
            first.check_agrees(other)?;
        }
        let (rank, size) = first.complete()?;
        let known = |get: fn(&Found) -> Option<u32>| ranked.iter().find_map(|found| get(found));
        let launch = Launch {
            rank,
            size,
            local_rank: found[0].local_rank.value().or(known(|found| found.local_rank.value())),
            local_size: found[0].local_size.value().or(known(|found| found.local_size.value())),
            coordinator: env.coordinator(first.launcher, options)?,
            launcher: first.launcher,
        };
        launch.check()
    }

    fn without_launcher(explicit: &Found, options: &LaunchOptions, env: &Environment<'_>) -> Result<Launch> {
        if let Some(size) = explicit.size.value().filter(|size| *size != 1) {
            let why = format!("{} is {size}, but no rank is known", explicit.size.name());
            let advice = "start the program with a launcher, such as mpiexec or srun, or set TENSORPACK_RANK";
            return Err(Error::argument(why).note(advice));
        }
        let coordinator = env.coordinator(Launcher::None, options)?;
        let (local_rank, local_size) = (Some(0), Some(1));
        Ok(Launch { rank: 0, size: 1, local_rank, local_size, coordinator, launcher: Launcher::None })
    }

    /// Whether all ranks are known to be on one host.
    pub fn is_one_host(&self) -> bool {
        self.local_size == Some(self.size)
    }

    /// Checks that ranks are within sizes.
    fn check(self) -> Result<Launch> {
        let Launch { rank, size, launcher, .. } = self;
        let why = if size == 0 || size > MAX_RANKS {
            format!("the number of ranks is {size}; it must be from 1 to {MAX_RANKS}")
        } else if rank >= size {
            format!("the rank is {rank}, but there are {size} ranks, counted from 0")
        } else if let Some(local) = self.local_size.filter(|local| *local == 0 || *local > size) {
            format!("{local} of {size} ranks are on this host")
        } else if let Some(local) =
            self.local_rank.filter(|local| *local > rank || self.local_size.is_some_and(|n| *local >= n))
        {
            format!("the local rank is {local} for rank {rank} of {size}")
        } else {
            return Ok(self);
        };
        Err(Error::argument(why).within(format!("from {launcher}")))
    }
}

/// The names of a launcher's variables.
struct Names {
    launcher: Launcher,
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    local_size: &'static str,
}

const TENSORPACK: Names = Names {
    launcher: Launcher::Tensorpack,
    rank: "TENSORPACK_RANK",
    size: "TENSORPACK_SIZE",
    local_rank: "TENSORPACK_LOCAL_RANK",
    local_size: "TENSORPACK_LOCAL_SIZE",
};
const OPEN_MPI: Names = Names {
    launcher: Launcher::OpenMpi,
    rank: "OMPI_COMM_WORLD_RANK",
    size: "OMPI_COMM_WORLD_SIZE",
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
};
const PMI: Names = Names {
    launcher: Launcher::Pmi,
    rank: "PMI_RANK",
    size: "PMI_SIZE",
    local_rank: "MPI_LOCALRANKID",
    local_size: "MPI_LOCALNRANKS",
};
const TORCHRUN: Names = Names {
    launcher: Launcher::Torchrun,
    rank: "RANK",
    size: "WORLD_SIZE",
    local_rank: "LOCAL_RANK",
    local_size: "LOCAL_WORLD_SIZE",
};

/// A number and the name of its option or variable; `None` if it is not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Named(Option<(u32, &'static str)>);

impl Named {
    fn value(&self) -> Option<u32> {
        self.0.map(|(value, _)| value)
    }

    fn name(&self) -> &'static str {
        self.0.map_or("", |(_, name)| name)
    }

    fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Returns an error if both are set and differ.
    fn check_agrees(&self, other: &Named) -> Result<()> {
        match (self.0, other.0) {
            (Some((a, name)), Some((b, other))) if a != b => {
                let why = format!("{name} is {a}, but {other} is {b}");
                Err(Error::argument(why).note(format!("unset the one that is wrong, such as: unset {other}")))
            }
            _ => Ok(()),
        }
    }
}

/// What one source says.
#[derive(Clone, Debug)]
struct Found {
    launcher: Launcher,
    rank: Named,
    size: Named,
    local_rank: Named,
    local_size: Named,
    /// The names of the variables for rank and size, for errors.
    names: (&'static str, &'static str),
}

impl Found {
    fn from_options(options: &LaunchOptions) -> Found {
        let named = |value: Option<u32>, name| Named(value.map(|value| (value, name)));
        Found {
            launcher: Launcher::Options,
            rank: named(options.rank, "the option rank"),
            size: named(options.size, "the option size"),
            local_rank: named(options.local_rank, "the option local rank"),
            local_size: named(options.local_size, "the option local size"),
            names: ("the option rank", "the option size"),
        }
    }

    /// Returns the options completed by the `TENSORPACK` variables.
    fn take_missing_from(&self, variables: &Found) -> Result<Found> {
        self.check_agrees(variables)?;
        let or = |a: Named, b: Named| if a.is_some() { a } else { b };
        Ok(Found {
            launcher: if self.rank.is_some() { self.launcher } else { variables.launcher },
            rank: or(self.rank, variables.rank),
            size: or(self.size, variables.size),
            local_rank: or(self.local_rank, variables.local_rank),
            local_size: or(self.local_size, variables.local_size),
            names: if self.rank.is_some() { self.names } else { variables.names },
        })
    }

    fn check_agrees(&self, other: &Found) -> Result<()> {
        self.rank.check_agrees(&other.rank)?;
        self.size.check_agrees(&other.size)
    }

    /// Rank and size, which must both be set.
    fn complete(&self) -> Result<(u32, u32)> {
        match (self.rank.value(), self.size.value()) {
            (Some(rank), Some(size)) => Ok((rank, size)),
            (rank, _) => {
                let (set, missing) = match rank {
                    Some(_) => (self.names.0, self.names.1),
                    None => (self.names.1, self.names.0),
                };
                Err(Error::argument(format!("{set} is set, but {missing} is not")))
            }
        }
    }
}

/// The environment variables.
struct Environment<'a>(&'a dyn Fn(&str) -> Option<String>);

impl Environment<'_> {
    fn text(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|text| !text.is_empty())
    }

    fn number(&self, name: &'static str) -> Result<Named> {
        let Some(text) = self.text(name) else { return Ok(Named(None)) };
        match text.trim().parse() {
            Ok(value) => Ok(Named(Some((value, name)))),
            Err(_) => Err(Error::argument(format!("{name} is {text:?}, which is not a number"))),
        }
    }

    fn found(&self, names: &Names) -> Result<Found> {
        let rank = self.number(names.rank)?;
        let size = self.number(names.size)?;
        let found = Found {
            launcher: names.launcher,
            rank,
            size,
            local_rank: self.number(names.local_rank)?,
            local_size: self.number(names.local_size)?,
            names: (names.rank, names.size),
        };
        // TENSORPACK_RANK and TENSORPACK_SIZE may be completed by options and launchers.
        if names.launcher != Launcher::Tensorpack && rank.is_some() != size.is_some() {
            found.complete()?;
        }
        Ok(found)
    }

    fn slurm(&self) -> Result<Found> {
        let size = match self.number("SLURM_STEP_NUM_TASKS")? {
            Named(None) => self.number("SLURM_NTASKS")?,
            size => size,
        };
        let one_node = self.text("SLURM_STEP_NUM_NODES").is_some_and(|nodes| nodes.trim() == "1");
        let found = Found {
            launcher: Launcher::Slurm,
            rank: self.number("SLURM_PROCID")?,
            size,
            local_rank: self.number("SLURM_LOCALID")?,
            local_size: if one_node { size } else { Named(None) },
            names: ("SLURM_PROCID", "SLURM_NTASKS"),
        };
        if found.rank.is_some() {
            found.complete()?;
        }
        Ok(found)
    }

    fn kubernetes(&self, explicit: &Found) -> Result<Found> {
        let rank = self.number("JOB_COMPLETION_INDEX")?;
        let local = |value| Named(rank.value().map(|_| (value, "JOB_COMPLETION_INDEX")));
        let (local_rank, local_size) = (local(0), local(1));
        let names = ("JOB_COMPLETION_INDEX", "the number of ranks (an option or TENSORPACK_SIZE)");
        let launcher = Launcher::Kubernetes;
        Ok(Found { launcher, rank, size: explicit.size, local_rank, local_size, names })
    }

    /// The coordinator's address: from options and variables, else from the launcher.
    fn coordinator(&self, launcher: Launcher, options: &LaunchOptions) -> Result<Option<String>> {
        let option = options.coordinator.clone().filter(|text| !text.is_empty());
        let explicit = match (option, self.text("TENSORPACK_COORDINATOR")) {
            (Some(a), Some(b)) if a != b => {
                let why = format!("the option coordinator is {a:?}, but TENSORPACK_COORDINATOR is {b:?}");
                return Err(
                    Error::argument(why).note("unset TENSORPACK_COORDINATOR, or leave out the option")
                );
            }
            (a, b) => a.or(b),
        };
        if let Some(address) = explicit {
            return with_port(&address, DEFAULT_PORT).map(Some);
        }
        match launcher {
            Launcher::Torchrun => self.torchrun_coordinator(),
            Launcher::Slurm => self.slurm_coordinator(),
            Launcher::Kubernetes => self.kubernetes_coordinator(options).map(Some),
            _ => Ok(None),
        }
    }

    fn torchrun_coordinator(&self) -> Result<Option<String>> {
        let Some(host) = self.text("MASTER_ADDR") else { return Ok(None) };
        let port = match self.number("MASTER_PORT")?.value() {
            None => DEFAULT_PORT.into(),
            // torchrun's own process listens on this port, for the store of its workers.
            Some(port) if self.text("TORCHELASTIC_USE_AGENT_STORE").as_deref() == Some("True") => port + 1,
            Some(port) => port,
        };
        let port = u16::try_from(port)
            .map_err(|_| Error::argument(format!("MASTER_PORT is {port}, which is not a port")))?;
        with_port(&host, port).map(Some)
    }

    fn slurm_coordinator(&self) -> Result<Option<String>> {
        let nodes = self.text("SLURM_STEP_NODELIST").or_else(|| self.text("SLURM_JOB_NODELIST"));
        let Some(nodes) = nodes else { return Ok(None) };
        let host = first_slurm_node(&nodes).ok_or_else(|| {
            Error::argument(format!("SLURM_STEP_NODELIST is {nodes:?}, which names no node"))
        })?;
        // Jobs that share a node must not share a port, nor steps of a job.
        let job: u64 = self.text("SLURM_JOB_ID").and_then(|id| id.parse().ok()).unwrap_or_default();
        let step: u64 = self.text("SLURM_STEP_ID").and_then(|id| id.parse().ok()).unwrap_or_default();
        let port = 20_000 + job.wrapping_mul(16).wrapping_add(step % 16) % 12_000;
        with_port(&host, port as u16).map(Some)
    }

    fn kubernetes_coordinator(&self, options: &LaunchOptions) -> Result<String> {
        let advice = "or name the coordinator with an option or TENSORPACK_COORDINATOR";
        let subdomain = options.subdomain.clone().or_else(|| self.text("TENSORPACK_SUBDOMAIN"));
        let Some(subdomain) = subdomain.filter(|text| !text.is_empty()) else {
            let why = "the subdomain of the Kubernetes Job is unknown, so rank 0 cannot be found";
            let set = "set TENSORPACK_SUBDOMAIN to the name of the Job's headless service";
            return Err(Error::argument(why).note(set).note(advice));
        };
        let index = self.text("JOB_COMPLETION_INDEX").unwrap_or_default();
        let host = self.text("HOSTNAME").unwrap_or_default();
        match host.strip_suffix(&format!("-{}", index.trim())) {
            Some(job) if !job.is_empty() => with_port(&format!("{job}-0.{subdomain}"), DEFAULT_PORT),
            _ => {
                let why = format!(
                    "HOSTNAME is {host:?}, which is not the name of a pod that ends with its index {index}"
                );
                Err(Error::argument(why).note(advice))
            }
        }
    }
}

/// Checks an address and adds a port if it has none.
fn with_port(address: &str, port: u16) -> Result<String> {
    let bad = |why: &str| {
        Err(Error::new(ErrorKind::Argument, format!("the coordinator's address {address:?} {why}")))
    };
    let is_ipv6 = address.parse::<std::net::Ipv6Addr>().is_ok();
    let (host, port) = match address.rsplit_once(':') {
        _ if is_ipv6 => return Ok(format!("[{address}]:{port}")),
        Some((host, text)) if !address.ends_with(']') => match text.parse::<u16>() {
            Ok(port) => (host, port),
            Err(_) => return bad("does not end with a port"),
        },
        _ => (address, port),
    };
    if host.is_empty() || host.contains(char::is_whitespace) || (host.contains(':') && !host.starts_with('['))
    {
        return bad("names no host");
    }
    Ok(format!("{host}:{port}"))
}

/// The first node of a Slurm node list such as `gpu[003-005,9],login1`.
fn first_slurm_node(list: &str) -> Option<String> {
    let list = list.trim();
    let end = list.find([',', '[']).unwrap_or(list.len());
    let prefix = &list[..end];
    let node = match list[end..].strip_prefix('[') {
        None => prefix.to_owned(),
        Some(ranges) => {
            let (ranges, rest) = ranges.split_once(']')?;
            let first: String = ranges.chars().take_while(char::is_ascii_digit).collect();
            if first.is_empty() {
                return None;
            }
            // More than one pair of brackets: rack[0-3]n[0-9].
            let rest = &rest[..rest.find(',').unwrap_or(rest.len())];
            let rest = if rest.is_empty() { String::new() } else { first_slurm_node(rest)? };
            format!("{prefix}{first}{rest}")
        }
    };
    (!node.is_empty()).then_some(node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorpack_testing::assert_mentions;

    fn detect(options: &LaunchOptions, variables: &[(&str, &str)]) -> Result<Launch> {
        let find =
            |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string());
        Launch::from_variables(options, find)
    }

    fn from_env(variables: &[(&str, &str)]) -> Launch {
        detect(&LaunchOptions::default(), variables).unwrap()
    }

    #[track_caller]
    fn refused(options: &LaunchOptions, variables: &[(&str, &str)], terms: &[&str]) {
        let error = detect(options, variables).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert_mentions(error, terms);
    }

    const OMPI: [(&str, &str); 4] = [
        ("OMPI_COMM_WORLD_RANK", "5"),
        ("OMPI_COMM_WORLD_SIZE", "8"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
    ];
    const SLURM: [(&str, &str); 6] = [
        ("SLURM_PROCID", "3"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_STEP_NODELIST", "gpu[003-005,9],login1"),
        ("SLURM_JOB_ID", "1234"),
        ("SLURM_STEP_ID", "0"),
    ];

    #[test]
    fn without_a_launcher_there_is_one_rank() {
        let launch = from_env(&[]);
        assert_eq!((launch.rank, launch.size, launch.launcher), (0, 1, Launcher::None));
        assert!(launch.is_one_host());
        assert_eq!(from_env(&[("TENSORPACK_SIZE", "1")]).size, 1);
        refused(&LaunchOptions::default(), &[("TENSORPACK_SIZE", "4")], &["TENSORPACK_SIZE", "4", "rank"]);
        refused(&LaunchOptions { size: Some(2), ..Default::default() }, &[], &["option size", "2"]);
    }

    #[test]
    fn each_launcher_is_read() {
        let launch = from_env(&OMPI);
        assert_eq!((launch.rank, launch.size, launch.launcher), (5, 8, Launcher::OpenMpi));
        assert_eq!((launch.local_rank, launch.local_size), (Some(1), Some(4)));
        assert_eq!((launch.coordinator.as_deref(), launch.is_one_host()), (None, false));

        let pmi = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "2")];
        let launch = from_env(&pmi);
        assert_eq!((launch.rank, launch.size, launch.launcher), (1, 2, Launcher::Pmi));
        assert_eq!((launch.local_rank, launch.is_one_host()), (Some(1), true));

        let torchrun = [
            ("RANK", "2"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_RANK", "0"),
            ("MASTER_ADDR", "a.b"),
            ("MASTER_PORT", "29500"),
        ];
        let launch = from_env(&torchrun);
        assert_eq!((launch.rank, launch.size, launch.launcher), (2, 4, Launcher::Torchrun));
        assert_eq!(launch.coordinator.as_deref(), Some("a.b:29500"));
        let agent = [&torchrun[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat();
        assert_eq!(from_env(&agent).coordinator.as_deref(), Some("a.b:29501"));

        let launch = from_env(&SLURM);
        assert_eq!((launch.rank, launch.size, launch.launcher), (3, 4, Launcher::Slurm));
        assert_eq!(launch.coordinator.as_deref(), Some("gpu003:27744"));
        assert!(from_env(&[&SLURM[..], &[("SLURM_STEP_NUM_NODES", "1")]].concat()).is_one_host());

        let launch = from_env(&[
            ("TENSORPACK_RANK", "1"),
            ("TENSORPACK_SIZE", "3"),
            ("TENSORPACK_COORDINATOR", "h:7"),
        ]);
        assert_eq!((launch.rank, launch.size, launch.launcher), (1, 3, Launcher::Tensorpack));
        assert_eq!(launch.coordinator.as_deref(), Some("h:7"));
    }

    #[test]
    fn kubernetes_takes_its_size_from_elsewhere() {
        let job = [
            ("JOB_COMPLETION_INDEX", "2"),
            ("HOSTNAME", "train-2"),
            ("TENSORPACK_SIZE", "4"),
            ("TENSORPACK_SUBDOMAIN", "svc"),
        ];
        let launch = from_env(&job);
        assert_eq!((launch.rank, launch.size, launch.launcher), (2, 4, Launcher::Kubernetes));
        assert_eq!(launch.coordinator, Some(format!("train-0.svc:{DEFAULT_PORT}")));
        assert_eq!((launch.local_rank, launch.local_size), (Some(0), Some(1)));
        let none = LaunchOptions::default();
        refused(&none, &job[..3], &["subdomain", "TENSORPACK_SUBDOMAIN"]);
        refused(&none, &[job[0], job[1], job[3]], &["JOB_COMPLETION_INDEX", "TENSORPACK_SIZE"]);
        refused(&none, &[job[0], ("HOSTNAME", "other"), job[2], job[3]], &["HOSTNAME", "other"]);
        let options = LaunchOptions { size: Some(8), ..Default::default() };
        refused(&options, &job, &["option size", "8", "TENSORPACK_SIZE", "4"]);
        let options = LaunchOptions { coordinator: Some("h:1".into()), ..Default::default() };
        assert_eq!(detect(&options, &job[..3]).unwrap().coordinator.as_deref(), Some("h:1"));
    }

    #[test]
    fn options_come_first_and_are_completed_by_variables() {
        let options = LaunchOptions { rank: Some(1), ..Default::default() };
        let launch = detect(&options, &[("TENSORPACK_SIZE", "2")]).unwrap();
        assert_eq!((launch.rank, launch.size, launch.launcher), (1, 2, Launcher::Options));
        let options =
            LaunchOptions { rank: Some(5), size: Some(8), local_rank: Some(0), ..Default::default() };
        let launch = detect(&options, &OMPI).unwrap();
        assert_eq!(
            (launch.launcher, launch.local_rank, launch.local_size),
            (Launcher::Options, Some(0), Some(4))
        );
        refused(&LaunchOptions { rank: Some(1), ..Default::default() }, &[], &["option rank", "option size"]);
    }

    #[test]
    fn contradictions_are_refused_by_name() {
        let none = LaunchOptions::default();
        let with = |extra: &[(&'static str, &'static str)]| [&OMPI[..], extra].concat();
        refused(
            &none,
            &with(&[("RANK", "4"), ("WORLD_SIZE", "8")]),
            &["OMPI_COMM_WORLD_RANK is 5", "RANK is 4"],
        );
        refused(
            &none,
            &with(&[("PMI_RANK", "5"), ("PMI_SIZE", "4")]),
            &["OMPI_COMM_WORLD_SIZE is 8", "PMI_SIZE is 4"],
        );
        refused(
            &none,
            &with(&[("TENSORPACK_RANK", "0"), ("TENSORPACK_SIZE", "8")]),
            &["TENSORPACK_RANK is 0", "OMPI_COMM_WORLD_RANK is 5"],
        );
        refused(
            &none,
            &with(&[("TENSORPACK_SIZE", "4")]),
            &["TENSORPACK_SIZE is 4", "OMPI_COMM_WORLD_SIZE is 8"],
        );
        let options = LaunchOptions { coordinator: Some("a:1".into()), ..Default::default() };
        refused(&options, &[("TENSORPACK_COORDINATOR", "b:1")], &["a:1", "b:1"]);
        // The same rank twice is no contradiction.
        assert_eq!(from_env(&with(&[("RANK", "5"), ("WORLD_SIZE", "8")])).launcher, Launcher::OpenMpi);
    }

    /// `sbatch` and a Job's pod set variables for the program that starts `mpirun`.
    #[test]
    fn other_launchers_may_run_inside_slurm_and_kubernetes() {
        let inside = [&OMPI[..], &SLURM, &[("JOB_COMPLETION_INDEX", "7")]].concat();
        let launch = from_env(&inside);
        assert_eq!((launch.rank, launch.size, launch.launcher), (5, 8, Launcher::OpenMpi));
    }

    #[test]
    fn malformed_and_incomplete_variables_are_refused_by_name() {
        let none = LaunchOptions::default();
        refused(&none, &[("RANK", "one"), ("WORLD_SIZE", "2")], &["RANK", "one"]);
        refused(&none, &[("RANK", "-1"), ("WORLD_SIZE", "2")], &["RANK", "-1"]);
        refused(&none, &[("RANK", "1")], &["RANK", "WORLD_SIZE"]);
        refused(&none, &[("PMI_SIZE", "2")], &["PMI_SIZE", "PMI_RANK"]);
        refused(&none, &[("SLURM_PROCID", "1")], &["SLURM_PROCID", "SLURM_NTASKS"]);
        refused(&none, &[("TENSORPACK_RANK", "1")], &["TENSORPACK_RANK", "TENSORPACK_SIZE"]);
        refused(&none, &[("RANK", "2"), ("WORLD_SIZE", "2")], &["torchrun", "2"]);
        refused(&none, &[("RANK", "0"), ("WORLD_SIZE", "0")], &["torchrun", "0"]);
        refused(&none, &[("RANK", "0"), ("WORLD_SIZE", "20000")], &["20000", "16384"]);
        refused(&none, &[("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")], &["local rank"]);
        let master = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "h"), ("MASTER_PORT", "70000")];
        refused(&none, &master, &["MASTER_PORT", "70000"]);
        // An empty variable is one that is not set.
        assert_eq!(from_env(&[("RANK", ""), ("WORLD_SIZE", "")]).size, 1);
    }

    #[test]
    fn addresses_get_a_port() {
        let port = |address: &str| with_port(address, 5);
        for (address, expected) in [
            ("h", "h:5"),
            ("h:7", "h:7"),
            ("10.0.0.1", "10.0.0.1:5"),
            ("::1", "[::1]:5"),
            ("[::1]", "[::1]:5"),
            ("[::1]:7", "[::1]:7"),
        ] {
            assert_eq!(port(address).unwrap(), expected);
        }
        for address in ["h:x", ":7", "", "a b", "h:99999", "a:b:7"] {
            assert_eq!(port(address).unwrap_err().kind(), ErrorKind::Argument, "{address:?}");
        }
    }

    #[test]
    fn the_first_node_of_a_slurm_list() {
        for (list, node) in [
            ("a", "a"),
            ("a,b", "a"),
            ("gpu[003-005,9],login1", "gpu003"),
            ("n[7]", "n7"),
            ("rack[1-2]n[08-09]", "rack1n08"),
            ("n[1-2].cluster,m", "n1.cluster"),
        ] {
            assert_eq!(first_slurm_node(list).as_deref(), Some(node));
        }
        for list in ["", "[", "n[", "n[]", "n[x]", ",a"] {
            assert_eq!(first_slurm_node(list), None, "{list:?}");
        }
    }
}
