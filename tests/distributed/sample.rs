//! Which of all cases a run of the tests tries.

use std::env;
use std::fmt::Display;
use tensorpack::tensor::CounterRng;

const CASES: &str = "TENSORPACK_TEST_FAULTS";
const CASE: &str = "TENSORPACK_TEST_FAULT";
const SEED: &str = "TENSORPACK_TEST_SEED";

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |n| n.parse().unwrap_or_else(|_| panic!("{name}={n} is not a number")))
}

/// Returns the seed of the sample.
pub(crate) fn seed() -> u64 {
    number(SEED, 0)
}

/// Returns whether all cases are tried.
pub(crate) fn is_complete() -> bool {
    env::var(CASES).is_ok_and(|text| text == "all")
}

/// Returns some of the cases: `default` of them, or as many as `TENSORPACK_TEST_FAULTS` says. Those
/// that `TENSORPACK_TEST_FAULT` names, if it is set.
pub(crate) fn sample<T: Display>(what: &str, mut all: Vec<T>, default: usize) -> Vec<T> {
    if let Ok(part) = env::var(CASE) {
        all.retain(|case| case.to_string().contains(&part));
        return all;
    }
    if is_complete() {
        return all;
    }
    let count = number(CASES, default as u64) as usize;
    let rng = CounterRng::new(seed(), what);
    // A shuffle; the first ones are taken.
    let len = all.len();
    for i in 0..len {
        let other = i + (rng.uniform(0, i as u64) * (len - i) as f64) as usize;
        all.swap(i, other);
    }
    all.truncate(count);
    all
}

/// Returns one of the cases, or all of them.
pub(crate) fn one_of<T>(what: &str, all: Vec<T>) -> Vec<T> {
    match is_complete() {
        true => all,
        false => {
            let rng = CounterRng::new(seed(), what);
            let chosen = (rng.uniform(0, 0) * all.len() as f64) as usize;
            all.into_iter().skip(chosen).take(1).collect()
        }
    }
}
