//! Worker processes: each runs a share of the programs, so that a program that aborts the process
//! is reported like one that fails.
//!
//! A worker writes lines that begin with `@` to standard error, which the supervisor reads. If a
//! worker dies, the last program that it began is the cause.

use crate::compare::{Failure, Unfit, check, check_bits};
use crate::draw::{Special, draw_program};
use crate::print::print;
use crate::program::Program;
use crate::run::{Engine, Found};
use crate::{fit, setting, shrink};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The default number of programs: about 30 s of a debug build on one core.
const GRAPHS: u64 = 20;
/// The default number of seconds to shrink a failing program.
const SHRINK: u64 = 60;
/// XLA compiles for seconds, so by default it runs only every n-th program.
const XLA_EVERY: u64 = 8;
/// Maximum fraction of programs that are near a kink.
const MOST_KINKS: f64 = 0.05;

const SHARE: &str = "TENSORPACK_GRAPHS_SHARE";
const CANDIDATE: &str = "TENSORPACK_GRAPHS_CANDIDATE";

fn shrink_time() -> Duration {
    Duration::from_secs(setting("TENSORPACK_TEST_SHRINK").unwrap_or(SHRINK))
}

/// Returns the kind of programs that `TENSORPACK_TEST_ONLY` names.
fn only() -> Option<Special> {
    let name = std::env::var("TENSORPACK_TEST_ONLY").ok()?;
    Some(match name.as_str() {
        "plain" => Special::Nothing,
        "towers" => Special::SeveralTowers,
        "narrow" => Special::Narrow,
        _ => panic!("TENSORPACK_TEST_ONLY is {name:?}, not plain, towers or narrow"),
    })
}

fn say(what: &str) {
    let mut out = std::io::stderr().lock();
    let _ = writeln!(out, "@{what}");
    let _ = out.flush();
}

fn all_engines() -> Vec<Engine> {
    Engine::on_cpu().into_iter().chain(Engine::on_xla()).collect()
}

/// Returns the engines that program `index` runs on: all if `TENSORPACK_TEST_GRAPHS` is set,
/// otherwise two variants of the CPU engine in turn.
fn engines(index: u64) -> Vec<Engine> {
    let mut engines = Engine::on_cpu();
    if setting("TENSORPACK_TEST_GRAPHS").or(setting("TENSORPACK_TEST_GRAPH")).is_none() {
        let count = engines.len();
        engines.rotate_left(index as usize * 2 % count);
        engines.truncate(2);
    }
    let every = setting("TENSORPACK_TEST_XLA_EVERY").unwrap_or(XLA_EVERY).max(1);
    if index.is_multiple_of(every) {
        engines.extend(Engine::on_xla());
    }
    engines
}

/// Runs the programs that the environment names.
pub(crate) fn work() {
    if let Ok(candidate) = std::env::var(CANDIDATE) {
        return try_candidate(&candidate);
    }
    let Ok(share) = std::env::var(SHARE) else { return };
    let numbers: Vec<u64> = share.split(',').map(|n| n.parse().expect("a number")).collect();
    let [seed, first, stride, end] = numbers[..] else { panic!("{share:?} is no share") };
    let only = only();
    let chosen = |index: &u64| only.is_none_or(|only| only == Special::of(seed, *index));
    for index in (first..end).step_by(stride as usize).filter(chosen) {
        say(&format!("begin {index}"));
        let tell = |unfit: &Unfit| match unfit {
            Unfit::Kink(what) => say(&format!("kink {index}: {what}")),
            Unfit::NotFinite(what) => say(&format!("infinite {index}: {what}")),
            Unfit::Refused(what) => say(&format!("refused {index}: {}", what.replace('\n', " "))),
        };
        let (program, expected) = fit(seed, index, &tell);
        say(&format!("attempt {}", program.origin[2]));
        let mut before: Option<(Engine, Vec<Found>)> = None;
        for engine in engines(index).into_iter().filter(|e| e.supports(program.towers)) {
            say(&format!("engine {engine}"));
            let found = match check(&program, engine, &expected) {
                Ok(found) => found,
                Err(failure) => {
                    report(&program, failure, &|p| shrink::fails(p, engine));
                    break;
                }
            };
            // One CPU engine shows whether recompute blocks change bits. XLA may fuse operations
            // otherwise, and contract a multiplication and an addition into one rounding.
            if before.is_none()
                && matches!(engine, Engine::Cpu { .. })
                && !program.blocks.is_empty()
                && let Some(failure) = shrink::recomputed_bits_differ(&program, engine)
            {
                report(&program, failure, &|p| shrink::recomputed_bits_differ(p, engine));
                break;
            }
            if let Some((one, right)) = before.replace((engine, found.clone()))
                && engine.with_one_thread() == Some(one)
                && let Err(failure) = check_bits(engine, &found, &right, "with one thread")
            {
                report(&program, failure, &|p| shrink::bits_differ(p, engine));
                break;
            }
        }
        let towers = u64::from(program.towers.count > 1);
        let narrow = u64::from(program.narrow.is_some());
        say(&format!("end {} {} {towers} {narrow}", program.rows(), expected.found.len()));
    }
}

/// Shrinks a failing program and prints it.
fn report(program: &Program, failure: Failure, fails: &dyn Fn(&Program) -> Option<Failure>) {
    let [seed, index, attempt] = program.origin;
    say(&format!(
        "fail graph {index} of seed {seed}, attempt {attempt}, on {}: {}",
        failure.engine,
        failure.what.replace('\n', " ")
    ));
    let (small, failure) = shrink::shrink(program, failure, shrink_time(), fails);
    print(&small, &failure).lines().for_each(|line| say(&format!("| {line}")));
}

/// Runs the program that steps of the shrinker lead to on one engine:
/// `seed,index,attempt,engine,step,step,..`.
fn try_candidate(candidate: &str) {
    let numbers: Vec<u64> = candidate.split(',').map(|n| n.parse().expect("a number")).collect();
    let [seed, index, attempt, engine, ..] = numbers[..] else { panic!("{candidate:?} is no candidate") };
    let mut program = draw_program(seed, index, attempt);
    program.prune();
    for &step in &numbers[4..] {
        program = shrink::candidates(&program).swap_remove(step as usize);
    }
    if crate::compare::expect(&program).is_ok() {
        let engine = all_engines()[engine as usize];
        let _ = crate::run::run(&program, engine, None);
    }
}

fn child(variable: &str, value: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this test has a file"));
    command.args(["--exact", "worker", "--nocapture", "--test-threads=1"]).env(variable, value);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

#[derive(Default)]
struct Tally {
    tried: u64,
    rows: u64,
    tensors: u64,
    towers: u64,
    narrow: u64,
    kinks: u64,
    infinite: u64,
    refused: u64,
    failures: Vec<String>,
}

/// Starts workers, reads their output, and fails with a report of all failing programs.
pub(crate) fn supervise() {
    let seed = setting("TENSORPACK_TEST_SEED").unwrap_or(0);
    let (first, end) = match setting("TENSORPACK_TEST_GRAPH") {
        Some(one) => (one, one + 1),
        None => (0, setting("TENSORPACK_TEST_GRAPHS").unwrap_or(GRAPHS)),
    };
    // These fail here if the plugin is required but missing, or a name is wrong.
    Engine::on_xla();
    only();
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get() as u64).min(end - first).max(1);
    let shares: Vec<_> =
        (0..workers).map(|w| std::thread::spawn(move || share(seed, first + w, workers, end))).collect();
    let mut all = Tally::default();
    for share in shares {
        let one = share.join().expect("the supervisor of a worker does not panic");
        all.tried += one.tried;
        all.rows += one.rows;
        all.tensors += one.tensors;
        all.towers += one.towers;
        all.narrow += one.narrow;
        all.kinks += one.kinks;
        all.infinite += one.infinite;
        all.refused += one.refused;
        all.failures.extend(one.failures);
    }
    let drawn = all.tried + all.kinks + all.infinite + all.refused;
    eprintln!(
        "{} graphs of {} rows, {} with several towers, {} with bf16 or f16; {} tensors compared on each engine; \
         drawn again: {} near kinks, {} not finite, {} refused",
        all.tried, all.rows, all.towers, all.narrow, all.tensors, all.kinks, all.infinite, all.refused
    );
    assert!(all.failures.is_empty(), "{} graphs fail:\n{}", all.failures.len(), all.failures.join("\n"));
    // A sample has one standard deviation more by chance.
    let most = MOST_KINKS * drawn as f64;
    assert!(
        all.kinks as f64 <= (most + most.sqrt()).max(3.0),
        "{} of {drawn} graphs lie near kinks: too many to be drawn again",
        all.kinks
    );
}

/// Runs one worker, and restarts it after a program that kills it.
fn share(seed: u64, mut first: u64, stride: u64, end: u64) -> Tally {
    let mut tally = Tally::default();
    while first < end {
        let value = format!("{seed},{first},{stride},{end}");
        let mut worker = child(SHARE, &value).stderr(Stdio::piped()).spawn().expect("a worker starts");
        let lines = BufReader::new(worker.stderr.take().expect("stderr is piped")).lines();
        let (mut at, mut attempt, mut engine, mut other) = (first, 0, String::new(), Vec::new());
        for line in lines.map_while(Result::ok) {
            let Some(said) = line.strip_prefix('@') else {
                other.push(line);
                continue;
            };
            let (word, rest) = said.split_once(' ').unwrap_or((said, ""));
            match word {
                "begin" => (at, attempt, other) = (rest.parse().expect("a number"), 0, Vec::new()),
                "attempt" => attempt = rest.parse().expect("a number"),
                "engine" => engine = rest.to_string(),
                "kink" => tally.kinks += 1,
                "infinite" => tally.infinite += 1,
                "refused" => tally.refused += 1,
                "end" => {
                    let numbers: Vec<u64> = rest.split(' ').filter_map(|n| n.parse().ok()).collect();
                    tally.tried += 1;
                    tally.rows += numbers[0];
                    tally.tensors += numbers[1];
                    tally.towers += numbers[2];
                    tally.narrow += numbers[3];
                }
                "fail" => {
                    eprintln!("{rest}");
                    tally.failures.push(rest.to_string());
                }
                "|" => {
                    let last = tally.failures.last_mut().expect("a program follows its failure");
                    last.push('\n');
                    last.push_str(rest);
                }
                _ => other.push(line.clone()),
            }
            if std::env::var_os("TENSORPACK_TEST_VERBOSE").is_some()
                && !matches!(word, "|" | "engine" | "attempt")
            {
                eprintln!("{said}");
            }
        }
        let status = worker.wait().expect("a worker ends");
        if status.success() {
            break;
        }
        eprintln!("graph {at} of seed {seed}, attempt {attempt}, ended its process ({status}) on {engine}");
        tally.failures.push(dead(seed, at, attempt, &engine, &format!("{status}: {}", other.join(" "))));
        first = at + stride;
    }
    tally
}

/// Shrinks a program that kills the process, and prints it.
fn dead(seed: u64, index: u64, attempt: u64, engine: &str, status: &str) -> String {
    let mut program = draw_program(seed, index, attempt);
    program.prune();
    let list = all_engines();
    let Some(at) = list.iter().position(|e| e.to_string() == engine) else {
        return format!("graph {index} of seed {seed}, attempt {attempt}: {status} before any engine ran");
    };
    let mut path: Vec<String> = [seed, index, attempt, at as u64].map(|n| n.to_string()).to_vec();
    let dies = |path: &[String], step: usize| {
        let value = format!("{},{step}", path.join(","));
        let status = child(CANDIDATE, &value).stderr(Stdio::null()).status();
        status.is_ok_and(|s| !s.success())
    };
    let begun = std::time::Instant::now();
    loop {
        let candidates = shrink::candidates(&program);
        let next = (0..candidates.len()).find(|&i| begun.elapsed() < shrink_time() && dies(&path, i));
        let Some(i) = next else { break };
        path.push(i.to_string());
        program = candidates[i].clone();
    }
    let failure = Failure { engine: list[at], what: format!("the process ended: {status}"), raised: true };
    format!("{}\n{}", failure.what, print(&program, &failure))
}
