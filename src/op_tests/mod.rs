//! Tests every operation with random shapes, strides and attributes.
//!
//! The reference interpreter computes each operation from its definition in f64. The plain loops of
//! the CPU engine must agree with it in f64, in outputs, gradients and second-order gradients. The
//! vectorized loops of each instruction set of this machine must agree with the plain ones, in f64
//! and f32. Gradients and second-order gradients must agree with finite differences. The cases are
//! at the end of each operation's file. A test fails if an operation of `src/ops` is in none of
//! them or has no reference implementation.
//!
//! `TENSORPACK_TEST_CASES` sets the number of trials per operation; the default takes a debug build
//! less than a minute. `TENSORPACK_TEST_OP=Conv` runs only the cases whose name contains this word.
//! The trials depend only on the name of the case, so a failure can be reproduced.

mod call_sites;
mod chain;
mod completeness;
mod documented;
mod edges;
mod empty;
mod exported;
mod integers;
mod small_examples;
mod xla;

use crate::op_cases::{Draw, all_cases};
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tensorpack_tensor::CounterRng;

/// Returns the number of trials per operation.
fn trials() -> u32 {
    std::env::var("TENSORPACK_TEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(24)
}

/// Runs `check` on random lists of choices, the same in every run, and on smaller ones once one fails.
fn over_choices(name: &str, check: impl Fn(&[u32]) -> Result<(), String>) -> Result<(), String> {
    let rng = CounterRng::new(0, name);
    let seed: Vec<u8> = (0..8).flat_map(|i| rng.word(0, i).to_le_bytes()).collect();
    let config =
        Config { cases: trials(), failure_persistence: None, max_shrink_iters: 400, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let outcome = runner.run(&vec(any::<u32>(), 48), |choices| check(&choices).map_err(TestCaseError::fail));
    outcome.map_err(|e| format!("{name}: {e}"))
}

#[test]
fn every_case_holds_along_the_chain() {
    let wanted = std::env::var("TENSORPACK_TEST_OP").unwrap_or_default();
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        // Cases are not `Send`, so each thread builds the list and takes the next unclaimed one.
        let cases = all_cases();
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            if !case.name.contains(&wanted) {
                continue;
            }
            let held = over_choices(case.name, |choices| {
                let trial = (case.draw)(&mut Draw::new(choices));
                let rng = CounterRng::new(u64::from(choices[0]), case.name);
                chain::check(&trial, &rng, case.gradient).map_err(|e| format!("{e}, of {:?}", trial.inputs))
            });
            if let Err(e) = held {
                failures.lock().unwrap().push(e);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|s| (0..threads).for_each(|_| drop(s.spawn(work))));
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
