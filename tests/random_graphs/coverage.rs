//! Checks that the table is complete and that every row is drawn.

use crate::draw::draw_program;
use crate::optimizers::{rates, rules, wrappers};
use crate::program::{Class, Source};
use crate::table::{cost_rows, op_rows};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tensorpack::prelude::DType;

/// Public names without a row, with the reason.
const LEFT_OUT: [(&str, &str); 19] = [
    ("print", "writes a line, on the CPU engine alone"),
    ("print_every", "writes a line, on the CPU engine alone"),
    ("Activation", "is an argument of layers"),
    ("KvCache", "is the state of a decoder, which is not trained"),
    ("describe_trainables", "returns text"),
    ("summary", "returns a table"),
    ("ModelSummary", "is a table"),
    ("LayerSummary", "is a row of a table"),
    ("l1_regularizer", "differs from the other regularizer in the function alone"),
    ("l2_regularizer", "is part of the cost"),
    ("regularize_cost", "is part of the cost"),
    ("regularize_cost_from_collection", "is part of the cost"),
    ("Layer", "is a trait"),
    ("LinearWrap", "applies other layers"),
    ("ScopedLayer", "is a trait"),
    ("Gradient", "is what optimizers are handed"),
    ("Optimizer", "is a trait"),
    ("LOSS_SCALE", "is a name"),
    ("SKIPPED_STEPS", "is a name"),
];
/// Names that [`Program`](crate::program::Program) uses in every program.
const EVERYWHERE: [&str; 7] = [
    "minimize",
    "compute_gradients",
    "compute_gradients_of",
    "apply_gradients",
    "Group",
    "GradProcessor",
    "Processed",
];

fn source(path: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(path);
    std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

/// Returns the names that a module exports by `pub use`.
fn exported(path: &str) -> BTreeSet<String> {
    let text = source(path);
    let lines = text.split(';').filter_map(|s| s.trim().split_once("pub use ")).map(|(_, names)| names);
    let names = lines.flat_map(|l| l.rsplit("::").next().unwrap_or("").split(',').collect::<Vec<_>>());
    names.map(|n| n.trim_matches(|c: char| !c.is_alphanumeric() && c != '_').to_string()).collect()
}

/// Returns the public methods of tensors and graphs that the files of operations define.
fn methods() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops");
    for file in std::fs::read_dir(folder).expect("src/ops exists") {
        let name = file.expect("a file").file_name().into_string().expect("a plain name");
        let text = source(&format!("ops/{name}"));
        let text = text.split("#[cfg(test)]").next().unwrap_or("");
        for line in text.lines().map(str::trim) {
            if let Some(rest) = line.strip_prefix("pub fn ") {
                found.insert(rest.split(['(', '<']).next().unwrap_or("").to_string());
            }
            // The lists of unary and binary functions: `method => Kernel,`.
            if let Some((method, kernel)) = line.split_once(" => ")
                && method.chars().all(|c| c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit())
                && kernel.ends_with(',')
                && matches!(name.as_str(), "unary.rs" | "binary.rs")
                && kernel.trim_end_matches(',').chars().all(char::is_alphanumeric)
            {
                found.insert(method.to_string());
            }
        }
    }
    found
}

/// Returns all identifiers in the expressions of the table.
fn used() -> BTreeSet<String> {
    let mut texts: Vec<&str> = op_rows().iter().chain(cost_rows()).map(|r| r.text).collect();
    texts.extend(rates().iter().map(|s| s.text));
    texts.extend(rules().iter().map(|s| s.text));
    texts.extend(wrappers().iter().map(|s| s.text));
    let word = |c: char| !c.is_alphanumeric() && c != '_';
    texts.iter().flat_map(|t| t.split(word)).map(String::from).collect()
}

#[test]
fn the_table_has_every_public_operation_layer_and_optimizer() {
    let mut public = methods();
    for path in ["nn/mod.rs", "optim/mod.rs", "optim/gradproc/mod.rs"] {
        public.extend(exported(path));
    }
    assert!(public.len() > 150, "{public:?}");
    let used = used();
    let left_out = |name: &String| {
        LEFT_OUT.iter().any(|(n, _)| n == name) || EVERYWHERE.contains(&name.as_str()) || name.is_empty()
    };
    let missing: Vec<&String> = public.iter().filter(|n| !used.contains(*n) && !left_out(n)).collect();
    assert!(missing.is_empty(), "no row of the table uses {missing:?}");
}

/// The number of programs in which every row must be drawn.
const PROGRAMS: u64 = 400;

#[test]
fn every_row_is_drawn() {
    let names = |rows: &[&'static crate::rows::Row]| rows.iter().map(|r| r.name).collect::<Vec<_>>();
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let all = names(op_rows()).into_iter().chain(names(cost_rows()));
    let all = all.chain(rates().iter().map(|s| s.name)).chain(rules().iter().map(|s| s.name));
    counts.extend(all.chain(wrappers().iter().map(|s| s.name)).map(|name| (name, 0)));
    let mut count = |name: &'static str| *counts.get_mut(name).expect("it is in the table") += 1;
    let [mut tied, mut unknown, mut empty, mut towers, mut uneven, mut one_row] = [0; 6];
    let [mut bf16, mut f16, mut autocast, mut narrow] = [0; 4];
    for index in 0..PROGRAMS {
        let program = draw_program(1, index, 0);
        towers += u64::from(program.towers.count > 1);
        uneven += u64::from(program.towers.last_batch.is_some());
        bf16 += u64::from(program.narrow == Some(DType::Bf16));
        f16 += u64::from(program.narrow == Some(DType::F16));
        autocast += u64::from(program.autocast);
        count(program.training.rate.0.name);
        count(program.training.rule.0.name);
        program.training.wrappers.iter().for_each(|w| count(w.0.name));
        for node in &program.nodes {
            match &node.source {
                Source::Row { row, class, tied: again, .. } => {
                    count(row.name);
                    narrow += u64::from(*class == Class::Narrow);
                    tied += u64::from(*again);
                }
                Source::Input { sizes, known, .. } => {
                    unknown += u64::from(known.contains(&false));
                    empty += u64::from(sizes.contains(&0));
                    let last = program.sizes_in(program.towers.count - 1, sizes, known);
                    one_row += u64::from(program.towers.count > 1 && last.first() == Some(&1));
                }
                Source::Variable { .. } => {}
            }
        }
    }
    let never: Vec<&&str> = counts.iter().filter(|(_, n)| **n == 0).map(|(name, _)| name).collect();
    let special = format!(
        "{tied} tied, {unknown} of unknown size, {empty} empty; {towers} programs with several towers, {uneven} of \
         them with batches of different sizes, {one_row} inputs with one row in a tower; {bf16} programs with bf16 \
         and {f16} with f16, {autocast} with autocast, {narrow} rows in them"
    );
    eprintln!("drawn: {counts:?}, {special}");
    assert!(never.is_empty(), "never drawn: {never:?}");
    let least = [tied, unknown, empty, uneven, one_row, narrow, autocast].into_iter().min();
    assert!(
        least > Some(0) && towers.min(bf16 + f16) > PROGRAMS / 10 && bf16.min(f16) > PROGRAMS / 40,
        "{special}"
    );
}
