//! Feeds mutated files to one parser.

use super::mutate::mutate;
use super::parsers::Parser;
use std::fs::{self, File};
use std::io::{Seek, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tensorpack_dataflow::Seed;
use tensorpack_testing::PeakAllocator;

/// An input that takes longer counts as a hang.
pub(crate) const HANG: Duration = Duration::from_secs(20);
/// The number of failures after which a parser is not tested any further.
const MAX_FAILURES: u64 = 20;

#[global_allocator]
static ALLOCATOR: PeakAllocator = PeakAllocator::new();

/// The location and message of the last panic.
static PANIC: Mutex<String> = Mutex::new(String::new());

/// Returns input `case` of a parser: the seeds themselves, then mutations. It depends on nothing
/// but the arguments.
pub(crate) fn input(parser: &Parser, seeds: &[Vec<u8>], seed: u64, case: u64) -> Vec<u8> {
    if let Some(file) = seeds.get(case as usize) {
        return file.clone();
    }
    let mut rng = Seed::new(seed).derive(parser.name).rng(0, case);
    let mut bytes = seeds[rng.below(seeds.len() as u64) as usize].clone();
    let other = &seeds[rng.below(seeds.len() as u64) as usize];
    mutate(&mut rng, &mut bytes, other);
    bytes
}

/// Writes an input to a file and returns its path.
pub(crate) fn save(folder: &Path, parser: &Parser, seed: u64, case: u64, bytes: &[u8]) -> PathBuf {
    let path = folder.join(format!("{}-{seed}-{case}", parser.name));
    if let Err(e) = fs::create_dir_all(folder).and_then(|()| fs::write(&path, bytes)) {
        println!("cannot write {}: {e}", path.display());
    }
    path
}

/// The job of a worker process.
pub(crate) struct Job {
    pub(crate) seed: u64,
    /// The first case, and the only one if `single`.
    pub(crate) start: u64,
    pub(crate) single: bool,
    pub(crate) time: Duration,
    /// The directory for failing inputs.
    pub(crate) failures: PathBuf,
    /// Always holds the number of the current case, for the process that started this one.
    pub(crate) position: PathBuf,
}

/// Runs a parser until the time is over. Returns the number of failures.
pub(crate) fn run(parser: &Parser, job: &Job) -> u64 {
    std::panic::set_hook(Box::new(|panic| {
        *PANIC.lock().unwrap_or_else(|e| e.into_inner()) = panic.to_string().replace('\n', " ");
    }));
    let seeds = parser.seeds();
    let mut parse = (parser.make)();
    let mut position = File::create(&job.position).expect("the position can be written");
    let (started, mut failures, mut case) = (Instant::now(), 0, job.start);
    loop {
        let bytes = input(parser, &seeds, job.seed, case);
        position.rewind().and_then(|()| position.write_all(&case.to_le_bytes())).expect("a small file");
        let (parsed, peak) = ALLOCATOR.measure(|| catch_unwind(AssertUnwindSafe(|| parse(&bytes))));
        let why = match parsed {
            Err(_) => Some(PANIC.lock().unwrap_or_else(|e| e.into_inner()).clone()),
            Ok(()) if peak > parser.max_memory => Some(format!("it takes {peak} bytes of memory")),
            Ok(()) => None,
        };
        if let Some(why) = why {
            failures += 1;
            let path = save(&job.failures, parser, job.seed, case, &bytes);
            println!("{}: case {case} fails: {why}; input in {}", parser.name, path.display());
        }
        case += 1;
        if job.single || started.elapsed() >= job.time || failures == MAX_FAILURES {
            break;
        }
    }
    let (count, seconds) = (case - job.start, started.elapsed().as_secs_f64());
    let rate = count as f64 / seconds.max(1e-9);
    println!("{}: {count} executions in {seconds:.1} s ({rate:.0}/s), {failures} failures", parser.name);
    failures
}
