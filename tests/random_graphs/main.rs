//! Random training programs on all engines, compared with the reference.
//!
//! `TENSORPACK_TEST_GRAPHS` sets the number of programs and `TENSORPACK_TEST_SEED` the seed.
//! `TENSORPACK_TEST_GRAPH` runs only the program with this number. A failing program is shrunk and
//! printed as Rust source.

mod build;
mod compare;
mod coverage;
mod draw;
mod optimizers;
mod print;
mod program;
mod rows;
mod run;
mod shrink;
mod table;
mod workers;

include!("values.rs");

use compare::{Unfit, check, expect};
use program::Program;
use run::Engine;
use std::time::Duration;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, not a number")))
}

/// Draws programs until the reference accepts one, and returns it with its expected results. Calls
/// `tell` for each program that is rejected.
fn fit(seed: u64, index: u64, tell: &dyn Fn(&Unfit)) -> (Program, compare::Expected) {
    for attempt in 0.. {
        let program = draw::draw_program(seed, index, attempt);
        match expect(&program) {
            Ok(expected) => return (program, expected),
            Err(unfit) => tell(&unfit),
        }
        assert!(attempt < 50, "no attempt at graph {index} of seed {seed} is fit");
    }
    unreachable!("attempts end")
}

#[test]
fn engines_agree_with_the_reference() {
    workers::supervise();
}

/// Runs a share of the programs if this process is a worker.
#[test]
fn worker() {
    workers::work();
}

#[test]
fn a_wrong_row_is_found_shrunk_and_printed() {
    for (row, within) in [("tanh", 2), ("Linear", 2)] {
        let engine = Engine::Faulty(row);
        let uses =
            |p: &Program| p.nodes.iter().any(|n| format!("{:?}", n.source).contains(&format!("row: {row},")));
        let (program, failure) = (0..)
            .map(|index| fit(7, index, &|_| ()))
            .filter(|(program, _)| uses(program))
            .find_map(|(program, expected)| {
                Some((program.clone(), check(&program, engine, &expected).err()?))
            })
            .expect("one of the programs uses it");
        let before = program.rows();
        let (small, failure) =
            shrink::shrink(&program, failure, Duration::from_secs(30), &|p| shrink::fails(p, engine));
        let text = print::print(&small, &failure);
        assert!(small.rows() <= within, "{row}: {} of {before} rows are left:\n{text}", small.rows());
        assert!(text.contains("fn main()") && text.lines().count() < 110, "{text}");
    }
}
