//! Whether every operation is right, over random shapes, strides and attributes.
//!
//! The chain of truth: what the fast loops compute in f32, on each instruction set of this machine, is what the plain
//! loops compute in f32, which is what they compute in f64; the gradients likewise; and the gradients in f64 are what
//! finite differences say, as are the gradients of the gradients. `cases` lists the operations, one or a few lines
//! each. A test here fails if an operation of `src/ops` is in none of them.
//!
//! Each operation is tried [`trials`] times; the environment variable `TENSORPACK_TEST_CASES` sets another number
//! than the default, which is chosen so that a debug build is done within a minute. What is drawn depends on the
//! operation's name alone: a failure repeats.

mod cases;
mod chain;
mod completeness;
mod draw;
mod empty;
mod integers;
mod trial;

use cases::{Case, contractions, elementwise, losses, rearranging, reductions};
use draw::Draw;
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use tensorpack_tensor::CounterRng;

/// How often each operation is tried.
fn trials() -> u32 {
    std::env::var("TENSORPACK_TEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(24)
}

/// Runs `check` on random lists of choices, the same in every run, and on smaller ones once one fails.
fn over_choices(name: &str, check: impl Fn(&[u32]) -> Result<(), String>) {
    let rng = CounterRng::new(0, name);
    let seed: Vec<u8> = (0..8).flat_map(|i| rng.word(0, i).to_le_bytes()).collect();
    let config =
        Config { cases: trials(), failure_persistence: None, max_shrink_iters: 400, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let outcome = runner.run(&vec(any::<u32>(), 48), |choices| check(&choices).map_err(TestCaseError::fail));
    if let Err(e) = outcome {
        panic!("{name}: {e}");
    }
}

fn check_all(cases: Vec<Case>) {
    for case in cases {
        over_choices(case.name, |choices| {
            let trial = (case.draw)(&mut Draw::new(choices));
            let rng = CounterRng::new(u64::from(choices[0]), case.name);
            chain::check(&trial, &rng, case.gradient).map_err(|e| format!("{e}, of {:?}", trial.inputs))
        });
    }
}

#[test]
fn elementwise_operations() {
    check_all(elementwise());
}

#[test]
fn rearrangements() {
    check_all(rearranging());
}

#[test]
fn sums_and_extremes() {
    check_all(reductions());
}

#[test]
fn contractions_and_windows() {
    check_all(contractions());
}

#[test]
fn softmax_and_losses() {
    check_all(losses());
}
