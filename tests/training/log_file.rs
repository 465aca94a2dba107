//! Whatever ends a run, the last lines of its `log.log` are the error.

use crate::models::{Line, line};
use crate::processes;
use std::path::Path;
use tensorpack::callback::TrainCx;
use tensorpack::dataflow::DataFlow;
use tensorpack::prelude::*;

const WHAT: &str = "TENSORPACK_TEST_ENDS_BY";
/// The line before the error that training returned.
const RETURNED: &str = "training returned:";

/// Fails, or panics, in step 3 or before training.
struct Ends(String);

impl Callback for Ends {
    fn before_train(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        if self.0 == "setup" { Err(Error::argument("failed at the start").note("try later")) } else { Ok(()) }
    }

    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        match self.0.as_str() {
            "error" if cx.global_step == 3 => Err(Error::argument("failed in step 3").note("try again")),
            "panic" if cx.global_step == 3 => panic!("a callback panicked"),
            _ => Ok(()),
        }
    }
}

/// Becomes infinite in its second step.
struct Diverges;

impl ModelDesc for Diverges {
    fn inputs(&self) -> Vec<TensorSpec> {
        Line.inputs()
    }
    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        Line.build_graph(t, inputs)
    }
    fn optimizer(&self, _: &TowerContext) -> Box<dyn tensorpack::optim::Optimizer> {
        Sgd::new(1e30).boxed()
    }
}

fn config(dir: &Path, ends_by: &str) -> TrainConfig {
    let bad = ends_by == "data";
    let data = line(4).map(move |sample| {
        let broken = bad && sample[0].as_slice::<f32>()?[0] > 0.5;
        if broken { Err(Error::argument("a corrupt sample")) } else { Ok(sample) }
    });
    let config = match ends_by {
        "not finite" => TrainConfig::new(Diverges, data),
        _ => TrainConfig::new(Line, data),
    };
    let config = config.callback(ModelSaver::new()).callback(Ends(ends_by.into())).max_epoch(2).logdir(dir);
    if ends_by == "seed" { config.seed(99) } else { config }
}

#[test]
fn child() {
    if let (Some(dir), Ok(ends_by)) = (processes::dir(), std::env::var(WHAT)) {
        let ended = launch_train_with_config(config(&dir, &ends_by), SimpleTrainer::new()).map(|_| ());
        eprintln!("{RETURNED}\n{}", ended.expect_err("an error"));
        std::process::exit(3);
    }
}

/// Trains in a child process that `ends_by` ends. Returns its standard error and its log file.
fn run(dir: &Path, ends_by: &str) -> (String, String) {
    let output = processes::command("log_file::child", dir).env(WHAT, ends_by).output().unwrap();
    assert!(!output.status.success(), "{ends_by}");
    (processes::text(&output), std::fs::read_to_string(dir.join("log.log")).unwrap())
}

/// Returns the last error of a log and everything after it.
fn last_error(log: &str) -> &str {
    let line = log.rfind("] ERR ").and_then(|at| log[..at].rfind('['));
    line.map_or("", |at| &log[at..])
}

#[test]
fn the_error_that_ends_a_run_is_the_end_of_its_log() {
    let cases: [(&str, &[&str]); 5] = [
        ("error", &["failed in step 3", "try again"]),
        ("setup", &["failed at the start", "try later"]),
        ("panic", &["a callback panicked", "log_file.rs:"]),
        ("not finite", &["Square is not finite", "models.rs:", "no variable was changed"]),
        ("data", &["a corrupt sample"]),
    ];
    for (ends_by, terms) in cases {
        let dir = tempfile::tempdir().unwrap();
        let (stderr, log) = run(dir.path(), ends_by);
        let last = last_error(&log);
        assert!(terms.iter().all(|t| last.contains(t)), "{ends_by}: the log ends with {last:?}; {stderr}");
        assert!(!last.contains("\n["), "{ends_by}: more lines follow: {last}");
        if ends_by != "panic" {
            // All of the error that the caller gets, with line and advice.
            let (_, error) = stderr.split_once(RETURNED).expect("an error");
            for line in error.lines() {
                assert!(last.contains(line.trim()), "{ends_by}: {line:?} is not in {last}");
            }
            // The program reports the error; the logger does not repeat it there.
            assert_eq!(stderr.matches(terms[0]).count(), 1, "{ends_by}: {stderr}");
        }
    }
}

/// A misspelled level would otherwise be ignored without a word.
#[test]
fn variables_without_a_meaning_are_warnings() {
    let dir = tempfile::tempdir().unwrap();
    let variables = [("TENSORPACK_LOG", "verbose"), ("TENSORPACK_PROGRESS_REFRESH", "often")];
    let mut child = processes::command("log_file::child", dir.path());
    let text = processes::text(&child.env(WHAT, "error").envs(variables).output().unwrap());
    for (name, value) in variables {
        assert!(text.contains(&format!("WRN {name}={value}")), "{text}");
    }
}

#[test]
fn an_error_while_resuming_is_logged() {
    let dir = tempfile::tempdir().unwrap();
    launch_train_with_config(config(dir.path(), "").max_epoch(1), SimpleTrainer::new()).unwrap();
    let (_, log) = run(dir.path(), "seed");
    let last = last_error(&log);
    assert!(last.contains("its seed is") && last.contains("--fresh"), "{log}");
}
