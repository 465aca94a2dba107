//! Starts ranks with the `mpiexec` of an installation.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tensorpack_mpi::{Abi, FoundMpi, Library, MpiSource, Mpiexec, World, find_libraries};
use tensorpack_testing::{Requirement, skip};

/// What a rank's process does.
pub(crate) const ROLE: &str = "TENSORPACK_TEST_ROLE";
/// Details of the role.
pub(crate) const CASE: &str = "TENSORPACK_TEST_CASE";
/// The folder for the ranks' reports.
const REPORTS: &str = "TENSORPACK_TEST_REPORTS";

/// Longer than a run takes that does not hang.
const LONG: Duration = Duration::from_secs(120);

/// An MPI library and its launcher.
pub(crate) struct Installation {
    pub(crate) library: FoundMpi,
    pub(crate) mpiexec: Mpiexec,
}

impl Installation {
    /// All installations with this binary interface. Skips the test if there is none.
    #[track_caller]
    pub(crate) fn all(abi: Abi) -> Vec<Installation> {
        let mut libraries = find_libraries().unwrap();
        // The wheel contains MPICH's own interface, too.
        let wheel = libraries.iter().find(|found| found.source == MpiSource::Installed).cloned();
        if let Some(found) = wheel {
            let path = found.path.with_file_name("libmpi.so.12");
            assert!(path.is_file(), "{}", path.display());
            libraries.push(FoundMpi { path, abi: Abi::Mpich, source: MpiSource::Installed });
        }
        libraries.retain(|found| found.abi == abi);
        let mut reasons = Vec::new();
        let installations: Vec<Installation> = libraries
            .into_iter()
            .filter_map(|library| match Mpiexec::find(&library) {
                Ok(mpiexec) => {
                    let mpiexec = mpiexec.grace(Duration::from_secs(5));
                    Some(Installation { library, mpiexec })
                }
                Err(e) => {
                    reasons.push(e.to_string());
                    None
                }
            })
            .collect();
        if installations.is_empty() {
            skip(Requirement::Mpi, &format!("there is no {abi} with its mpiexec {}", reasons.join("; ")));
        }
        installations
    }

    /// Starts ranks of this program.
    pub(crate) fn start(&self, ranks: usize, role: &str, case: &str) -> Run {
        let reports = tempfile::tempdir().unwrap();
        let mut command = self.mpiexec.command(ranks, &[], &[], env::current_exe().unwrap()).unwrap();
        command.args(["--exact", "rank_process", "--nocapture"]);
        command.env(ROLE, role).env(CASE, case).env(REPORTS, reports.path());
        Run::start(command, reports)
    }
}

/// Ranks that were started.
pub(crate) struct Run {
    child: Child,
    reports: TempDir,
}

impl Run {
    pub(crate) fn start(mut command: Command, reports: TempDir) -> Run {
        // Open MPI refuses to run as root otherwise, as containers do.
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        let output = fs::File::create(reports.path().join("output")).unwrap();
        command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
        Run { child: command.spawn().unwrap(), reports }
    }

    pub(crate) fn with_reports(mut command: Command) -> Run {
        let reports = tempfile::tempdir().unwrap();
        command.env(REPORTS, reports.path());
        Run::start(command, reports)
    }

    /// Waits until the launcher ends; kills it if it does not.
    pub(crate) fn wait(&mut self) -> Option<bool> {
        let started = Instant::now();
        while started.elapsed() < LONG {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(status.success());
            }
            thread::sleep(Duration::from_millis(5));
        }
        None
    }

    /// What a rank reported, if it has.
    pub(crate) fn report(&self, rank: usize) -> Option<String> {
        fs::read_to_string(self.reports.path().join(rank.to_string())).ok()
    }

    /// Waits for what a rank reports.
    #[track_caller]
    pub(crate) fn wait_for_report(&mut self, rank: usize) -> String {
        let started = Instant::now();
        loop {
            let ended = self.child.try_wait().unwrap().is_some();
            if let Some(text) = self.report(rank) {
                return text;
            }
            assert!(!ended && started.elapsed() < LONG, "rank {rank} reported nothing; {}", self.output());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// What ranks and launcher printed.
    pub(crate) fn output(&self) -> String {
        fs::read_to_string(self.reports.path().join("output")).unwrap()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Ranks that are stopped outlive some launchers.
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let folder = self.reports.path().to_str().unwrap();
        for process in processes.map(|entry| entry.path()) {
            let environment = fs::read(process.join("environ")).unwrap_or_default();
            if String::from_utf8_lossy(&environment).contains(&format!("{REPORTS}={folder}\0")) {
                let _ = Command::new("kill").arg("-KILL").arg(process.file_name().unwrap()).status();
            }
        }
    }
}

/// In a rank's process: writes its report, in one step.
pub(crate) fn report(rank: usize, text: &str) {
    let folder = PathBuf::from(env::var_os(REPORTS).unwrap());
    let partial = folder.join(format!(".{rank}"));
    fs::write(&partial, text).unwrap();
    fs::rename(partial, folder.join(rank.to_string())).unwrap();
}

/// In a rank's process: initializes MPI.
pub(crate) fn init() -> World {
    World::init(Library::find().unwrap(), LONG).unwrap()
}
