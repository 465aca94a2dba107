//! Feeds mutated files to every parser. None may panic, crash, hang, or use memory that the file
//! cannot account for.
//!
//! ```sh
//! # All parsers, an hour together; those with npy or tar in the name; one input again.
//! TENSORPACK_FUZZ_SECONDS=3600 cargo test --release --test fuzz
//! TENSORPACK_FUZZ_SECONDS=3600 cargo test --release --test fuzz -- npy tar
//! TENSORPACK_FUZZ_CASE=1234 cargo test --release --test fuzz -- npy
//! ```
//!
//! | variable | meaning |
//! |---|---|
//! | `TENSORPACK_FUZZ_SECONDS` | the time for all chosen parsers together (default: 5) |
//! | `TENSORPACK_FUZZ_SEED` | the seed (default: 0) |
//! | `TENSORPACK_FUZZ_CASE` | runs only the input with this number |
//! | `TENSORPACK_FUZZ_FAILURES` | where inputs that fail are written (default: a temporary folder) |
//! | `TENSORPACK_FUZZ_CORPUS` | more files to mutate (default: the repository's corpus) |
//!
//! Input `i` of a parser is a function of the seed, `i` and the files to mutate. Each parser runs
//! in its own process, so that a crash or a hang ends neither the others nor the report. The
//! binary can be copied to another machine and run there.

#[path = "../../crates/tensorpack-dataflow/fuzz/mutate.rs"]
mod mutate;
#[path = "../../crates/tensorpack-dataflow/fuzz/targets.rs"]
#[allow(dead_code)]
mod targets;
#[path = "../torch/file_writer.rs"]
#[allow(dead_code)]
mod file_writer;
mod model_files;
mod parsers;
mod worker;

use parsers::{PARSERS, Parser};
use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};
use worker::{HANG, Job};

/// Names the parser of a worker process.
const WORKER: &str = "TENSORPACK_FUZZ_WORKER";
/// The first case of a worker process.
const START: &str = "TENSORPACK_FUZZ_START";
/// The number of times that a parser may crash or hang.
const MAX_CRASHES: u64 = 5;

fn variable<T: FromStr>(name: &str) -> Option<T> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

fn job(time: Duration) -> Job {
    let case: Option<u64> = variable("TENSORPACK_FUZZ_CASE");
    let failures = env::var_os("TENSORPACK_FUZZ_FAILURES").map(PathBuf::from);
    Job {
        seed: variable("TENSORPACK_FUZZ_SEED").unwrap_or(0),
        start: case.or(variable(START)).unwrap_or(0),
        single: case.is_some(),
        time,
        failures: failures.unwrap_or_else(|| env::temp_dir().join("tensorpack-fuzz")),
        position: PathBuf::new(),
    }
}

/// The parsers whose names contain one of the words on the command line; all without one. Options
/// of the standard test harness are accepted and have no meaning.
fn chosen() -> Vec<&'static Parser> {
    let mut words: Vec<String> = Vec::new();
    let mut args = env::args().skip(1);
    while let Some(arg) = args.next() {
        match &arg[..] {
            "--skip" | "--test-threads" | "--format" | "--color" | "--logfile" => drop(args.next()),
            option if option.starts_with('-') => {}
            _ => words.push(arg),
        }
    }
    let is_chosen = |p: &&Parser| words.is_empty() || words.iter().any(|word| p.name.contains(word.as_str()));
    PARSERS.iter().filter(is_chosen).collect()
}

fn main() -> ExitCode {
    if env::args().any(|arg| arg == "--list") {
        PARSERS.iter().for_each(|parser| println!("{}: test", parser.name));
        return ExitCode::SUCCESS;
    }
    let seconds: f64 = variable("TENSORPACK_FUZZ_SECONDS").unwrap_or(5.0);
    if let Ok(name) = env::var(WORKER) {
        let parser = PARSERS.iter().find(|parser| parser.name == name).expect("a parser of this name");
        let position = env::temp_dir().join(format!("tensorpack-fuzz-position-{}", std::process::id()));
        let job = Job { position, ..job(Duration::from_secs_f64(seconds)) };
        let failures = worker::run(parser, &job);
        let _ = fs::remove_file(&job.position);
        return if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let parsers = chosen();
    let share = Duration::from_secs_f64(seconds / parsers.len().max(1) as f64);
    let failed: Vec<_> = parsers.iter().filter(|parser| !supervise(parser, share)).map(|p| p.name).collect();
    match failed.is_empty() {
        true => println!("{} parsers, no failures", parsers.len()),
        false => println!("{} of {} parsers fail: {}", failed.len(), parsers.len(), failed.join(", ")),
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a parser in child processes for the given time. After a crash or a hang it continues with
/// the next case. Returns whether there was no failure.
fn supervise(parser: &Parser, time: Duration) -> bool {
    let (started, mut ok, mut job) = (Instant::now(), true, job(time));
    for _ in 0..MAX_CRASHES {
        let left = time.saturating_sub(started.elapsed());
        let mut command = Command::new(env::current_exe().expect("the path of this program"));
        command.env(WORKER, parser.name).env(START, job.start.to_string());
        command.env("TENSORPACK_FUZZ_SECONDS", left.as_secs_f64().to_string());
        let mut child = command.spawn().expect("this program can be started again");
        let position = env::temp_dir().join(format!("tensorpack-fuzz-position-{}", child.id()));
        let case = || -> Option<u64> { Some(u64::from_le_bytes(fs::read(&position).ok()?.try_into().ok()?)) };
        let (mut last, mut changed) = (None, Instant::now());
        let crash = loop {
            if let Some(status) = child.try_wait().expect("a child process") {
                // 0 and 1 are the worker's own; it has reported its failures.
                match status.code() {
                    Some(0) => return ok,
                    Some(1) => return false,
                    _ => break format!("crashes ({status})"),
                }
            }
            let now = case();
            if now != last {
                (last, changed) = (now, Instant::now());
            } else if changed.elapsed() > HANG {
                child.kill().and_then(|()| child.wait()).expect("a child process");
                break format!("hangs for {} s", HANG.as_secs());
            }
            thread::sleep(Duration::from_millis(10));
        };
        ok = false;
        let Some(case) = case() else {
            println!("{}: the parser {crash} before the first case", parser.name);
            return false;
        };
        let _ = fs::remove_file(&position);
        let bytes = worker::input(parser, &parser.seeds(), job.seed, case);
        let path = worker::save(&job.failures, parser, job.seed, case, &bytes);
        println!("{}: case {case} {crash}; input in {}", parser.name, path.display());
        job.start = case + 1;
        if job.single || started.elapsed() >= time {
            break;
        }
    }
    ok
}
