//! The compile cache on disk: a program that was compiled before starts without compiling, with the
//! same results.

use crate::{child, compile, device};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tensorpack::prelude::*;
use tensorpack_testing::plugin_for_tests;

const DIR: &str = "TENSORPACK_TEST_CACHED_RUN";
const LIMIT: &str = "TENSORPACK_COMPILE_CACHE_BYTES";

/// Runs in a child process: trains in a folder of its own.
#[test]
fn child_that_trains() {
    if let (Some(dir), Some(device)) = (std::env::var_os(DIR), device()) {
        // XLA compiles these for long enough that they are stored.
        let options = SessionOptions { device, ..SessionOptions::default() };
        compile::train_layers(8, Path::new(&dir), options, 1).unwrap();
    }
}

/// A folder for a cache, and runs that use it.
struct Runs {
    dir: tempfile::TempDir,
    plugin: PathBuf,
}

impl Runs {
    fn new() -> Option<Runs> {
        let Device::Xla { platform, .. } = device()? else { return None };
        let plugin = plugin_for_tests(platform.name())?.path().to_path_buf();
        Some(Runs { dir: tempfile::tempdir().unwrap(), plugin })
    }

    /// Starts to train in a new process, in the folder `run`.
    fn start(&self, run: &str, limit: Option<&str>) -> Child {
        let mut command: Command = child("compile_cache::child_that_trains");
        command.env("TENSORPACK_CACHE", self.dir.path().join("cache"));
        command.env("TENSORPACK_PJRT_PLUGIN", &self.plugin);
        command.env(DIR, self.dir.path().join(run)).env_remove(LIMIT).env("TENSORPACK_LOG", "debug");
        if let Some(limit) = limit {
            command.env(LIMIT, limit);
        }
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Waits for a run. Returns whether it loaded programs from the cache, and its log.
    fn end(running: Child) -> (bool, String) {
        let Output { status, stderr, .. } = running.wait_with_output().unwrap();
        let log = String::from_utf8_lossy(&stderr).into_owned();
        assert!(status.success(), "{log}");
        (log.contains("from the compile cache"), log)
    }

    fn run(&self, run: &str, limit: Option<&str>) -> (bool, String) {
        Runs::end(self.start(run, limit))
    }

    fn trained(&self, run: &str) -> Vec<(String, HostTensor)> {
        compile::latest(&self.dir.path().join(run)).tensors.into_iter().collect()
    }

    fn entries(&self) -> Vec<PathBuf> {
        let listed = fs::read_dir(self.dir.path().join("cache/compiled")).into_iter().flatten();
        listed.map(|entry| entry.unwrap().path()).collect()
    }
}

#[test]
fn a_second_start_does_not_compile() {
    let Some(runs) = Runs::new() else { return };
    let (loaded, log) = runs.run("first", None);
    assert!(!loaded, "{log}");
    assert!(!runs.entries().is_empty(), "{log}");
    let (loaded, log) = runs.run("second", None);
    assert!(loaded, "{log}");
    let right = runs.trained("first");
    assert!(runs.trained("second") == right, "the weights differ");
    // Damaged entries are compiled again, silently unless the log level is debug, and replaced.
    let before = runs.entries();
    for path in &before {
        let half = fs::metadata(path).unwrap().len() / 2;
        fs::File::options().write(true).open(path).unwrap().set_len(half).unwrap();
    }
    let (loaded, log) = runs.run("third", None);
    let loud = log.lines().filter(|line| line.contains("cache") && !line.contains("DBG")).count();
    assert!(!loaded && loud == 0, "{log}");
    assert!(runs.trained("third") == right, "the weights differ");
    let (loaded, log) = runs.run("fourth", None);
    assert!(loaded, "{log}");
    assert_eq!(runs.entries().len(), before.len());
}

#[test]
fn two_processes_fill_the_cache_at_once() {
    let Some(runs) = Runs::new() else { return };
    let started = ["first", "second"].map(|run| runs.start(run, None));
    for running in started {
        Runs::end(running);
    }
    let (loaded, log) = runs.run("third", None);
    assert!(loaded, "{log}");
    let right = runs.trained("first");
    assert!(["second", "third"].iter().all(|run| runs.trained(run) == right), "the weights differ");
    let is_entry = |path: &PathBuf| path.extension().is_some_and(|e| e == "xla");
    assert!(runs.entries().iter().all(is_entry), "{:?}", runs.entries());
}

#[test]
fn a_limit_of_zero_turns_the_cache_off() {
    let Some(runs) = Runs::new() else { return };
    for run in ["first", "second"] {
        let (loaded, log) = runs.run(run, Some("0"));
        assert!(!loaded, "{log}");
    }
    assert!(runs.entries().is_empty());
}
