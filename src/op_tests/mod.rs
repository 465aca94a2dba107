//! Tests of every operation over random shapes, strides and attributes.
//!
//! Comparisons form a chain. It starts at the reference interpreter, which computes each operation
//! from its definition in f64. The plain loops of the CPU engine agree with it in f64: outputs,
//! gradients and second gradients. The fast loops of each instruction set of this machine agree
//! with the plain ones, in f64 and in f32. Gradients and second gradients agree with finite
//! differences. The cases are at the end of each operation's file. A test fails if an operation of
//! `src/ops` has no case.
//!
//! Each case runs [`trials`] times. `TENSORPACK_TEST_CASES` changes the number; the default keeps a
//! debug build under a minute. `TENSORPACK_TEST_OP=Conv` runs only the cases whose names contain
//! `Conv`. The random choices depend only on the case's name, so failures are reproducible.

mod call_sites;
mod chain;
mod completeness;
mod documented;
mod edges;
mod empty;
mod exported;
mod integers;
mod onnx;
mod worked_examples;
mod xla;

use crate::op_cases::{Draw, all_cases};
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tensorpack_tensor::CounterRng;

/// The number of trials per case.
fn trials() -> u32 {
    tensorpack_testing::test_cases(24)
}

/// Runs `check` on random lists of choices, the same in every run. Shrinks a list that fails.
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
fn every_case_passes_the_chain_of_comparisons() {
    let wanted = std::env::var("TENSORPACK_TEST_OP").unwrap_or_default();
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        // Cases are not `Send`, so each thread creates the list and takes the next index from it.
        let cases = all_cases();
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            if !case.name.contains(&wanted) {
                continue;
            }
            let held = over_choices(case.name, |choices| {
                let trial = (case.draw)(&mut Draw::new(choices));
                let rng = CounterRng::new(u64::from(choices[0]), case.name);
                chain::check(&trial, &rng, case.gradient).map_err(|e| format!("{e}, on {:?}", trial.inputs))
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
