//! Starts the ranks of a run, and watches them.

use crate::fault::BEGUN;
use crate::program::Report;
use crate::sample::one_of;
use crate::task::{FOLDER, Task};
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tensorpack::io::Checkpoint;
use tensorpack_mpi::{FoundMpi, Mpiexec, find_libraries};
use tensorpack_testing::{Requirement, skip};

/// Longer than a run takes that does not hang.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// A shell script that runs its arguments, and writes the rank's exit status with the time to the
/// folder of the run. Launchers may send signals to it, too. They kill all ranks as soon as one has
/// ended by a signal, so it waits until the others have ended.
const SCRIPT: &str = r#"trap : HUP INT TERM; "$@"; status=$?
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}
echo "$status $(date +%s%N)" > "$0/.status-$rank"; mv "$0/.status-$rank" "$0/status-$rank"
[ $status -lt 128 ] || sleep 1; exit $status"#;

/// Which tests start ranks one after the other: cores are few. One test of each kind runs at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Turn {
    /// Tests that mostly wait, for deadlines and for processes to end. Those with networks of their
    /// own, whose names only differ between processes, are among them.
    Waiting,
    /// Tests that mostly train.
    Training,
}

impl Turn {
    /// Waits for the end of the other tests of this kind.
    pub(crate) fn take(self) -> MutexGuard<'static, ()> {
        static TURNS: [Mutex<()>; 2] = [Mutex::new(()), Mutex::new(())];
        TURNS[self as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An MPI library and its launcher.
#[derive(Clone, Debug)]
pub(crate) struct Installation {
    pub(crate) library: FoundMpi,
    pub(crate) mpiexec: Mpiexec,
}

impl Installation {
    /// Returns all installations. Skips the test if there is none.
    #[track_caller]
    pub(crate) fn all() -> Vec<Installation> {
        let mut reasons = Vec::new();
        let found =
            find_libraries().unwrap().into_iter().filter_map(|library| match Mpiexec::find(&library) {
                Ok(mpiexec) => Some(Installation { library, mpiexec: mpiexec.grace(Duration::from_secs(8)) }),
                Err(e) => {
                    reasons.push(e.to_string());
                    None
                }
            });
        let found: Vec<Installation> = found.collect();
        if found.is_empty() {
            skip(Requirement::Mpi, &format!("there is no MPI with its mpiexec {}", reasons.join("; ")));
        }
        found
    }

    /// Returns one installation, depending on the seed and on `what`; or all in the long form.
    #[track_caller]
    pub(crate) fn sample(what: &str) -> Vec<Installation> {
        one_of(what, Installation::all())
    }

    /// Starts the ranks of a run.
    pub(crate) fn start(&self, ranks: usize, task: &Task) -> Run {
        self.start_with(ranks, task, |_| ())
    }

    /// Starts the ranks of a run, with changes to the command.
    pub(crate) fn start_with(&self, ranks: usize, task: &Task, change: impl FnOnce(&mut Command)) -> Run {
        let mut command = self.mpiexec.command(ranks, &[], &[], "/bin/sh").unwrap();
        // Open MPI refuses to run as root otherwise, as containers do.
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        change(&mut command);
        Run::start(command, ranks, task)
    }

    /// Runs a task to its end.
    #[track_caller]
    pub(crate) fn finish(&self, ranks: usize, task: &Task) -> Run {
        let mut run = self.start(ranks, task);
        run.assert_finishes();
        run
    }
}

/// Starts a process without a launcher.
pub(crate) fn start_alone(task: &Task) -> Run {
    Run::start(Command::new("/bin/sh"), 1, task)
}

/// Trains without interruption in one process and returns the outcome.
#[track_caller]
pub(crate) fn undisturbed(task: &Task, towers: usize) -> Outcome {
    let dir = tempfile::tempdir().unwrap();
    let task = Task { alone: true, towers, logdir: dir.path().into(), fault: None, ..task.clone() };
    start_alone(&task).assert_finishes();
    Outcome::read(&task)
}

/// Ranks that were started.
pub(crate) struct Run {
    child: Child,
    pub(crate) ranks: usize,
    folder: TempDir,
}

impl Run {
    /// Starts a shell with `command`, by way of a launcher or not.
    pub(crate) fn start(mut command: Command, ranks: usize, task: &Task) -> Run {
        let folder = tempfile::tempdir().unwrap();
        task.write(folder.path());
        command.args(["-c", SCRIPT]).arg(folder.path()).arg(env::current_exe().unwrap());
        command.args(["--exact", "rank_process", "--nocapture"]);
        command.env(FOLDER, folder.path()).env("TENSORPACK_LOG", "info").env("RUST_BACKTRACE", "0");
        let output = fs::File::create(folder.path().join("output")).unwrap();
        command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
        Run { child: command.spawn().unwrap(), ranks, folder }
    }

    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.folder.path().join(name)).ok()
    }

    /// Returns what ranks and launcher printed, and how the ranks ended.
    pub(crate) fn output(&self) -> String {
        let reports = (0..self.ranks).map(|rank| format!("rank {rank} ended with {:?}", self.report(rank)));
        let printed = self.read("output").unwrap_or_default();
        reports.fold(printed, |text, report| text + &report + "\n")
    }

    /// Returns what a rank reported at its end, if it has.
    pub(crate) fn report(&self, rank: usize) -> Option<Report> {
        self.read(&format!("end-{rank}")).map(|text| serde_json::from_str(&text).unwrap())
    }

    /// Returns the exit status of a rank and when it ended, in nanoseconds since 1970.
    pub(crate) fn status(&self, rank: usize) -> Option<(i32, u128)> {
        let text = self.read(&format!("status-{rank}"))?;
        let (status, time) = text.trim().split_once(' ').unwrap();
        Some((status.parse().unwrap(), time.parse().unwrap()))
    }

    /// Returns the resident memory of a rank at the end of training, in kB, and the kind of the error
    /// with which it read the state of the optimizer, if it could not.
    pub(crate) fn memory(&self, rank: usize) -> (u64, Option<String>) {
        serde_json::from_str(&self.read(&format!("memory-{rank}")).unwrap()).unwrap()
    }

    /// Returns the last step that a rank has begun; 0 before the first.
    pub(crate) fn last_step(&self) -> u64 {
        let of = |rank: usize| self.read(&format!("step-{rank}")).map_or(0, |step| step.parse().unwrap());
        (0..self.ranks).map(of).max().unwrap_or(0)
    }

    /// Returns when the fault was injected.
    pub(crate) fn fault_time(&self) -> Option<u128> {
        self.read(BEGUN).map(|text| text.parse().unwrap())
    }

    /// Waits until `found` returns something. Fails after a long time.
    #[track_caller]
    pub(crate) fn wait_for<T>(&mut self, what: &str, found: impl Fn(&Run) -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            let ended = self.child.try_wait().unwrap();
            if let Some(found) = found(self) {
                return found;
            }
            let in_time = ended.is_none() && started.elapsed() < LONG;
            assert!(in_time, "{what} did not happen; launcher: {ended:?}; {}", self.output());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until these ranks have ended, and returns their exit statuses.
    #[track_caller]
    pub(crate) fn statuses(&mut self, ranks: impl Iterator<Item = usize>) -> Vec<i32> {
        ranks
            .map(|rank| self.wait_for(&format!("the end of rank {rank}"), |run| run.status(rank)).0)
            .collect()
    }

    #[track_caller]
    pub(crate) fn assert_finishes(&mut self) {
        let statuses = self.statuses(0..self.ranks);
        assert!(statuses.iter().all(|status| *status == 0), "{statuses:?}: {}", self.output());
    }

    /// Sends a rank a signal.
    #[track_caller]
    pub(crate) fn signal(&mut self, rank: usize, number: i32) {
        let pid = self.wait_for("the start of a rank", |run| run.read(&format!("pid-{rank}")));
        // SAFETY: takes numbers. The rank runs, so its id belongs to it.
        assert_eq!(unsafe { libc::kill(pid.parse().unwrap(), number) }, 0);
    }

    /// Returns whether the process of a rank exists.
    pub(crate) fn is_running(&self, rank: usize) -> bool {
        let pid = self.read(&format!("pid-{rank}")).unwrap_or_default();
        // One that nobody has waited for has no command line any more.
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
    }

    /// Waits for the end of the launcher. Returns whether it reports success.
    #[track_caller]
    pub(crate) fn wait_for_launcher(&mut self) -> bool {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.success();
            }
            assert!(begun.elapsed() < LONG, "the launcher does not end; {}", self.output());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends the launcher a signal.
    pub(crate) fn signal_launcher(&self, number: i32) {
        // SAFETY: takes numbers. The launcher has not been waited for, so its id belongs to it.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, number) }, 0);
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Ranks outlive their launcher, and stopped ones do not end by themselves.
        let ours = format!("{FOLDER}={}\0", self.folder.path().display());
        for process in fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path()) {
            let environment = fs::read(process.join("environ")).unwrap_or_default();
            let pid = process.file_name().and_then(|name| name.to_str()?.parse().ok());
            if let Some(pid) = pid.filter(|_| String::from_utf8_lossy(&environment).contains(&ours)) {
                // SAFETY: takes numbers. The process has this run's folder in its environment.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
        }
    }
}

/// What a run leaves: the bytes of its last checkpoint, and its statistics.
#[derive(Clone, PartialEq)]
pub(crate) struct Outcome {
    tensors: BTreeMap<String, Vec<u8>>,
    statistics: String,
}

/// Returns the last checkpoint of a run, if there is one. It must be whole.
pub(crate) fn last_checkpoint(logdir: &Path) -> Option<Checkpoint> {
    let folder: PathBuf = logdir.join("checkpoints");
    let latest = fs::read_to_string(folder.join("latest")).ok()?;
    Some(Checkpoint::load(folder.join(latest.trim())).expect("the last checkpoint is whole"))
}

impl Outcome {
    #[track_caller]
    pub(crate) fn read(task: &Task) -> Outcome {
        let checkpoint = last_checkpoint(&task.logdir).expect("a checkpoint");
        assert_eq!(checkpoint.global_step, task.steps());
        let tensors = checkpoint.tensors.iter().map(|(n, t)| (n.clone(), t.as_bytes().to_vec())).collect();
        let statistics = fs::read_to_string(task.logdir.join("stats.jsonl")).expect("statistics");
        assert_eq!(statistics.lines().count(), task.epochs as usize, "{statistics}");
        Outcome { tensors, statistics }
    }

    /// Checks that two runs have the same bits.
    #[track_caller]
    pub(crate) fn assert_same(&self, other: &Outcome, what: &str) {
        let names = |outcome: &Outcome| outcome.tensors.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(self), names(other), "{what}");
        for (name, bytes) in &self.tensors {
            assert!(*bytes == other.tensors[name], "{what}: {name} has different bytes");
        }
        assert_eq!(self.statistics, other.statistics, "{what}: different statistics");
    }

    /// Returns the elements of a variable.
    pub(crate) fn values(&self, name: &str) -> Vec<f32> {
        let value = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("four bytes"));
        self.bytes(name).chunks(4).map(value).collect()
    }

    /// Returns the bytes of a variable.
    pub(crate) fn bytes(&self, name: &str) -> &[u8] {
        &self.tensors[name]
    }
}
