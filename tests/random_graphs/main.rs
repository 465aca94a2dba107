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

use build::Fault;
use compare::{Unfit, check, expect};
use program::{Class, Program};
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

/// Returns the smallest program that shows a fault, and its source, if a program that `shows` it
/// fails.
fn found_and_shrunk(fault: Fault, shows: &dyn Fn(&Program) -> bool) -> (Program, String) {
    let engine = Engine::Faulty(fault);
    // Small programs shrink in less time.
    let mut indices: Vec<(usize, u64)> = (0..240)
        .map(|index| (draw::draw_program(7, index, 0), index))
        .filter(|(program, _)| shows(program))
        .map(|(program, index)| (program.rows(), index))
        .collect();
    indices.sort_unstable();
    let (program, failure) = indices
        .into_iter()
        .map(|(_, index)| fit(7, index, &|_| ()).0)
        .filter_map(|mut program| {
            // A variable that only the penalty on all variables uses would be lost when shrinking.
            program.prune();
            let expected = compare::expect(&program).ok()?;
            Some((program, expected))
        })
        .filter(|(program, _)| shows(program))
        .find_map(|(program, expected)| {
            let failure = check(&program, engine, &expected).err()?;
            Some((program, failure))
        })
        .unwrap_or_else(|| panic!("no program shows {fault:?}"));
    let (small, failure) =
        shrink::shrink(&program, failure, Duration::from_secs(120), &|p| shrink::fails(p, engine));
    let text = print::print(&small, &failure);
    assert!(text.contains("fn main()") && text.lines().count() < 120, "{text}");
    (small, text)
}

fn uses(program: &Program, row: &str) -> bool {
    let is = |n: &program::Node| matches!(&n.source, program::Source::Row { row: r, .. } if r.name == row);
    program.nodes.iter().any(is)
}

#[test]
fn a_wrong_row_is_found_shrunk_and_printed() {
    for row in ["tanh", "Linear"] {
        let (small, text) = found_and_shrunk(Fault::Row(row), &|p| uses(p, row));
        assert!(small.rows() <= 2, "{row}: {} rows are left:\n{text}", small.rows());
        assert!(small.narrow.is_none() && small.towers.count == 1, "{text}");
    }
}

#[test]
fn a_wrong_tower_is_found_shrunk_and_printed() {
    let fault = Fault::RowInOtherTowers("tanh");
    let (small, text) = found_and_shrunk(fault, &|p| p.towers.count > 1 && uses(p, "tanh"));
    assert!(small.rows() <= 2, "{} rows are left:\n{text}", small.rows());
    assert!(small.towers.count == 2 && text.contains("for tower in 0..2"), "{text}");
}

#[test]
fn narrow_variables_kept_in_f32_are_found_shrunk_and_printed() {
    let narrow = |p: &Program| {
        let is =
            |n: &program::Node| matches!(n.source, program::Source::Variable { class: Class::Narrow, .. });
        p.nodes.iter().any(is)
    };
    let (small, text) = found_and_shrunk(Fault::WideVariables, &narrow);
    assert!(
        small.narrow.is_some() && narrow(&small) && small.rows() <= 4,
        "{} rows are left:\n{text}",
        small.rows()
    );
    let declared = format!("dtype(DType::{:?})", small.narrow.unwrap());
    assert!(text.contains(&declared), "{text}");
}

/// Returns a program with the cost `(w * factor * factor).sum() / factor / factor` in f32.
fn scaled_up_and_down(factor: f64, steps: usize) -> Program {
    use program::{Node, Port, Source, Towers, Value};
    let port = |node| Port { node, output: 0 };
    let row = |name: &str, input, values| Source::Row {
        row: table::find(name),
        class: Class::Float,
        inputs: vec![port(input)],
        values,
        tied: false,
    };
    let times = |input, factor| row("times a constant", input, vec![Value::Real(factor)]);
    let nodes = [
        Source::Variable { class: Class::Float, sizes: vec![6] },
        times(0, factor),
        times(1, factor),
        row("cost sum", 2, vec![]),
        times(3, 1.0 / factor),
        times(4, 1.0 / factor),
    ];
    let node = |(i, source)| Node { name: format!("n{i}"), source, outputs: None };
    Program {
        origin: [0; 3],
        float: tensorpack::prelude::DType::F32,
        narrow: None,
        autocast: false,
        towers: Towers { count: 1, last_batch: None },
        nodes: nodes.into_iter().enumerate().map(node).collect(),
        blocks: vec![],
        recompute: true,
        cost: vec![port(5)],
        regularized: false,
        fetches: vec![],
        gradients: true,
        second: false,
        together: true,
        training: optimizers::Training::plain(),
        steps,
    }
}

#[test]
fn overflow_of_f32_is_no_failure() {
    for engine in Engine::on_cpu() {
        // A run that updates variables returns an error; one that does not returns infinities.
        for steps in [1, 0] {
            let program = scaled_up_and_down(1e20, steps);
            let expected = expect(&program).expect("f64 holds every result");
            let results = run::run(&program, engine, None);
            assert!(results.is_err_and(|e| e.kind() == tensorpack::ErrorKind::NotFinite) || steps == 0);
            check(&program, engine, &expected).unwrap_or_else(|f| panic!("{engine}: {}", f.what));
        }
        let program = scaled_up_and_down(1e10, 1);
        let found = check(&program, engine, &expect(&program).expect("every result is finite"));
        assert!(!found.unwrap_or_else(|f| panic!("{engine}: {}", f.what)).is_empty());
    }
}
