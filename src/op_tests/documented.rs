//! Documentation tables that are generated from the operations' cases. `TENSORPACK_WRITE_DOCS=1
//! cargo test` regenerates them.

use crate::op_cases::{Gradient, all_cases};

/// Compares (or writes) the table of a page, which extends from its header line to the end.
fn table(page: &str, header: &str, rows: impl Iterator<Item = String>) {
    let path = format!("{}/docs/{page}", env!("CARGO_MANIFEST_DIR"));
    let there = std::fs::read_to_string(&path).unwrap();
    let words = there.split(header).next().unwrap();
    let line = "|---".repeat(header.matches('|').count() - 1);
    let mut right = format!("{words}{header}\n{line}|\n");
    rows.for_each(|row| right += &row);
    if std::env::var_os("TENSORPACK_WRITE_DOCS").is_some() {
        std::fs::write(path, &right).unwrap();
    } else {
        assert!(there == right, "the table in docs/{page} is out of date");
    }
}

#[test]
fn documented_results_on_empty_inputs() {
    let rows = all_cases().into_iter().flat_map(|case| {
        let row = |e: &crate::op_cases::Empty| {
            format!("| {} | `{}` | {} | {} |\n", case.name, e.call, e.inputs, e.result)
        };
        case.empties.iter().map(row).collect::<Vec<_>>()
    });
    table("empty-inputs.md", "| op | call | inputs | result |", rows);
}

#[test]
fn documented_gradients() {
    let rows = all_cases().into_iter().map(|case| match case.gradient {
        Gradient::Twice => format!("| {} | yes | yes |\n", case.name),
        Gradient::Never(why) => format!("| {} | no: {why} | |\n", case.name),
    });
    table("gradients.md", "| operation | gradient | gradient of the gradient |", rows);
}
