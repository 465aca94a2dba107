//! `mpiexec`: finding the one that belongs to a library, and its command line.
//!
//! A rank that dies must not end the others at once: they report which rank it was and save what
//! can be saved. Launchers kill all ranks of a run by default, so they are kept from it. What they
//! do when a rank is killed is in the [crate's documentation](crate#when-a-rank-dies).

use crate::abi::Abi;
use crate::discovery::{FoundMpi, MpiSource, VARIABLE};
use std::env;
use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The time that `mpiexec --version` may take.
const VERSION_TIMEOUT: Duration = Duration::from_secs(20);

/// A shell script that runs its arguments. Launchers kill all ranks when one is killed, or ends with
/// a status other than 0; the shell, which is all that a launcher sees of a rank, puts that off for
/// `$0` seconds, or 3 if the rank ended by itself: then the others know. Not after SIGHUP, SIGINT and
/// SIGTERM, by which ranks end that have agreed to. Then it kills itself if the rank was killed, and
/// with Hydra (which sets `PMI_RANK`) in any case: that goes on after a status other than 0 of a
/// process that has not called `MPI_Init` yet, and the others would wait for it.
///
/// Launchers that are terminated pass the signal on to the shell, too, and kill the rank as soon as
/// the shell has ended. So it waits for the rank, which may save.
///
/// Options of launchers do less. Hydra's `-disable-auto-cleanup` does not help if the rank was killed
/// by a signal, and Hydra then waits for ever for a rank that is stopped. With Open MPI's
/// `--enable-recovery`, `mpiexec` returns 0 for a run that failed.
const SCRIPT: &str = r#"trap : HUP INT TERM; "$@"; status=$?
case $status in
    0|129|130|143) ;;
    ?|??|1[01]?|12?) sleep $(($0 < 3 ? $0 : 3)); [ -z "$PMI_RANK" ] || kill -KILL $$ ;;
    *) sleep "$0"; kill -KILL $$ ;;
esac
exit $status"#;

/// The time that survivors have, unless [`Mpiexec::grace`] sets another.
const GRACE: Duration = Duration::from_secs(15);

/// A launcher of MPI programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mpiexec {
    path: PathBuf,
    kind: MpiexecKind,
    library: FoundMpi,
    grace: Duration,
}

/// A kind of launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MpiexecKind {
    /// Hydra, of MPICH.
    Hydra,
    /// Intel's version of Hydra.
    IntelHydra,
    /// Open MPI up to version 4.
    OpenMpi4,
    /// Open MPI from version 5 on, which is PRRTE.
    OpenMpi5,
}

impl MpiexecKind {
    /// The kind of launcher that prints this for `--version`.
    fn from_version(text: &str) -> Option<MpiexecKind> {
        let major = || {
            let mut words = text.split_whitespace();
            words.find_map(|word| word.split('.').next()?.parse::<u32>().ok())
        };
        if text.contains("HYDRA") {
            Some(MpiexecKind::Hydra)
        } else if text.contains("Intel") {
            Some(MpiexecKind::IntelHydra)
        } else if text.contains("Open MPI") || text.contains("OpenRTE") {
            Some(if major()? < 5 { MpiexecKind::OpenMpi4 } else { MpiexecKind::OpenMpi5 })
        } else {
            None
        }
    }

    fn starts(self, library: &FoundMpi) -> bool {
        let is_open = matches!(self, MpiexecKind::OpenMpi4 | MpiexecKind::OpenMpi5);
        match library.abi {
            Abi::OpenMpi => is_open,
            Abi::Mpich => !is_open,
            // The wheel is MPICH; the standard's other libraries come with their own mpiexec, which
            // is found beside them.
            Abi::Standard => !is_open || library.source != MpiSource::Installed,
        }
    }
}

impl Mpiexec {
    /// Finds the launcher of a library: beside it, or on the path.
    pub fn find(library: &FoundMpi) -> Result<Mpiexec> {
        let names: &[&str] = match library.abi {
            Abi::OpenMpi => &["mpiexec.openmpi", "mpiexec"],
            Abi::Mpich | Abi::Standard => &["mpiexec.mpich", "mpiexec.hydra", "mpiexec"],
        };
        let mut tried = Vec::new();
        for path in beside(&library.path).into_iter().chain(on_path(names)) {
            let kind = version(&path).and_then(|text| {
                MpiexecKind::from_version(&text)
                    .ok_or_else(|| Error::new(ErrorKind::Unsupported, "its --version names no known MPI"))
            });
            match kind {
                Ok(kind) if kind.starts(library) => {
                    return Ok(Mpiexec { path, kind, library: library.clone(), grace: GRACE });
                }
                Ok(kind) => tried.push(format!("{} is of another MPI ({kind:?})", path.display())),
                Err(e) => tried.push(format!("{}: {}", path.display(), e.message())),
            }
        }
        let why = format!("there is no mpiexec for the MPI library {}", library.path.display());
        let error = Error::new(ErrorKind::Unsupported, why);
        let error = tried.into_iter().fold(error, Error::note);
        Err(error.note("install one with: tensorpack plugin install mpi"))
    }

    /// The launcher's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The kind of launcher.
    pub fn kind(&self) -> MpiexecKind {
        self.kind
    }

    /// Sets for how long the other ranks may go on after one has failed (default: 15 s), in whole
    /// seconds. After that the launcher kills them. It must be longer than the deadlines of the
    /// program.
    #[must_use]
    pub fn grace(mut self, time: Duration) -> Mpiexec {
        self.grace = time;
        self
    }

    /// The command that runs `program` as `ranks` ranks: on this host, or on `hosts`, with as many
    /// ranks on each as it takes, neighbours together. `forward` names environment variables that
    /// ranks on other hosts need; set their values with [`Command::env`].
    ///
    /// Arguments of the program are added to the command. Ranks open the launcher's library.
    pub fn command(
        &self,
        ranks: usize,
        hosts: &[String],
        forward: &[&str],
        program: impl AsRef<OsStr>,
    ) -> Result<Command> {
        if ranks == 0 {
            return Err(Error::argument("the number of ranks is 0"));
        }
        if let Some(bad) = hosts.iter().find(|host| !is_host(host)) {
            return Err(Error::argument(format!("{bad:?} is not the name of a host")));
        }
        let mut command = Command::new(&self.path);
        command.env(VARIABLE, &self.library.path);
        command.args(self.options());
        let each = ranks.div_ceil(hosts.len().max(1));
        if !hosts.is_empty() {
            let list: Vec<String> = hosts.iter().map(|host| format!("{host}:{each}")).collect();
            command.arg(self.hosts_option()).arg(list.join(","));
        }
        match self.kind {
            MpiexecKind::Hydra | MpiexecKind::IntelHydra => {
                command.arg("-genvall");
            }
            MpiexecKind::OpenMpi4 | MpiexecKind::OpenMpi5 => {
                for name in [&[VARIABLE], forward].concat() {
                    command.args(["-x", name]);
                }
            }
        }
        command.arg("-n").arg(ranks.to_string());
        let seconds = self.grace.as_secs().to_string();
        command.args(["/bin/sh", "-c", SCRIPT, &seconds]).arg(program);
        Ok(command)
    }

    fn options(&self) -> &'static [&'static str] {
        match self.kind {
            MpiexecKind::Hydra | MpiexecKind::IntelHydra => &[],
            // Ranks have threads, so they are not bound to single cores.
            MpiexecKind::OpenMpi4 => &["--oversubscribe", "--bind-to", "none"],
            MpiexecKind::OpenMpi5 => &["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"],
        }
    }

    fn hosts_option(&self) -> &'static str {
        match self.kind {
            MpiexecKind::Hydra | MpiexecKind::IntelHydra => "-hosts",
            MpiexecKind::OpenMpi4 | MpiexecKind::OpenMpi5 => "--host",
        }
    }
}

/// Whether a text is the name or address of a host, and not an option or a list.
fn is_host(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    !text.is_empty() && !text.starts_with('-') && text.chars().all(is_allowed)
}

/// The `mpiexec` of the installation that a library belongs to.
fn beside(library: &Path) -> Option<PathBuf> {
    let folder = library.parent()?;
    let prefixes = [folder.parent()?, folder.parent()?.parent().unwrap_or(folder)];
    // Not that of the system, which may belong to another MPI.
    let own = prefixes.into_iter().filter(|prefix| *prefix != Path::new("/usr") && *prefix != Path::new("/"));
    own.map(|prefix| prefix.join("bin/mpiexec")).find(|path| path.is_file())
}

fn on_path(names: &[&str]) -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = env::split_paths(&path).filter(|folder| folder.is_absolute()).collect();
    let files = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    files.filter(|path| path.is_file()).collect()
}

/// What a launcher prints for `--version`.
fn version(path: &Path) -> Result<String> {
    let mut command = Command::new(path);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let started = Instant::now();
    // What fits into the pipe is read after the end. A child that writes more runs into the limit.
    while child.try_wait()?.is_none() {
        if started.elapsed() > VERSION_TIMEOUT {
            child.kill()?;
            child.wait()?;
            return Err(Error::new(ErrorKind::Deadline, "it does not answer --version"));
        }
        thread::sleep(Duration::from_millis(2));
    }
    let mut text = String::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(1 << 16).read_to_string(&mut text)?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorpack_testing::assert_mentions;

    fn words(command: &Command) -> Vec<String> {
        command.get_args().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    fn mpiexec(kind: MpiexecKind) -> Mpiexec {
        let library =
            FoundMpi { path: "/x/lib/libmpi.so.12".into(), abi: Abi::Mpich, source: MpiSource::System };
        Mpiexec { path: "/x/bin/mpiexec".into(), kind, library, grace: GRACE }
    }

    #[test]
    fn kinds_are_told_by_their_version() {
        let kind = MpiexecKind::from_version;
        assert_eq!(kind("HYDRA build details:\n    Version:  5.0.2\n"), Some(MpiexecKind::Hydra));
        assert_eq!(kind("mpiexec.openmpi (OpenRTE) 4.1.4\n"), Some(MpiexecKind::OpenMpi4));
        assert_eq!(kind("mpirun (Open MPI) 5.0.7\n"), Some(MpiexecKind::OpenMpi5));
        let intel = "Intel(R) MPI Library for Linux* OS, Version 2021.13 Build 20240515";
        assert_eq!(kind(intel), Some(MpiexecKind::IntelHydra));
        assert_eq!(kind("something else 1.2"), None);
    }

    #[test]
    fn ranks_are_spread_over_hosts_and_survive() {
        let hosts = ["a".to_owned(), "b.c".to_owned()];
        let hydra = mpiexec(MpiexecKind::Hydra).command(3, &hosts, &["T"], "prog").unwrap();
        let text = words(&hydra).join(" ");
        assert_mentions(&text, &["-hosts a:2,b.c:2", "-n 3 /bin/sh", " 15 prog", "-genvall"]);
        let value = hydra.get_envs().find(|(name, _)| *name == VARIABLE).unwrap().1;
        assert_eq!(value, Some(OsStr::new("/x/lib/libmpi.so.12")));
        let open = words(
            &mpiexec(MpiexecKind::OpenMpi4)
                .grace(Duration::from_secs(7))
                .command(4, &hosts, &["T"], "prog")
                .unwrap(),
        )
        .join(" ");
        assert_mentions(&open, &["--host a:2,b.c:2", "-x T ", "--bind-to none", "-n 4 /bin/sh", " 7 prog"]);
        let local = words(&mpiexec(MpiexecKind::Hydra).command(4, &[], &[], "prog").unwrap()).join(" ");
        assert!(!local.contains("-hosts"), "{local}");
    }

    #[test]
    fn hosts_are_names() {
        for host in ["", "-x", "a b", "a,b", "a:3", "$(x)"] {
            let error = mpiexec(MpiexecKind::Hydra).command(2, &[host.into()], &[], "prog").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument, "{host:?}");
        }
        assert!(mpiexec(MpiexecKind::Hydra).command(0, &[], &[], "prog").is_err());
    }
}
